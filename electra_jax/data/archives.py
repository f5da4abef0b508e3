"""Reads the files in tar and zip archives one by one, in archive order, without unpacking them to disk.

As in a folder, files with a known text suffix are read, hidden files are skipped, and others are counted. tarfile ends
silently at a damaged header, and after the first of several concatenated archives. Here the former is an error, and all
concatenated archives are read.
"""

import contextlib
import errno
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from electra_jax.config.errors import UserError, first_line
from electra_jax.data import formats
from electra_jax.data.compression import Stream
from electra_jax.data.input_file import InputFile, open_binary

_BLOCK = 2**20  # bytes of a tar file read at a time
_OF_MACOS = "__MACOSX"  # folder of metadata in zip files made by macOS
_ERRORS = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, struct.error)  # on broken data
_ENCRYPTED = 0x1  # flag of a member of a zip file
_END_MARK = b"PK\x05\x06"
_END = struct.Struct("<10xH10x")  # end record of a zip file: the number of files, or `_MANY` (APPNOTE.TXT, 4.3.16)
_MANY = 0xFFFF  # the number does not fit, and is in the zip64 end record instead

Member = tuple[InputFile, bool]


def read_members(file: InputFile, archive: str) -> Iterator[Member]:
    """Yields (member, True if it is to be read) for each file in an archive. Read a member before requesting the next.

    Args:
      file: the archive.
      archive: its format, one of `formats.ARCHIVES`.

    Raises:
      UserError: the archive is damaged, truncated, or has no file to read; or a file in it is encrypted, or is itself
        an archive.
    """
    found = False
    for member, is_file in _read_tar(file) if archive == "tar" else _read_zip(file):
        is_read = is_file and formats.is_known(member.name)
        if is_file and formats.is_archive(member.name):
            raise nested(member, file)
        found = found or is_read
        yield member, is_read
    if not found:
        raise UserError(
            f"{file.name} is an archive that holds no text ({formats.known_suffixes()}, plain or compressed)"
        )


def nested(member: InputFile, file: InputFile) -> UserError:
    """Returns the error for an archive or a table in an archive."""
    return UserError(f"{member.name} is an archive or a table in an archive: expected text; unpack {file.name}")


def _read_tar(file: InputFile) -> Iterator[Member]:
    """Yields (member, True if it is a regular file, unlike links and devices)."""
    with _errors(file):
        # Invalid bytes in names become U+FFFD, so that the names can be printed.
        archive = _Tar.open(
            # Stream mode never seeks: the archive may be compressed, or in an object store.
            mode="r|",
            fileobj=cast(IO[bytes], Stream(file.blocks())),
            bufsize=_BLOCK,
            tarinfo=_Header,
            # Else tarfile stops at the first end mark, after which another archive may follow.
            ignore_zeros=True,
            encoding="utf-8",
            errors="replace",
        )
        with archive:
            while (info := archive.next()) is not None:
                # tarfile keeps all members, and there may be millions.
                archive.members.clear()
                if not info.isdir() and not _is_hidden(info.name):
                    opened = archive.extractfile(info) if info.isreg() else None
                    yield _member(file, info.name, opened, lambda: file.position), info.isreg()
            # Between two members, tarfile takes the end of the file for the end of the archive.
            if not archive.has_end:
                raise tarfile.ReadError("it ends before its end mark")


class _Tar(tarfile.TarFile):
    """A tar file that records whether its last header was an end mark, a block of zeros."""

    members: list[tarfile.TarInfo]
    has_end = False


class _Header(tarfile.TarInfo):
    """A header whose damage is an error; tarfile would skip it, or take it for the end."""

    @classmethod
    def fromtarfile(cls, tarfile_: Any) -> Any:
        try:
            header = super().fromtarfile(tarfile_)
        # A block of zeros, which tarfile skips.
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            tarfile_.has_end = True
            raise
        # tarfile would skip an invalid header, and take a truncated one for the end.
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(f"header at byte {tarfile_.offset}: {error}") from None
        tarfile_.has_end = False
        return header


def _read_zip(file: InputFile) -> Iterator[Member]:
    """Yields (member, whether it is no link). The directory is at the end, so the file must not be compressed again."""
    if file.is_compressed:
        raise UserError(f"{file.name} is a zip archive that was compressed again; unpack it")
    # zipfile seeks, which is impossible in a file that is read as blocks: the archive is opened again.
    file.close()
    with _errors(file), open_binary(file.name) as raw, zipfile.ZipFile(raw) as archive:
        _check_count(archive, raw)
        for info in archive.infolist():
            if info.is_dir() or _is_hidden(info.filename):
                continue
            if info.flag_bits & _ENCRYPTED:
                raise UserError(f"{file.name}/{info.filename} is encrypted: expected text; unpack {file.name}")
            is_link = stat.S_ISLNK(info.external_attr >> 16)  # of an archive made on Unix, the mode of the file
            with archive.open(info) as opened:
                end = info.header_offset + info.compress_size
                yield _member(file, info.filename, opened, lambda end=end: end), not is_link  # type: ignore[misc]


def _check_count(archive: zipfile.ZipFile, raw: IO[bytes]) -> None:
    """Raises BadZipFile if the directory has not as many files as the end record says, which zipfile does not check."""
    # The comment follows the end record, and some writers add bytes.
    size = raw.seek(0, os.SEEK_END)
    raw.seek(max(0, size - _END.size - 2**16))
    tail = raw.read()
    (count,) = _END.unpack_from(tail, tail.rfind(_END_MARK))
    found = len(archive.infolist())
    if count not in (found, _MANY):
        raise zipfile.BadZipFile(f"its list has {found} files, its end says {count}")


def _member(archive: InputFile, name: str, opened: IO[bytes] | None, position: Callable[[], int]) -> InputFile:
    return InputFile(f"{archive.name}/{name.removeprefix('./')}", opened, position)


def _is_hidden(name: str) -> bool:
    return any((part.startswith(".") and part != ".") or part == _OF_MACOS for part in name.split("/"))


@contextlib.contextmanager
def _errors(file: InputFile) -> Iterator[None]:
    """Context manager that converts errors in the archive to UserErrors."""
    try:
        yield
    except NotImplementedError as error:  # an unsupported compression method
        raise UserError(f"{file.name}: {error}; unpack it, and give the files") from error
    except (*_ERRORS, OSError) as error:
        # The system's errors pass. EINVAL is zipfile's: it seeks below 0 if an offset in the archive is damaged.
        if isinstance(error, OSError) and error.errno != errno.EINVAL:
            raise
        raise UserError(f"{file.name}: broken archive ({first_line(error)}); download it again") from error
