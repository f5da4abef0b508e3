"""What a run has learned: its parameters, read from its work directory."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from electra_jax import runs, sharding, step
from electra_jax.checkpoint import Checkpoints
from electra_jax.data import tokenizer
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.errors import UserError
from electra_jax.objectives import table
from electra_jax.objectives.system import Objective
from electra_jax.program import Program


class Trained(NamedTuple):
    """A run as one of its checkpoints has it.

    Attributes:
      config: its settings.
      tokenizer: its vocabulary.
      objective: its system and model.
      state: on the first device.
      progress: what was saved beside it, its `totals` and the key of its `corpus`.
    """

    config: ConfigDict
    tokenizer: Tokenizer
    objective: Objective
    state: step.TrainState
    progress: dict[str, Any]


def load(workdir: Path, at: int | None = None) -> Trained:
    """The state that a run had at step `at`, or has at its last checkpoint.

    Raises:
      UserError: there is no run in `workdir`, or no such checkpoint, or its settings cannot be used.
    """
    config = ConfigDict(runs.settings_of(workdir))
    checkpoints = Checkpoints(workdir / "checkpoints", read_only=True)
    try:
        last = _step(checkpoints, workdir, at)
        vocabulary = tokenizer.kept_in(workdir)
        try:
            program = _program(config, vocabulary)
            like = program.state
        except (AttributeError, KeyError, TypeError) as error:  # what its config lacks, or has as something else
            raise UserError(
                f"{workdir / 'config.json'} has settings that this version of electra_jax cannot use "
                f"({type(error).__name__}: {error}); use the version it was made with, and --debug to see where"
            ) from error
        state = checkpoints.restore(last, like)
        return Trained(config, vocabulary, program.objective, state, checkpoints.progress(last))
    finally:
        checkpoints.close()


def _program(config: ConfigDict, vocabulary: Tokenizer) -> Program:
    """The step of a run, on the first device."""
    objective = table.make(config, len(vocabulary), None, vocabulary.special, vocabulary.word_starts)
    here = sharding.make_mesh(dict.fromkeys(sharding.AXES, 1), config.batch_size, devices=jax.local_devices()[:1])
    return Program(config, objective, here)


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
