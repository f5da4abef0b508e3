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
    # In the same folder, because a rename is atomic only within a file system.
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def check_output(output: Path) -> None:
    """Raises UserError if a command's `output` exists and is not an empty directory."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is not an empty directory; use another --output, or empty it")


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Context manager: yields a temporary path and renames it to `path` on success, so `path` is complete or absent.

    Raises:
      OSError: on the rename, `path` exists and is not empty.
    """
    # A random name, so that no other process writes there.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def from_json(text: str) -> Any:
    """Parses a JSON text.

    Raises:
      ValueError: the text is not JSON, or is nested deeper than Python's recursion limit.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def check_regular(path: Path) -> None:
    """Raises UserError if `path` is a pipe or a device, from which reading may never end."""
    if path.exists() and not path.is_file():
        raise UserError(f"{path} is not a regular file: expected one; remove it, or use another path")


def read_json(path: Path) -> dict[str, Any]:
    """Reads the object in a JSON file.

    Raises:
      UserError: the file does not hold a JSON object.
    """
    check_regular(path)
    try:
        # `json` refuses a byte-order mark, with which some editors begin a file.
        value = from_json(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); restore or download the file") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object; restore or download the file")
    return value


def user_cache() -> Path:
    """Returns this package's folder in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "electra_jax"


def sha256(path: Path) -> str:
    """Computes the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def json_checksum(value: Any) -> str:
    """Computes a checksum of a value that JSON can represent; the order of keys does not matter."""
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).hexdigest()


def is_url(name: str) -> bool:
    """True if `name` is a URL with a scheme, such as s3://BUCKET/FILE, not a local path."""
    scheme, separator, _ = name.partition("://")
    return bool(separator) and scheme.isalnum()
