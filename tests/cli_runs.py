"""Small runs for tests: configs, and commands in this process or in child processes."""

import contextlib
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.objectives import registry
from electra_jax.objectives.spec import Objective
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.runtime.console import PlainConsole
from electra_jax.runtime.progress import ConsoleProgress
from electra_jax.runtime.workdir import LOCK
from electra_jax.train_config import TrainConfig

ROOT = Path(__file__).parent.parent
_DURATION = re.compile(rb'"seconds": [0-9.e-]+')  # of training a seed; nothing else may differ


def small_config(text: Path | None = None, arg: str = "", **overrides: Any) -> ConfigDict:
    """configs/tiny.py:runlocal,ARG with Adam, on `text` if given, with settings by their dotted names."""
    config = config_file.load(ROOT / "configs" / "tiny.py", f"runlocal,{arg}")
    config.model.unroll = "false"  # this and Adam compile faster
    config.optim.update(name="adam", learning_rate=3e-3)
    if text is not None:
        config.update_from_flattened_dict(
            {"data.input": str(text), "data.vocab_size": 40, "data.heldout_fraction": 0.1}
        )
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in overrides.items()})
    return config


def make_objective(config: ConfigDict | TrainConfig, vocab_size: int, *more: Any) -> Objective:
    """The objective of a config; `more` as `registry.make` takes it."""
    c = train_config.as_dataclass(config)
    return registry.make(c.objective, c.model, c.steps, vocab_size, *more)


def electra_jax_command(*arguments: str) -> list[str]:
    """The command line of `electra-jax`."""
    return [sys.executable, "-m", "electra_jax", *arguments]


def train_arguments(text: Path, workdir: Path, *arguments: str, config: str = "tiny", arg: str = "") -> list[str]:
    """The arguments of `electra-jax train` for a small run on `text`; `arg` is a further argument of the config."""
    return [
        *(f"--config={ROOT}/configs/{config}.py:runlocal,{arg}", f"--workdir={workdir}"),
        *(f"--config.data.input={text}", "--config.data.vocab_size=40", "--config.data.heldout_fraction=.1"),
        *("--config.model.unroll=false", "--config.optim.name=adam", "--config.optim.learning_rate=.003"),
        *arguments,
    ]


def command(text: Path, workdir: Path, *arguments: str, config: str = "tiny", arg: str = "") -> list[str]:
    """The command line of a small training run; the arguments are those of `train_arguments`."""
    return electra_jax_command("train", *train_arguments(text, workdir, *arguments, config=config, arg=arg))


def prepare_arguments(text: Path, output: Path, *arguments: str) -> list[str]:
    """The arguments of `electra-jax` for a small corpus of `text`."""
    options = ("--vocab_size=40", "--heldout_fraction=.1", "--shard_mb=1")
    return ["prepare", f"--input={text}", f"--output={output}", *options, *arguments]


def environment(devices: int = 1) -> dict[str, str]:
    """The environment of a child process: so many fake CPU devices, no colors, this checkout first on its path."""
    return {
        **os.environ,
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}".strip(),
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": os.environ["ELECTRA_JAX_TESTS_CACHE"],
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "200",
    }


def run(arguments: list[str], devices: int = 1, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command line to its end."""
    env = environment(devices)
    return subprocess.run(arguments, capture_output=True, text=True, env=env, timeout=600, check=False, **options)


def quiet() -> ConsoleProgress:
    """A report that nobody sees."""
    return ConsoleProgress(PlainConsole(quiet=True))


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A path of this test session that `make` makes, once for all of its processes."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made_once"
    folder.mkdir(exist_ok=True)
    target = folder / name
    with target.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            unfinished = Path(tempfile.mkdtemp(dir=folder))
            make(unfinished)
            unfinished.rename(target)
    return target


def sst2_files(folder: Path) -> Path:
    """Writes the files of a small SST-2 to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"the model reads {words}\t{i % 2}" for i, words in enumerate(["a line", "of text", "this", "word"] * 3)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return folder


def logged(workdir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def arrays(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """Every array of the train state at `step`, by its path in the state."""
    with contextlib.closing(Checkpoints(workdir / "checkpoints", read_only=True)) as checkpoints:
        state = jax.device_get(checkpoints.restore(step, checkpoints.saved_arrays(step)))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {"." + jax.tree_util.keystr(path, simple=True, separator="."): value for path, value in leaves}


def assert_same_bits(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], told: str = "") -> None:
    """Compares two results of `arrays`; `told` is added to the message of a failure."""
    assert found.keys() == wanted.keys(), told
    for name, value in found.items():
        np.testing.assert_array_equal(value, wanted[name], err_msg=f"{name} {told}")


def contents(folder: Path, *patterns: str) -> dict[str, bytes]:
    """The files under a folder that match, by their paths in it, without the lock, which names a process."""
    found = {path for pattern in patterns or ("*",) for path in folder.rglob(pattern) if path.is_file()}
    found = {path for path in found if path.name != LOCK}
    return {str(path.relative_to(folder)): _DURATION.sub(b"", path.read_bytes()) for path in found}


# The environment of process `number` of `count`, as a cluster sets it.
_CLUSTERS: dict[str, Callable[[int, int], dict[str, str]]] = {
    "slurm": lambda number, count: {
        "SLURM_JOB_ID": "7",
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": str(count),
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(number),
        "SLURM_STEP_NUM_NODES": "1",
    },
    "ompi": lambda number, count: {
        "OMPI_MCA_orte_hnp_uri": "4096.0;tcp://127.0.0.1:1",
        "OMPI_COMM_WORLD_SIZE": str(count),
        "OMPI_COMM_WORLD_RANK": str(number),
        "OMPI_COMM_WORLD_LOCAL_RANK": str(number),
    },
}


def free_port() -> int:
    """A TCP port that no process listens on."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def processes(
    text: Path,
    workdir: Path,
    count: int,
    *arguments: str,
    devices: int = 1,
    cluster: str = "",
    programs: Mapping[int, str] | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """A run of `count` processes on this machine with `devices` devices each; kills those left over at the end.

    Process I prints to `workdir`-I.out and .err. With `cluster`, slurm or ompi, the processes get their number from the
    variables of that cluster instead of from options. `programs` are Python programs that some processes run instead.
    """
    port = free_port()
    started = []
    try:
        for number in range(count):
            options = [f"--coordinator=localhost:{port}", f"--processes={count}", f"--process={number}"]
            env = environment(devices)
            if cluster:
                options, env = [], {**env, **_CLUSTERS[cluster](number, count), "JAX_COORDINATOR_PORT": str(port)}
            argv = command(text, workdir, *options, *arguments)
            if programs and number in programs:
                argv[1:3] = ["-c", programs[number]]
            with open(f"{workdir}-{number}.out", "w") as out, open(f"{workdir}-{number}.err", "w") as err:
                started.append(subprocess.Popen(argv, stdout=out, stderr=err, text=True, env=env))
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def until(condition: Callable[[], bool], seconds: float = 600) -> None:
    """Waits until `condition` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition did not hold within {seconds} seconds"
        time.sleep(0.1)
