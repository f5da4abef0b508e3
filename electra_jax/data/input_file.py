"""Input files, on this machine, in an object store or in an archive, read as blocks or lines of bytes.

Blocks and lines are decompressed as they are read, in bounded memory. Compression is detected by the first bytes.
"""

import codecs
import contextlib
import tarfile
import zipfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import IO, cast

from electra_jax.config.errors import UserError
from electra_jax.data import compression, formats
from electra_jax.data.compression import Readable
from electra_jax.data.documents import has_old_line_ends
from electra_jax.runtime import remote_files
from electra_jax.runtime.io import is_url

_BLOCK = 2**20  # bytes read at a time
# Compression and archives are detected by these bytes; a tar header has as many.
_MARK = 512
# A server may add a layer of compression to a compressed file; a file that contains itself has no last one.
_MOST_LAYERS = 3


def open_binary(name: str) -> IO[bytes]:
    """Opens a path or an address for reading.

    Raises:
      UserError: for an address, here and while it is read: the store refuses access or is unreachable.
    """
    return remote_files.open_file(name) if is_url(name) else open(name, "rb")


class InputFile:
    """A file that is decompressed as it is read, and can be read once.

    Attributes:
      name: its path or address; for a file in an archive, below that of the archive.
      line: number of the current line.
      position: bytes of the file on disk read so far.
      is_compressed: True if it is compressed, which is known once it is read.

    Raises:
      UserError: in `head`, `blocks` and `lines`, if the compressed data is broken or truncated.
    """

    def __init__(
        self, name: str | Path, opened: IO[bytes] | None = None, position: Callable[[], int] | None = None
    ) -> None:
        """Takes a file to open by name, or the open file of an archive and a function that returns its position."""
        self.name = str(name)
        self.line = 1
        self.position = 0
        self.is_compressed = False
        self._opened, self._tell = opened, position
        self._read = self._read_blocks()
        self._waiting: list[bytes] = []  # blocks of the head

    @property
    def place(self) -> str:
        return f"{self.name}:{self.line}"

    def head(self) -> bytes:
        """Returns the first `formats.HEAD` bytes or more, or all of a shorter file; `blocks` still begins with them."""
        size = sum(map(len, self._waiting))
        while size < formats.HEAD and (block := next(self._read, b"")):
            self._waiting.append(block)
            size += len(block)
        return b"".join(self._waiting)

    def blocks(self) -> Iterator[bytes]:
        """Yields the file from its beginning, without a byte order mark."""
        while self._waiting:
            yield self._waiting.pop(0)
        yield from self._read

    def text_blocks(self) -> Iterator[bytes]:
        """Yields the blocks of a text with LF or CRLF as line ends: LF replaces CR if lines end with CR alone."""
        if not has_old_line_ends(self.head()):
            yield from self.blocks()
            return
        held = b""
        for block in self.blocks():
            block = held + block
            # The next block may begin with the LF of this CR.
            held = block[-1:] if block.endswith(b"\r") else b""
            yield block[: len(block) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield held.replace(b"\r", b"\n")

    def close(self) -> None:
        """Closes the file, possibly before its end."""
        self._read.close()

    def _read_blocks(self) -> Generator[bytes, None, None]:
        with contextlib.nullcontext(self._opened) if self._opened else open_binary(self.name) as raw:
            tell = self._tell or raw.tell
            first = True
            try:
                for block in self._unpack(cast(Readable, raw)):
                    # In the file on disk, not in its text: progress is measured by the sizes of files.
                    self.position = tell()
                    # A byte order mark elsewhere is a character, which `shards.clean` removes.
                    yield block.removeprefix(codecs.BOM_UTF8) if first else block
                    first = False
            # `raw` may be a file in an archive.
            except (tarfile.TarError, zipfile.BadZipFile) as error:
                raise UserError(f"{self.place}: broken archive ({error}); download it again") from error
            except compression.ERRORS as error:
                # With an errno, the error is the system's and not the decompressor's.
                if isinstance(error, OSError) and error.errno is not None:
                    error.filename = error.filename or self.name
                    raise
                raise UserError(f"{self.place}: broken compressed file ({error}); download it again") from error

    def _unpack(self, raw: Readable) -> Iterator[bytes]:
        """Decompresses each layer that the first bytes show, or one layer if only the name shows compression."""
        data = raw
        for layer in range(_MOST_LAYERS + 1):
            mark = data.peek(_MARK)[:_MARK]
            found = compression.told_by(mark)
            # A name such as a.gz counts if the bytes show nothing: the decompressor then reports the damage.
            if not found and layer == 0 and not formats.magic(mark):
                found = compression.by_name(self.name)
                # A download that failed; an empty text that was compressed is not empty.
                if found and not mark:
                    raise EOFError("the file is empty")
            if not found:
                return compression.read_plain(data, _BLOCK)
            self.is_compressed = True
            data = compression.Stream(compression.decompress(found, data, _BLOCK))
        raise UserError(f"{self.name} is compressed more than {_MOST_LAYERS} times; unpack it")

    def lines(self, longest: int) -> Iterator[bytes]:
        """Yields lines without their LF; `line` is the number of the line yielded last.

        Raises:
          UserError: also if a line has more than `longest` bytes, before more of it is kept in memory.
        """
        # Joined once per line: a line of many blocks would be copied with each of them.
        rest: list[bytes] = []
        self.line = size = 0
        for block in self.text_blocks():
            first, *others = block.split(b"\n")
            rest.append(first)
            size += len(first)
            for following in others:
                self._check_length(size, longest)
                self.line += 1
                yield b"".join(rest)
                rest, size = [following], len(following)
            self._check_length(size, longest)
        # A last line without LF.
        if any(rest):
            self.line += 1
            yield b"".join(rest)

    def _check_length(self, size: int, longest: int) -> None:
        """Raises UserError if the line after the current one, with `size` bytes so far, is longer than `longest`."""
        if size > longest:
            raise UserError(
                f"{self.name}:{self.line + 1} is longer than {longest // 2**20} MB: expected one record per line; "
                "split the record, or convert the file to one record per line"
            )
