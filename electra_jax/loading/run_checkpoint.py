"""Loads a checkpoint of a run from its work directory."""

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from electra_jax import saved_config, train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import check_value, whole
from electra_jax.data import corpus, tokenizer
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.modeling.config import ElectraConfig
from electra_jax.objectives import registry
from electra_jax.objectives.spec import Objective, Params
from electra_jax.runtime import run_log, sharding
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.step import ShardedStep
from electra_jax.train_config import TrainConfig

# The metadata of step 0, which has no checkpoint. Its hash identifies the network (`networks.find_source`).
_NOTHING_DONE: dict[str, Any] = {"totals": {"tokens": 0.0, "device_seconds": 0.0, "skipped_steps": 0.0}}


class RunCheckpoint(NamedTuple):
    """A run at one of its checkpoints.

    Attributes:
      config: the run's settings.
      tokenizer: the run's tokenizer.
      objective: the run's objective and model.
      step: the number of steps done.
      params: the parameters, on the first device; at step 0 NumPy arrays.
      metadata: the rest of the checkpoint, such as its `totals` and the key of its `corpus`.
      averaged: the steps whose parameters are averaged.
    """

    config: TrainConfig
    tokenizer: Tokenizer
    objective: Objective
    step: int
    params: Params
    metadata: dict[str, Any]
    averaged: tuple[int, ...] = ()

    @property
    def shape(self) -> ElectraConfig:
        return trained_shape(self.config, self.objective, self.step)


def trained_shape(config: TrainConfig, objective: Objective, step: int) -> ElectraConfig:
    """Returns the config of the networks that a run has trained after `step` steps.

    It is float32 and chooses attention by the device, as exports do, with the length of the longest rows so far, and
    without an MLM head that no phase so far has trained.
    """
    shape = objective.model.config
    # In bfloat16 a run would answer with other numbers than its export; a CPU would interpret the kernels of `fused`.
    encoder, generator = (
        network and dataclasses.replace(network, dtype=jnp.dtype("float32"), attention="auto")
        for network in (shape.encoder, shape.generator)
    )
    assert encoder is not None
    done = train_config.phases_until(config, max(step, 1))
    heads = tuple(h for h in shape.heads if h != "mlm_head" or any(each.objective.encoder_weight for each in done))
    length = max(phase.length for phase in done)
    return dataclasses.replace(shape, encoder=encoder, generator=generator, heads=heads, trained_length=length)


def load_run_checkpoint(workdir: Path, step: int | None = None, average: int = 1) -> RunCheckpoint:
    """Loads the checkpoint of `step`, or the last one. Step 0 is never saved; its parameters are initialized again.

    Args:
      workdir: the run.
      step: the step; None: the last.
      average: the number of checkpoints up to `step` whose parameters are averaged.

    Raises:
      UserError: `workdir` is not a run, has no such checkpoint or too few, or has settings that this version does not
        know. Step 0 of a run with `init_from` or `generator_from` is refused, too.
    """
    config = read_config(workdir)
    with open_checkpoints(workdir) as checkpoints:
        step = _existing_step(checkpoints, workdir, step)
        # Step 0 is never saved, so there may be no checkpoint up to it.
        before = [each for each in checkpoints.steps() if each <= step] or [0]
        if not 1 <= average <= len(before):
            raise UserError(
                f"average={average} is invalid: expected a number from 1 to {len(before)}, the checkpoints of "
                f"{workdir} up to step {step}"
            )
        vocabulary = tokenizer.load_from_folder(workdir)
        sharded_step = step_on_one_device(config, vocabulary)
        if step == 0:
            if config.starts_from:
                raise UserError(f"{workdir} at step 0 has the parameters of {config.starts_from}; use that")
            params = sharded_step.fresh_params()
            return RunCheckpoint(config, vocabulary, sharded_step.objective, 0, params, _NOTHING_DONE)
        # Without Adam's moments, which are two thirds of a float32 checkpoint.
        like, averaged = {"params": sharded_step.state.params}, tuple(before[-average:])
        # A generator: each checkpoint is read when it is added, and freed afterwards.
        restored = (checkpoints.restore(each, like, partial=True)["params"] for each in (step, *averaged[:-1]))
        params = functools.reduce(functools.partial(jax.tree.map, jnp.add), restored)
        if average > 1:
            params = jax.tree.map(lambda x: x / average, params)
        return RunCheckpoint(
            config, vocabulary, sharded_step.objective, step, params, checkpoints.metadata(step), averaged
        )


def open_checkpoints(workdir: Path) -> contextlib.closing[Checkpoints]:
    """Returns a context manager with the checkpoints of a run, to be read."""
    return contextlib.closing(Checkpoints(workdir / "checkpoints", read_only=True))


def read_metadata(workdir: Path, step: int | None = None) -> tuple[int, dict[str, Any]]:
    """Returns the step of a checkpoint, by default the last, and its metadata.

    Raises:
      UserError: there is no such checkpoint.
    """
    with open_checkpoints(workdir) as checkpoints:
        step = _existing_step(checkpoints, workdir, step)
        # At step 0 the config stands for the weights, which are drawn from its seed: `find_source` digests this.
        return step, checkpoints.metadata(step) if step else _NOTHING_DONE | {"config": run_log.read_config(workdir)}


def corpus_folder(workdir: Path, run: RunCheckpoint) -> Path:
    """Returns the folder of the prepared corpus that a run was trained on.

    Raises:
      UserError: the corpus no longer exists, or its manifest is damaged.
    """
    key = str(run.metadata.get("corpus"))
    # The keys are compared, because another text may have been prepared at the input since.
    for folder in (workdir / "data" / key, Path(run.config.data.input)):
        if corpus.is_prepared(folder) and corpus.read_manifest(folder)["key"] == key:
            return folder
    raise UserError(
        f"the corpus of this run is neither in its folder nor, seen from here, {run.config.data.input}: it was "
        "deleted, or the command was started in another folder than the run"
    )


def saved_steps(workdir: Path) -> list[int]:
    """Returns the steps of a run's checkpoints, in ascending order."""
    with open_checkpoints(workdir) as checkpoints:
        return checkpoints.steps()


def read_config(workdir: Path) -> TrainConfig:
    """Returns the settings of a run. Settings that were added since it began have their defaults.

    Raises:
      UserError: `workdir` is not a run, or has settings that this version does not know.
    """
    settings = run_log.read_config(workdir)
    try:
        return train_config.resolve(saved_config.with_later_settings(settings), of_a_run=True)
    except UserError as error:
        raise UserError(
            f"{workdir / 'config.json'} has settings that this version of electra_jax cannot use ({error}); use the "
            "version that wrote it"
        ) from error


def step_on_one_device(config: TrainConfig, vocabulary: Tokenizer) -> ShardedStep:
    """Builds the train step on the first local device; its state has the shapes to restore."""
    objective = registry.make(
        config.objective, config.model, config.steps, len(vocabulary), None, vocabulary.special, vocabulary.word_starts
    )
    # One device, whatever the run's mesh was: Orbax restores into any sharding.
    mesh = sharding.make_mesh(sharding.ONE_DEVICE, config.batch_size, devices=jax.local_devices()[:1])
    return ShardedStep(config, objective, mesh)


def _existing_step(checkpoints: Checkpoints, workdir: Path, step: int | None) -> int:
    """Returns `step`, or the last step if it is None. Raises UserError if there is no such checkpoint."""
    latest = checkpoints.latest()
    if latest is None:
        raise UserError(f"{workdir} has no checkpoint yet; continue the run until its first checkpoint")
    step = latest if step is None else step
    check_value("step", step, whole(0))
    if step and step not in checkpoints.steps():  # step 0 is never saved
        steps = ", ".join(map(str, checkpoints.steps()))
        raise UserError(f"{workdir} has no checkpoint of step {step}; expected one of {steps}")
    return step
