"""Pre-trains a text encoder. Read it from top to bottom: set-up, compile, loop, finish.

Started again with the same settings, a run resumes from its last checkpoint and ends with the same bits in every
parameter as a run that was never interrupted.
"""

import sys

if __name__ == "__main__":  # `python -m electra_jax.train` is `electra-jax train`, which handles Ctrl-C during imports
    from electra_jax import __main__

    sys.exit(__main__.main(["train", *sys.argv[1:]]))

import contextlib
import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from electra_jax import evaluate, metrics, train_config
from electra_jax.config.errors import UserError
from electra_jax.data.tokenizer import Tokenizer
from electra_jax.downstream.finetuning.probe import Probe
from electra_jax.loading import samples
from electra_jax.metric_log import MetricLog
from electra_jax.modeling.subnetwork import extract
from electra_jax.objectives.segments import segment_at
from electra_jax.objectives.spec import Objective
from electra_jax.runtime import distributed, metric_writers, run_log, sharding
from electra_jax.runtime.compile_cache import compile_cache
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.workdir import AnyPath, WorkDir, resolve
from electra_jax.step import TrainState
from electra_jax.train_config import TrainConfig
from electra_jax.train_setup import Setup, set_up

_NOT_ENCODER = ("generator", "generator_head")  # parameters that the encoder does not need


class TrainResult(NamedTuple):
    """How a run ended.

    Attributes:
      step: the number of steps done.
      finished: whether these are all steps; otherwise the run was interrupted and saved.
      heldout: the last held-out metrics; empty if the run was interrupted.
      totals: `tokens`, `device_seconds`, `flops` since the first step.
      samples: held-out sentences with fakes and the encoder's probabilities; empty if the encoder predicts tokens.
    """

    step: int
    finished: bool
    heldout: dict[str, float]
    totals: dict[str, float]
    samples: list[list[samples.SampledWord]]


def pretrain(config: ConfigDict | TrainConfig, workdir: str | Path, progress: Progress | None = None) -> run_log.RunLog:
    """Pre-trains an encoder, or resumes the run in `workdir`.

    Args:
      config: a run, such as `electra_jax.configs.tiny(objective="mlm")`.
      workdir: the folder for checkpoints and logs, or gs://BUCKET/FOLDER.
      progress: receives the progress, for example `electra_jax.runtime.progress.ConsoleProgress()`; None: no output.

    Returns:
      The run's log: `.metrics` is a list with a dict for each logged step, `.heldout()` the last evaluation.

    Raises:
      UserError: the config, the text or the work directory cannot be used.
    """
    path = resolve(str(workdir))
    with compile_cache(train_config.as_dataclass(config).compile_cache):
        train(config, path, progress)
    return run_log.read_run_log(WorkDir(path).folder)


def train(config: ConfigDict | TrainConfig, workdir: AnyPath, progress: Progress | None = None) -> TrainResult:
    """Trains until `config.steps`, or until SIGTERM or Ctrl-C, and writes everything to `workdir`.

    Args:
      config: a run, see `configs/`.
      workdir: the run's work directory; a run that it already holds is resumed.
      progress: receives the progress; None: no output.

    Raises:
      UserError: the config, the text, the networks to start from or the work directory cannot be used; no checkpoint in
        `workdir` was changed.
    """
    progress = progress or Progress()
    setup = set_up(train_config.resolve(config), workdir, progress)
    config, home, data, state = setup.config, setup.home, setup.data, setup.state
    first, mesh, objective = int(state.step), setup.step.mesh, setup.step.objective
    probe = distributed.main_process_first(lambda: make_probe(config, data.corpus.tokenizer), others=lambda: None)

    ########## Compile #################################################################################################
    jit = functools.partial(setup.step.jit, out_shardings=sharding.replicated(mesh))
    train_steps = {segment.start: setup.step.compile(segment) for segment in setup.step.segments}
    evaluator = evaluate.Evaluator(objective, data.heldout, config.seed, data.put_whole, jit)
    gather = jit(lambda params: params)

    ########## Loop ####################################################################################################
    log = MetricLog(setup.step, home, first, setup.totals, data.epochs, progress)
    profile = metric_writers.Profile(home.folder, config.profile.at, config.profile.steps)
    window = metrics.MetricAccumulator()
    heldout: dict[str, float] = {}
    pending: metrics.Metrics | None = None
    with distributed.PreemptionGuard() as guard, progress, contextlib.closing(log):
        progress.start("step", config.steps, first)
        for step in range(first + 1, config.steps + 1):
            with window.waiting():
                batch = next(data.train)
            profile.before(step)
            segment = segment_at(setup.step.segments, step - 1)
            with jax.transfer_guard("disallow"):  # nothing but the batch moves between host and devices in a step
                state, measured = train_steps[segment.start](state, data.put(batch))
            if step == segment.stop and step < config.steps:
                state = setup.step.begin(segment_at(setup.step.segments, step), state)

            # The metrics of the previous step are read while this one runs: the devices never wait for the host ...
            if pending is not None:
                window.add(pending)
            pending = measured
            progress.update(step - 1)

            # ... except where they are needed now.
            due = what_is_due(config, step, guard.should_stop(step))
            if any(due):
                window.add(pending)
                pending = None
                measurements = window.close()
                check_finite(measurements.metrics["loss"], step)
                heldout = evaluator(state.params, step) if due.evaluation else {}
                probed = run_probe(probe, objective, gather, state) if due.probe else {}
                log.write(step, measurements, heldout, probed)
                if due.checkpoint:
                    save(setup, step, state, log.totals)
                window.restart()  # evaluating and saving are not training time
            if due.stop:
                break

    ########## Finish ##################################################################################################
    profile.close()
    if distributed.is_main_process():
        home.publish()
    setup.checkpoints.wait()
    setup.checkpoints.close()
    last = int(state.step)
    totals = {**log.totals, "flops": log.flops(last)["model"]}
    if last < config.steps:
        return TrainResult(last, False, {}, totals, [])
    heldout = heldout or evaluator(state.params, last)
    return TrainResult(last, True, heldout, totals, sample(setup, state))


class Due(NamedTuple):
    """What to do after a step, before the next one."""

    log: bool
    evaluation: bool
    probe: bool
    checkpoint: bool
    stop: bool


def what_is_due(config: TrainConfig, step: int, stopping: bool) -> Due:
    """What to do after `step`. After the last step: evaluate, probe and save. After an interrupted one: save."""
    done = step == config.steps

    def every(steps: int) -> bool:
        return steps > 0 and step % steps == 0

    return Due(
        log=every(config.log_every),
        evaluation=every(config.eval_every) or done,
        probe=config.probe.every > 0 and (every(config.probe.every) or done) and not stopping,
        checkpoint=every(config.checkpoint.every) or every(config.checkpoint.keep_every) or done or stopping,
        stop=stopping,
    )


def check_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise UserError(
            f"the loss is {loss} near step {step}: expected a finite number; earlier checkpoints are kept; start again "
            "with another --workdir and a lower config.optim.learning_rate or a longer config.optim.warmup_steps"
        )


def make_probe(config: TrainConfig, vocabulary: Tokenizer) -> Probe | None:
    return Probe(config.probe, config.model.max_length, vocabulary) if config.probe.every else None


def run_probe(
    probe: Probe | None, objective: Objective, gather: Callable[[Any], Any], state: TrainState
) -> dict[str, float]:
    """Downstream scores of the encoder. The main process measures them; all processes share their parameters."""
    kept = {name: tree for name, tree in state.params.items() if name not in _NOT_ENCODER}
    params = jax.device_get(gather(kept))

    def score() -> dict[str, float]:
        encoder = extract(objective.model.config, params, "encoder")
        assert probe is not None
        assert encoder is not None
        return probe(encoder)

    return distributed.main_process_first(score, others=dict)


def save(setup: Setup, step: int, state: TrainState, totals: dict[str, float]) -> None:
    """Starts to write a checkpoint, and publishes the files of the work directory."""
    if distributed.is_main_process():
        setup.home.publish()
    metadata = {"data": setup.data.train.get_state(), "totals": totals, "corpus": setup.data.corpus.key}
    setup.checkpoints.save(step, state, metadata)


def sample(setup: Setup, state: TrainState) -> list[list[samples.SampledWord]]:
    """Held-out sentences with fakes, and the encoder's probabilities; empty if the encoder predicts tokens."""
    if setup.step.objective.system.detect is None:
        return []
    return samples.sample_fakes(
        setup.step.objective,
        state.params,
        state.step,
        setup.data.corpus.heldout,
        setup.data.corpus.tokenizer,
        setup.config.data.seq_length,
        setup.config.seed,
        out_shardings=sharding.replicated(setup.step.mesh),
    )
