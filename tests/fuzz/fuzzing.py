"""Mutations of inputs, and what holds of a command whatever it is given."""

import collections
import contextlib
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from electra_jax.config import errors

# The percentage of all cases that each kind gets.
SHARES = {"command_lines": 45, "corpora": 20, "models": 15, "runs": 15, "settings": 5}
ALLOWED = (0, errors.EXIT_BROKEN_PIPE, errors.EXIT_USER_ERROR, 130)
LIMIT = 60  # seconds that a case may take

NUMBERS = (
    *("0", "-1", "1", "2", "0.5", "1e-45", "1e-300", "1e38", "3e38", "1e308", "nan", "inf", "-inf", "-0.0", "1e5"),
    *("9" * 400, "1" + "0" * 30, "2147483648", "9223372036854775808", "-9223372036854775809"),
)
STRINGS = ("", " ", "\u202e", "\x1b[31m", "x" * 300, "None", "true", "[]", "{}", "é\u0301", "\ud800", "a\0b", "=", "%s")


class Fuzz:
    """The cases of one kind, and the check of each.

    Attributes:
      random: draws the cases.
      ended: how many commands ended with each status.
    """

    def __init__(self, request: pytest.FixtureRequest, kind: str, folder: Path):
        """The cases of a kind, one of SHARES; commands run in an empty folder of `folder`."""
        self._cases, seed = (request.config.getoption(name) for name in ("--fuzz-cases", "--fuzz-seed"))
        self.random = random.Random(f"{seed} {kind}")
        self.ended: collections.Counter[int] = collections.Counter()
        self._kind, self._seed, self._folder = kind, seed, folder
        self._capsys = request.getfixturevalue("capsys")
        patch = request.getfixturevalue("monkeypatch")
        self._cwd, self._home = folder / "cwd", folder / "home"
        for path in (self._cwd, self._home):
            path.mkdir()
        patch.chdir(self._cwd)
        patch.setenv("HOME", str(self._home))
        patch.delenv("XDG_CACHE_HOME", raising=False)

    def __iter__(self) -> Iterator[int]:
        """The numbers of the cases."""
        count = max(1, self._cases * SHARES[self._kind] // 100)
        yield from range(count)
        # Cases that are all refused, or all accepted, would test little.
        if count > 10 and self.ended:
            assert len(self.ended) > 1, self.told(count, dict(self.ended))
        print(f"{self._kind}: {count} cases, ended with {dict(self.ended)}")

    def told(self, case: int, what: object, text: str = "") -> str:
        """What an assertion says, and how to repeat it."""
        repeat = f"pytest -m night tests/fuzz -k {self._kind} --fuzz-cases={self._cases} --fuzz-seed={self._seed}"
        return f"case {case}: {what!r}\n{text}\nrepeat with: {repeat}"

    def check(self, case: int, main: Callable[[list[str]], int | None], argv: list[str], what: object = "") -> int:
        """Runs a command, and fails unless it ends in time with a result or with one line; returns its status."""
        what = (main.__module__.rpartition(".")[2], argv, what)
        self._capsys.readouterr()
        try:
            with limit(LIMIT):
                status = errors.run(main, argv)
        except BaseException as error:
            raise AssertionError(self.told(case, what, f"{type(error).__name__}: {error}"[:2000])) from error
        self.ended[status] += 1
        err = self._capsys.readouterr().err
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert status in ALLOWED, self.told(case, what, f"status {status}: {err}")
        assert "Traceback" not in err, self.told(case, what, err)
        assert len(lines) == (status == errors.EXIT_USER_ERROR), self.told(case, what, f"status {status}: {err!r}")
        assert not list(self._home.iterdir()), self.told(case, what, "something was written to the home folder")
        asked = {Path(value).parts[0] for value in [arg.partition("=")[2] or arg for arg in argv] if Path(value).parts}
        for path in self._cwd.iterdir():
            assert path.name in asked, self.told(case, what, f"{path.name} was written to the current folder")
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return status

    def mutate(self, data: bytes) -> bytes:
        """Bytes with one to three mistakes: flipped, cut off, repeated, left out, or replaced by odd ones."""
        for _ in range(self.random.randint(1, 3)):
            at, size = self.random.randrange(len(data) + 1), self.random.choice((1, 1, 4, 64))
            end = min(at + size, len(data))
            match self.random.randrange(6):
                case 0:
                    data = (
                        data[:at] + bytes(byte ^ (1 << self.random.randrange(8)) for byte in data[at:end]) + data[end:]
                    )
                case 1:
                    data = data[:at]
                case 2:
                    data = data[:at] + data[at:end] * 3 + data[end:]
                case 3:
                    data = data[:at] + data[end:]
                case 4:
                    odd = self.random.choice(
                        (b"\xff\xfe", b"\x00", b"\xed\xa0\x80", b"\x1b]0;x\x07", b"\r", b"\xef\xbb\xbf")
                    )
                    data = data[:at] + odd + data[at:]
                case 5:
                    odd = self.random.choice((*NUMBERS, *STRINGS)).encode("utf-8", "surrogatepass")
                    data = data[:at] + odd + data[end:]
        return data


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raises AssertionError in the main thread after so many seconds."""

    def late(number: int, frame: object) -> None:
        # Not TimeoutError, an error of the operating system that a command reports in one line.
        raise AssertionError(f"still at work after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
