"""Commands that send themselves a signal at a named point of what they do to files.

`Commands` starts a process that imports the package, and forks a child for each command: importing takes longer than
anything else that these commands do. A child tells a log each point that it reaches, so a test that names one which is
not reached shows those that are.
"""

import contextlib
import fnmatch
import functools
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

LIMIT = 600  # seconds that a command may take
_DRIVER = Path(__file__).resolve()
_COMMANDS = ("train", "prepare", "finetune", "curves", "export")
_ANY = (signal.SIGINT, signal.SIGTERM)


class Point(NamedTuple):
    """A moment in the life of a command.

    Attributes:
      when: `before` or `after` an operation; `half`: of what is written to a file, half is there.
      operation: `rename`, also by `os.replace`; `remove`, of a file; `remove_tree`; `write`, of a whole file by
        `pathlib`; or a function of the package, as `module:function`.
      path: pattern of the last parts of the path, of the new one of a rename.
      time: how many such operations there are up to the one that is meant.
      number: the signal.
    """

    when: str
    operation: str
    path: str = ""
    time: int = 1
    number: int = signal.SIGKILL

    def __str__(self) -> str:
        return " ".join(filter(None, (self.when, self.operation, self.path)))


class Done(NamedTuple):
    """How a command ended, what it printed, and the points that it reached."""

    status: int
    out: str
    err: str
    points: list[str]


class Commands:
    """A process that forks commands."""

    def __init__(self, env: dict[str, str], folder: Path):
        """Starts the process.

        Args:
          env: its environment.
          folder: for what commands print.
        """
        self._files = {name: folder / name for name in ("out", "err", "points")}
        self._process = subprocess.Popen(
            [sys.executable, str(_DRIVER)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, argv: Sequence[str], point: Point | None = None) -> Done:
        """Runs `electra-jax ARGV`, which sends itself a signal at `point`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        request = {"argv": argv, "point": point, "files": {name: str(path) for name, path in self._files.items()}}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        assert select.select([self._process.stdout], [], [], LIMIT)[0], f"{argv[0]} has not ended after {LIMIT} s"
        status = json.loads(self._process.stdout.readline())
        out, err, points = (path.read_text() for path in self._files.values())
        return Done(status, out, err, points.splitlines())

    def close(self) -> None:
        """Ends the process, and a command that has not ended."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@contextlib.contextmanager
def commands(env: dict[str, str], folder: Path) -> Iterator[Commands]:
    """`Commands` that end with the block."""
    with contextlib.closing(Commands(env, folder)) as started:
        yield started


def kill(commands: Commands, argv: Sequence[str], point: Point) -> None:
    """Runs a command that is killed at a point."""
    done = commands.run(argv, point)
    assert done.status == -point.number, f"{point} was not reached ({done.status})\n{done.err}\n" + "\n".join(
        done.points
    )


def finish(commands: Commands, argv: Sequence[str]) -> Done:
    """Runs a command to its end."""
    done = commands.run(argv)
    assert done.status == 0, done.err
    return done


# What follows runs in the process that forks, and in its children.


def _serve() -> None:
    import warnings

    for name in _COMMANDS:
        importlib.import_module(f"electra_jax.commands.{name}")
    for name in ("console_errors", "host_memory", "jax_errors"):  # as __main__ does
        importlib.import_module(f"electra_jax.runtime.{name}")
    # JAX warns of forks. Nothing has made its threads yet.
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    replies = os.fdopen(os.dup(1), "w")
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            replies.close()
            _be(json.loads(line))
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=replies, flush=True)


def _be(request: dict[str, Any]) -> None:
    """Becomes a command."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = {name: os.open(path, flags | os.O_APPEND) for name, path in request["files"].items()}
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(files["out"], 1)
    os.dup2(files["err"], 2)
    for number in _ANY:  # the tests may run in the background of a shell, where Ctrl-C is ignored
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    point = Point(*request["point"]) if request["point"] else None
    if point is not None:
        # A command that is killed writes no compiled programs: JAX does not write them atomically.
        sys.modules["jax"].config.update("jax_persistent_cache_min_compile_time_secs", 1e9)
    _instrument(_Reached(point, files["points"]))
    from electra_jax import __main__

    sys.exit(__main__.main(request["argv"]))


class _Reached:
    """Tells the log each point, and sends the signal at the one that was asked for."""

    def __init__(self, point: Point | None, log: int):
        self.point, self._log, self._count = point, log, 0

    def __call__(self, when: str, operation: str, path: str = "") -> None:
        os.write(self._log, f"{when} {operation} {path}\n".encode())
        if self.is_asked(when, operation, path):
            self._count += 1
            if self._count == self.point.time:
                os.kill(os.getpid(), self.point.number)

    def is_asked(self, when: str, operation: str, path: str) -> bool:
        wanted = self.point
        if wanted is None or (when, operation) != (wanted.when, wanted.operation):
            return False
        return path == wanted.path or fnmatch.fnmatch(path, f"*/{wanted.path}")


def _instrument(reached: _Reached) -> None:
    _wrap(reached, "rename", (os, "rename"), (os, "replace"), path=lambda old, new, **_: new)
    _wrap(reached, "remove", (os, "remove"), (os, "unlink"), path=lambda path, **_: path)
    _wrap(reached, "remove_tree", (shutil, "rmtree"), path=lambda path, *_, **__: path)
    _wrap(reached, "write", (Path, "write_text"), (Path, "write_bytes"), path=lambda path, *_, **__: path)
    if reached.point is None:
        return
    if ":" in reached.point.operation:
        module, _, name = reached.point.operation.partition(":")
        owner = importlib.import_module(module)
        *parents, last = name.split(".")
        _wrap(reached, reached.point.operation, (functools.reduce(getattr, parents, owner), last))


def _wrap(reached: _Reached, operation: str, *places: tuple[Any, str], path: Callable[..., Any] | None = None) -> None:
    for owner, name in places:
        setattr(owner, name, _reaching(reached, operation, getattr(owner, name), path))


def _reaching(
    reached: _Reached, operation: str, function: Callable[..., Any], path: Callable[..., Any] | None
) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        at = os.fsdecode(path(*args, **kwargs)) if path is not None else ""
        reached("before", operation, at)
        if operation == "write" and reached.is_asked("half", operation, at):
            function(args[0], args[1][: len(args[1]) // 2], *args[2:], **kwargs)
            reached("half", operation, at)
        result = function(*args, **kwargs)
        reached("after", operation, at)
        return result

    return call


if __name__ == "__main__":
    sys.path.remove(str(_DRIVER.parent))  # `python FILE` puts it first, and the package is on PYTHONPATH
    _serve()
