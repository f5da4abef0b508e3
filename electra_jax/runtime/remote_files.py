"""Reads files by URL, such as s3://BUCKET/FILE, with fsspec: listings and files opened for reading.

fsspec and its packages take credentials and endpoints from where the tools of each store keep them, and settings from
fsspec's configuration and from the environment: FSSPEC_S3_ANON=true reads a public bucket without credentials.
"""

import contextlib
import importlib
import io
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from electra_jax.config.errors import UserError, describe, first_line

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_PACKAGES = {"gs": ("gcsfs", "gcs"), "gcs": ("gcsfs", "gcs"), "s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3")}
# Bytes per request: few requests, and a reader needs little memory.
_BLOCK = 2**23
# Keys of a listing that tell the version of a file's content, in order of preference; each store has one of them.
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "mtime", "LastModified", "last_modified", "created")


class ListedFile(NamedTuple):
    """A file in a listing.

    Attributes:
      name: its path or URL.
      size: its size in bytes.
      version: a string that changes with the content: an ETag, or a time if there is none.
    """

    name: str
    size: int
    version: str


def require_package(url: str) -> None:
    """Raises UserError if the package that reads `url` is an extra that is not installed."""
    package, extra = _PACKAGES.get(url.partition("://")[0], ("", ""))
    if package:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(f"{url} needs {package}; install it: pip install 'electra_jax[{extra}]'") from error


def list_files(pattern: str) -> tuple[list[ListedFile], bool]:
    """Returns (the files of a URL, sorted; whether it is a folder). The URL may be a file, a folder or a glob.

    If nothing matches, there are no files.

    Raises:
      UserError: the store refuses the listing or is not reached, or a package is missing.
    """
    files, path = _open_store(pattern)
    with _one_line(pattern):
        try:
            is_folder = not _is_glob(path) and files.info(path)["type"] == "directory"
            found = files.find(path, detail=True) if is_folder else files.glob(path, detail=True)
        except FileNotFoundError:
            return [], False
        listed = [
            # A web server may not tell the size.
            ListedFile(files.unstrip_protocol(name), int(info["size"] or 0), _version(info))
            for name, info in sorted(found.items())
            if info["type"] == "file"
        ]
    return listed, is_folder


def open_file(url: str) -> IO[bytes]:
    """Opens a file for reading, with seeking.

    Raises:
      UserError: here and while it is read: the store refuses it or is not reached.
    """
    files, path = _open_store(url)
    with _one_line(url):
        return cast(IO[bytes], io.BufferedReader(_Raw(files.open(path, "rb", block_size=_BLOCK), url)))


class _Raw(io.RawIOBase):
    """A file of fsspec whose read errors, of different types in each store, become UserErrors."""

    def __init__(self, file: Any, url: str):
        self._file, self._url = file, url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any) -> int:
        with _one_line(self._url):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


def _is_glob(path: str) -> bool:
    return any(mark in path for mark in "*?[")


def _open_store(url: str) -> tuple["AbstractFileSystem", str]:
    """Returns (the file system of a URL, the path in it). Listings are not cached: files may change in between."""
    from fsspec.core import url_to_fs  # here, because most text is on this machine

    require_package(url)
    # A chain of fsspec's, such as zip://FILE::s3://BUCKET/ARCHIVE.
    if "::" in url:
        raise UserError(f"{url} is a chain of addresses: expected one; unpack the archive, or copy the file first")
    try:
        return cast("tuple[AbstractFileSystem, str]", url_to_fs(url, use_listings_cache=False))
    except TypeError as error:  # sftp passes the option on to paramiko
        raise UserError(
            f"{url} is in a store that is not supported ({first_line(error)}); copy the files first"
        ) from error
    except ImportError as error:
        raise UserError(f"{url} needs another package ({first_line(error)}); install it") from error
    except ValueError as error:
        scheme = url.partition("://")[0]
        raise UserError(f"{url} has an unknown scheme {scheme}: expected one of fsspec's, such as s3 or gs") from error


def _version(info: dict[str, Any]) -> str:
    return str(next((info[key] for key in _VERSIONS if info.get(key)), ""))


@contextlib.contextmanager
def _one_line(url: str) -> Iterator[None]:
    """Context manager that converts any error of a store to a UserError of one line that names `url`."""
    try:
        yield
    except Exception as error:  # each store has its own kinds
        raise UserError(
            f"{url} cannot be read ({describe(error)}); check the name, the network and your credentials"
        ) from error
