"""Files that are whole or not there, and what tells one from another."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from electra_jax.config.errors import UserError


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def from_json(text: str) -> Any:
    """What a JSON text says. Raises ValueError where it is none, or goes deeper than Python does."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError where it holds none."""
    try:
        found = from_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{path} is no JSON ({error}); get the file again") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object; get the file again")
    return found


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
