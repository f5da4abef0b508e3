"""What a run has learned: its parameters, read from its work directory."""

from pathlib import Path
from typing import Any, NamedTuple

import jax

from electra_jax import step, train_config
from electra_jax.config.errors import UserError
from electra_jax.data import tokenizer
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.objectives import registry
from electra_jax.objectives.spec import Objective
from electra_jax.runtime import run_log, sharding
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.sharded_step import ShardedStep
from electra_jax.train_config import TrainConfig


class RunCheckpoint(NamedTuple):
    """A run as one of its checkpoints has it.

    Attributes:
      config: its settings.
      tokenizer: its vocabulary.
      objective: its system and model.
      state: on the first device.
      progress: what was saved beside it, its `totals` and the key of its `corpus`.
    """

    config: TrainConfig
    tokenizer: Tokenizer
    objective: Objective
    state: step.TrainState
    progress: dict[str, Any]


def load(workdir: Path, at: int | None = None) -> RunCheckpoint:
    """The state that a run had at step `at`, or has at its last checkpoint.

    Raises:
      UserError: there is no run in `workdir`, or no such checkpoint, or its settings cannot be used.
    """
    config = _config(workdir)
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    try:
        last = _step(checkpoints, workdir, at)
        vocabulary = tokenizer.kept_in(workdir)
        program = _program(config, vocabulary)
        state = checkpoints.restore(last, program.state)
        return RunCheckpoint(config, vocabulary, program.objective, state, checkpoints.progress(last))
    finally:
        checkpoints.close()


def _config(workdir: Path) -> TrainConfig:
    """The config of a run, from its config.json."""
    try:
        return train_config.resolve(run_log.read_config(workdir))
    except UserError as error:
        raise UserError(
            f"{workdir / 'config.json'} has settings that this version of electra_jax cannot use ({error}); use the "
            "version that wrote it"
        ) from error


def _program(config: TrainConfig, vocabulary: Tokenizer) -> ShardedStep:
    """The step of a run, on the first device."""
    objective = registry.make(
        config.objective, config.model, config.steps, len(vocabulary), None, vocabulary.special, vocabulary.word_starts
    )
    here = sharding.make_mesh(sharding.ONE_DEVICE, config.batch_size, devices=jax.local_devices()[:1])
    return ShardedStep(config, objective, here)


def progress(workdir: Path, at: int | None = None) -> tuple[int, dict[str, Any]]:
    """The step of a checkpoint, the last or that of step `at`, and what was saved beside its state.

    Raises:
      UserError: there is no such checkpoint.
    """
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    try:
        step = _step(checkpoints, workdir, at)
        return step, checkpoints.progress(step)
    finally:
        checkpoints.close()


def _step(checkpoints: Checkpoints, workdir: Path, at: int | None) -> int:
    last = checkpoints.latest() if at is None else at
    if last is None:
        raise UserError(f"{workdir} has no checkpoint yet; let its run go on to the first")
    if last not in checkpoints.steps():
        there = ", ".join(map(str, checkpoints.steps()))
        raise UserError(f"{workdir} has no checkpoint of step {last}; there are those of {there}")
    return last
