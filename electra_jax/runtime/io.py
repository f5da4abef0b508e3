"""Files: atomic writes, JSON, hashes."""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from electra_jax.config.errors import UserError


def write_whole(path: Path, text: str) -> None:
    """Writes a file atomically: a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Makes a folder whole: gives another path, which becomes `path` when the block ends, unless by an error.

    Raises:
      OSError: `path` exists then, and is not empty.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")  # nobody else's
    try:
        yield partial
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def from_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
      ValueError: the text is not JSON, or is nested deeper than Python's recursion limit.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def check_regular(path: Path) -> None:
    """Raises UserError where `path` is a pipe or a device, from which reading may never end."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: expected one; remove it, or use another path")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
      UserError: the file does not hold a JSON object.
    """
    check_regular(path)
    try:
        value = from_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); restore or download the file") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object; restore or download the file")
    return value


def user_cache() -> Path:
    """The user's folder for what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "electra_jax"


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_checksum(value: Any) -> str:
    """A checksum of a value that JSON can represent; the order of keys does not matter."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()
