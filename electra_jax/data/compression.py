"""Detects compression by the first bytes, and decompresses block by block in bounded memory."""

import bz2
import functools
import gzip
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, Protocol, cast

import zstandard

# What the libraries raise on broken data; an OSError with an errno is the system's.
ERRORS = (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError)

# 4 bytes can encode a block of 128 KiB (RFC 8878, 3.1.1.2), so these 1,024 bytes unpack to at most 32 MiB.
_ZST_PIECE = 2**10
_MAGIC = {
    ".gz": rb"\x1f\x8b",
    ".xz": rb"\xfd7zXZ\0",
    ".bz2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",  # the latter has no block: an empty text
    ".zst": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",  # a frame, or a skippable frame, which pzstd writes
}


SUFFIXES = tuple(_MAGIC)


class Readable(Protocol):
    """Input of `decompress`: an open file, or a `Stream`."""

    def read(self, size: int, /) -> bytes: ...

    def peek(self, size: int, /) -> bytes: ...


class Stream:
    """A sequential file over an iterator of blocks."""

    def __init__(self, blocks: Iterator[bytes]):
        self._blocks, self._data, self._at = blocks, b"", 0

    def peek(self, size: int, /) -> bytes:
        """Returns the next `size` bytes without consuming them; fewer at the end."""
        while len(self._data) - self._at < size and (block := next(self._blocks, b"")):
            self._data, self._at = self._data[self._at :] + block, 0
        return self._data[self._at : self._at + size]

    def read(self, size: int, /) -> bytes:
        """Reads at most `size` bytes; returns none at the end."""
        if self._at == len(self._data):
            self._data, self._at = next(self._blocks, b""), 0
        # From one block only, so there may be fewer bytes than asked for before the end, as in a raw file.
        taken = self._data[self._at : self._at + size]
        self._at += len(taken)
        return taken


def told_by(head: bytes) -> str:
    """Returns the compression suffix (".gz") for a file with these first bytes; empty if it is not compressed."""
    return next((suffix for suffix, magic in _MAGIC.items() if re.match(magic, head)), "")


def by_name(name: str) -> str:
    """Returns the compression suffix that a file name has; empty if it has none."""
    ending = os.path.splitext(name)[1].lower()
    return ending if ending in _MAGIC else ""


def read_plain(raw: Readable, block: int) -> Iterator[bytes]:
    """Yields blocks of at most `block` bytes."""
    while data := raw.read(block):
        yield data


def decompress(suffix: str, raw: Readable, block: int) -> Iterator[bytes]:
    """Decompresses a file block by block.

    Args:
      suffix: the compression, one of `SUFFIXES`.
      raw: the file.
      block: bytes read at a time.

    Raises:
      EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError: the data is broken or ends early.
    """
    return _DECOMPRESSORS[suffix](raw, block)


def _read_gz(raw: Readable, block: int) -> Iterator[bytes]:
    # Unlike lzma.open and bz2.open, gzip refuses trailing data that is no stream.
    return read_plain(gzip.open(cast(IO[bytes], raw)), block)


def _read_streams(make_decompressor: Callable[[], Any], raw: Readable, block: int) -> Iterator[bytes]:
    """Decompresses concatenated streams. Trailing data must be a stream, which lzma.open and bz2.open do not check."""
    stream: Any = None
    data = b""
    while True:
        if stream is None:
            # Zeros may pad the file between streams (the .xz file format, 2.2).
            data = (data or raw.read(block)).lstrip(b"\0")
            if not data:
                if not (data := raw.read(block)):
                    return
                continue
            stream = make_decompressor()
        # At most `block` bytes at a time: a small file may unpack to gigabytes.
        if unpacked := stream.decompress(data, block):
            yield unpacked
        data = b""
        if stream.eof:
            stream, data = None, stream.unused_data
        elif stream.needs_input and not (data := raw.read(block)):
            raise EOFError("it ends before its end mark")


def _read_zst(raw: Readable, block: int) -> Iterator[bytes]:
    """Decompresses frame by frame, because the library's stream reader does not report a truncated file."""
    frame, unpacked, size = None, list[bytes](), 0
    # Small pieces, because the library unpacks everything that it is given at once.
    while data := raw.read(_ZST_PIECE):
        while data:
            # The largest window there is, as `zstd --long=31` writes; the library's default limit is smaller.
            frame = frame or zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj()
            unpacked.append(frame.decompress(data))
            size += len(unpacked[-1])
            data = b""
            if frame.eof:
                data, frame = frame.unused_data, None
        if size >= block:
            yield b"".join(unpacked)
            unpacked, size = [], 0
    if size:
        yield b"".join(unpacked)
    if frame is not None:
        raise EOFError("it ends before its end mark")


_DECOMPRESSORS: dict[str, Callable[[Readable, int], Iterator[bytes]]] = {
    ".gz": _read_gz,
    ".xz": functools.partial(_read_streams, lzma.LZMADecompressor),
    ".bz2": functools.partial(_read_streams, bz2.BZ2Decompressor),
    ".zst": _read_zst,
}
