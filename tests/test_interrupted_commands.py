"""Ctrl-C and SIGTERM at random moments of real commands: one line, no traceback, and a status that tells the signal."""

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_runs import command, electra_jax_command, environment

LINE = "interrupted; run the same command again to continue\n"
SEEDS = range(4)  # for each command


class Outcome(NamedTuple):
    """How a command ended that was sent a signal, and what it printed."""

    kind: str
    status: int
    out: str
    err: str


def interrupt(arguments: list[str], seconds: float, seed: int) -> Outcome:
    """Starts a command and sends it a signal at a random moment of its first `seconds`.

    A terminal sends Ctrl-C to all processes of a command, and people press it more than once; a scheduler sends SIGTERM
    to one. The command writes nothing to the cache of compiled programs: JAX does not write its entries atomically.
    """
    draw = random.Random(seed)
    moment, times = draw.uniform(0, seconds), draw.choice([1, 1, 3])
    number = draw.choice([signal.SIGINT, signal.SIGTERM])
    # Where the tests run in the background of a shell, Ctrl-C is ignored, and children inherit that.
    arguments = ["env", "--default-signal=INT", *arguments]
    pipe = subprocess.PIPE
    env = {**environment(), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1e9"}
    started = subprocess.Popen(arguments, env=env, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
        out, err = started.communicate(timeout=moment)
        return Outcome("finished", started.returncode, out, err)
    for _ in range(times):
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGINT:
                os.killpg(started.pid, number)
            else:
                started.send_signal(number)
        time.sleep(0.05)
    out, err = started.communicate(timeout=120)
    told = f"{number.name} x {times} after {moment:.2f} s"
    if "interrupted and saved at step" in out:
        return Outcome(f"saved ({told})", started.returncode, out, err)
    if started.returncode == 0:
        return Outcome(f"finished ({told})", 0, out, err)
    return Outcome(told, started.returncode, out, err)


def is_startup_of_python(outcome: Outcome) -> bool:
    """Whether the signal came before electra_jax could handle it: nothing of the package is in the traceback."""
    return outcome.out == "" and (
        (outcome.err == "" and outcome.status < 0)
        or ("KeyboardInterrupt" in outcome.err and "in _run_in_own_process" not in outcome.err)
    )


def check(outcome: Outcome) -> None:
    if is_startup_of_python(outcome):
        return
    if outcome.kind.startswith(("finished", "saved")):
        assert outcome.err == "", outcome
        return
    assert outcome.err == LINE, outcome
    assert outcome.status == (130 if outcome.kind.startswith("SIGINT") else 143), outcome


def train(text_file: Path, folder: Path) -> list[str]:
    return command(text_file, folder, "--config.checkpoint.every=3")


def prepare(text: Path, folder: Path) -> list[str]:
    settings = ("--vocab_size=40", "--heldout_fraction=.1", "--shard_mb=1", "--workers=2")
    return electra_jax_command("prepare", f"--input={text}", f"--output={folder}", *settings)


def long_text(text_file: Path, folder: Path) -> Path:
    """A text of several shards, which worker processes encode."""
    path = folder / "long.txt"
    text = text_file.read_text()
    path.write_text("\n\n".join(text.replace("text", f"text{number}") for number in range(60)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "prepare"])
def test_a_signal_at_any_moment_is_one_line(name, text_file, tmp_path):
    def arguments(number: int) -> list[str]:
        folder = tmp_path / str(number)
        return train(text_file, folder) if name == "train" else prepare(long_text(text_file, tmp_path), folder)

    since = time.monotonic()
    assert subprocess.run(arguments(-1), env=environment(), capture_output=True, check=False).returncode == 0
    seconds = time.monotonic() - since
    for seed in SEEDS:
        check(interrupt(arguments(seed), seconds, seed))
