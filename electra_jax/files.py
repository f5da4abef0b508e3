"""Files that are whole or not there, and what tells one from another."""

import hashlib
import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes a file so that a reader sees the old text or the new one, never a part."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
