"""A file of the input, on this machine or in an object store: opened, or as blocks or lines of bytes.

Blocks and lines are decompressed as they are read, in memory that stays flat.
"""

import bz2
import codecs
import functools
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from electra_jax.config.errors import UserError
from electra_jax.runtime import remote_files

_BLOCK = 2**20  # bytes read at a time
_ZST_BLOCK = 2**10  # 4 bytes can hold a block of 128 KiB (RFC 8878, 3.1.1.2), so this unpacks to 32 MiB at most


def open_binary(name: str) -> IO[bytes]:
    """Opens a path or an address for reading.

    Raises:
      UserError: of an address, here and while it is read: the store refuses it or is not reached.
    """
    return remote_files.open_file(name) if remote_files.is_url(name) else open(name, "rb")


class InputFile:
    """A file, decompressed as it is read.

    Attributes:
      name: its path or address.
      line: number of the current line.
      position: bytes of the file on disk read so far.

    Raises:
      UserError: in `blocks` and `lines`, where the compressed data is broken or ends early.
    """

    def __init__(self, name: str | Path):
        self.name = str(name)
        self.line = 1
        self.position = 0

    @property
    def place(self) -> str:
        return f"{self.name}:{self.line}"

    def blocks(self) -> Iterator[bytes]:
        suffix = Path(self.name).suffix.lower()
        first = True
        with open_binary(self.name) as raw:
            try:
                for block in _DECOMPRESSORS.get(suffix, _read_plain)(raw):
                    self.position = raw.tell()
                    yield self._without_mark(block) if first else block
                    first = False
                if first and suffix in _DECOMPRESSORS and not raw.tell():  # an empty text makes a few bytes
                    raise EOFError("the file is empty")
            except (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:  # the system's, not the decompressor's
                    error.filename = error.filename or self.name
                    raise
                raise UserError(f"{self.place}: broken compressed file ({error}); download it again") from error

    def _without_mark(self, block: bytes) -> bytes:
        """The first block of a file without its byte order mark."""
        if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise UserError(f"{self.name} is UTF-16: expected UTF-8; convert it with iconv -f utf-16 -t utf-8")
        return block.removeprefix(codecs.BOM_UTF8)

    def lines(self, longest: int) -> Iterator[bytes]:
        """Lines without their ends; `line` is the number of the line yielded last.

        Raises:
          UserError: also where a line has more than `longest` bytes, before more of it is kept in memory.
        """
        rest: list[bytes] = []
        self.line = size = 0
        for block in self.blocks():
            first, *others = block.split(b"\n")
            rest.append(first)
            size += len(first)
            for following in others:
                self._check_length(size, longest)
                self.line += 1
                yield b"".join(rest)
                rest, size = [following], len(following)
            self._check_length(size, longest)
        if any(rest):
            self.line += 1
            yield b"".join(rest)

    def _check_length(self, size: int, longest: int) -> None:
        """Raises UserError where the line after the current one has `size` bytes so far, more than `longest`."""
        if size > longest:
            raise UserError(
                f"{self.name}:{self.line + 1} is longer than {longest // 2**20} MB: expected one record per line; "
                "split the record, or convert the file to one record per line"
            )


def _read_plain(raw: IO[bytes]) -> Iterator[bytes]:
    while block := raw.read(_BLOCK):
        yield block


def _read_gz(raw: IO[bytes]) -> Iterator[bytes]:
    return _read_plain(cast(IO[bytes], gzip.open(raw)))


def _read_streams(make_decompressor: Callable[[], Any], raw: IO[bytes]) -> Iterator[bytes]:
    """Concatenated streams. Data after the first must be a stream too, which lzma.open and bz2.open do not check."""
    stream: Any = None
    data = b""
    while True:
        if stream is None:
            data = (data or raw.read(_BLOCK)).lstrip(b"\0")  # padding between streams
            if not data:
                if not (data := raw.read(_BLOCK)):
                    return
                continue
            stream = make_decompressor()
        if block := stream.decompress(data, _BLOCK):
            yield block
        data = b""
        if stream.eof:
            stream, data = None, stream.unused_data
        elif stream.needs_input and not (data := raw.read(_BLOCK)):
            raise EOFError("it ends before its end mark")


def _read_zst(raw: IO[bytes]) -> Iterator[bytes]:
    """Frame by frame, because the library's stream reader does not report a file that ends early.

    In small pieces, because the library unpacks all that it is given at once.
    """
    frame, unpacked, size = None, list[bytes](), 0
    while data := raw.read(_ZST_BLOCK):
        while data:
            frame = frame or zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
            unpacked.append(frame.decompress(data))
            size += len(unpacked[-1])
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
        if size >= _BLOCK:
            yield b"".join(unpacked)
            unpacked, size = [], 0
    if size:
        yield b"".join(unpacked)
    if frame is not None:
        raise EOFError("it ends before its end mark")


_DECOMPRESSORS: dict[str, Callable[[IO[bytes]], Iterator[bytes]]] = {
    ".gz": _read_gz,
    ".xz": functools.partial(_read_streams, lzma.LZMADecompressor),
    ".bz2": functools.partial(_read_streams, bz2.BZ2Decompressor),
    ".zst": _read_zst,
}
