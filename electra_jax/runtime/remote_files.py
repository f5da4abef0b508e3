"""Reads files by address, such as s3://BUCKET/FILE, with fsspec: listings and files opened for reading.

fsspec and its packages take credentials and endpoints from where the tools of each store keep them, and settings from
its own configuration and from the environment: FSSPEC_S3_ANON=true reads a public bucket without credentials.
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
_BLOCK = 2**23  # bytes asked for at once: few requests, and a reader needs little memory
# What a listing says about the content of a file; a store has one of them, and the first of these is preferred.
_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "blob_id", "mtime", "LastModified", "last_modified", "created")


class RemoteFile(NamedTuple):
    """A file in a listing.

    Attributes:
      url: its address.
      size: bytes.
      version: changes with the content: an ETag, or a time where the store has none.
    """

    url: str
    size: int
    version: str


def is_url(name: str) -> bool:
    """Whether `name` is an address with a scheme, as s3://BUCKET/FILE, not a path of this machine."""
    scheme, separator, _ = name.partition("://")
    return bool(separator) and scheme.isalnum()


def require_package(url: str) -> None:
    """Raises UserError where the package that reads `url` is an extra and not installed."""
    package, extra = _PACKAGES.get(url.partition("://")[0], ("", ""))
    if package:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(f"{url} needs {package}; install it: pip install 'electra_jax[{extra}]'") from error


def list_files(pattern: str) -> tuple[list[RemoteFile], bool]:
    """(the files of an address, sorted; whether it is a folder). The address may be a file, a folder or a glob.

    There are none where nothing matches.

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
            RemoteFile(files.unstrip_protocol(name), int(info["size"] or 0), _version(info))
            for name, info in sorted(found.items())
            if info["type"] == "file"
        ]
    return listed, is_folder


def open_file(url: str) -> IO[bytes]:
    """Opens a file for reading. It can seek.

    Raises:
      UserError: here and while it is read: the store refuses it or is not reached.
    """
    files, path = _open_store(url)
    with _one_line(url):
        return cast(IO[bytes], io.BufferedReader(_Raw(files.open(path, "rb", block_size=_BLOCK), url)))


class _Raw(io.RawIOBase):
    """A file of fsspec whose errors, of as many kinds as there are stores, are UserErrors."""

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
    """(the file system of an address, the path in it). Listings are not kept: files may change between two."""
    from fsspec.core import url_to_fs  # here, because most text is on this machine

    require_package(url)
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
    """Raises what a store answers, except that a file is missing in a listing, as a UserError that names `url`."""
    try:
        yield
    except Exception as error:  # each store has its own kinds
        raise UserError(
            f"{url} cannot be read ({describe(error)}); check the name, the network and your credentials"
        ) from error
