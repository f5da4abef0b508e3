"""Pre-trains a text encoder. Read it from top to bottom: set-up, compile, loop, finish.

A run that is restarted with the same settings resumes from its last checkpoint, and its final parameters have the same
bits as those of an uninterrupted run.
"""

import sys

# `python -m electra_jax.train` is `electra-jax train`, which handles Ctrl-C during the imports.
if __name__ == "__main__":
    from electra_jax import __main__

    sys.exit(__main__.main(["train", *sys.argv[1:]]))

import contextlib
import faulthandler
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from ml_collections import ConfigDict

from electra_jax import evaluate, guard, metrics, train_config
from electra_jax.config.errors import UserError
from electra_jax.loading import samples
from electra_jax.metric_log import MetricLog
from electra_jax.objectives.segments import segment_at
from electra_jax.objectives.spec import Params
from electra_jax.runtime import distributed, goodput, jax_errors, metric_writers, run_log, sharding
from electra_jax.runtime.compile_cache import compile_cache
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.rewind import Rewind
from electra_jax.runtime.workdir import AnyPath, WorkDir, resolve
from electra_jax.step import LESS_MEMORY, TrainState, check_memory
from electra_jax.train_config import TrainConfig
from electra_jax.train_setup import Setup, set_up

if TYPE_CHECKING:
    from electra_jax.loading.model import Model

# Seconds after which a step that has not ended prints the Python stacks of all threads.
_HANG = 300.0
# A file descriptor: faulthandler writes without Python, and the stderr of a notebook has none.
_STDERR = 2
_NOT_ENCODER = ("generator", "generator_head")  # parameters that the encoder does not need

# (every, function): after every `every` steps and after the last one, the main process calls function(step, model) with
# the current encoder, and logs the numbers that it returns, by name.
Hook = tuple[int, Callable[[int, "Model"], Mapping[str, float] | None]]


class TrainResult(NamedTuple):
    """Result of a run, finished or interrupted.

    Attributes:
      step: the number of steps done.
      finished: whether these are all steps; otherwise the run was interrupted and saved.
      heldout: the last held-out metrics; empty if the run was interrupted.
      totals: `metrics.TOTALS` and `flops` since the first step, and `goodput.Clock.totals` over all restarts.
      samples: held-out sentences with fakes and the encoder's probabilities; empty if the encoder predicts tokens.
    """

    step: int
    finished: bool
    heldout: dict[str, float]
    totals: dict[str, float]
    samples: list[list[samples.SampledWord]]


def pretrain(
    config: ConfigDict | TrainConfig,
    workdir: str | Path,
    progress: Progress | None = None,
    rewind_to: int | None = None,
    skip_batches: int = 0,
    hooks: Sequence[Hook] = (),
) -> run_log.RunLog:
    """Pre-trains an encoder, or resumes the run in `workdir`.

    Args:
      config: a run, such as `electra_jax.configs.tiny(objective="mlm")`.
      workdir: the folder for checkpoints and logs, or gs://BUCKET/FOLDER.
      progress: receives the progress, for example `electra_jax.runtime.progress.ConsoleProgress()`; None: no output.
      rewind_to: go back to the checkpoint of this step and delete all later ones.
      skip_batches: with `rewind_to`: the number of batches after that step to skip.
      hooks: pairs `(every, function)`. After every `every` steps, and after the last one, `function(step, model)` is
        called with the encoder as a `Model`; it returns numbers to log, by name, or None. With several processes only
        the main process calls it. Its time is counted as evaluation. It is not called when a signal stops the run.

    Returns:
      The run's log: `.metrics` is a list with a dict for each logged step, `.heldout()` the last evaluation.

    Raises:
      UserError: the config, the text or the work directory cannot be used; or a hook returned a name that the run logs
        itself, or a value that is not a number.

    Example:
      >>> def pairs(step, model):
      ...     a, b = model.encode(["a cat sleeps", "the cat is asleep"])
      ...     return {"pair_cosine": float(a @ b / np.sqrt((a @ a) * (b @ b)))}
      >>> run = electra_jax.pretrain(config, workdir="runs/pairs", hooks=[(500, pairs)])  # doctest: +SKIP
    """
    if rewind_to is None and skip_batches:
        raise UserError(f"skip_batches={skip_batches} has no effect without rewind_to; give both or neither")
    path = resolve(str(workdir))
    with compile_cache(train_config.as_dataclass(config).compile_cache):
        asked = None if rewind_to is None else Rewind(rewind_to, skip_batches)
        train(config, path, progress, asked, hooks=hooks)
    home = WorkDir(path)

    def fetch_and_read() -> run_log.RunLog:
        # On gs://, each host has a local folder, which only process 0 has filled.
        with home.lock_data_folder():
            home.fetch()
            return run_log.read_run_log(home.folder)

    return distributed.main_process_first(lambda: run_log.read_run_log(home.folder), others=fetch_and_read)


def train(
    config: ConfigDict | TrainConfig,
    workdir: AnyPath,
    progress: Progress | None = None,
    rewind: Rewind | None = None,
    clock: goodput.Clock | None = None,
    hooks: Sequence[Hook] = (),
) -> TrainResult:
    """Trains until `config.steps`, or until SIGTERM or Ctrl-C, and writes everything to `workdir`.

    Args:
      config: a run, see `configs/`.
      workdir: the run's work directory; a run that it already holds is resumed.
      progress: receives the progress; None: no output.
      rewind: the earlier checkpoint to go back to; None: resume from the last one.
      clock: measures where the time goes; None: a clock that starts now.
      hooks: as in `pretrain`; `config.probe` adds one.

    Raises:
      UserError: the config, the text, the networks to start from or the work directory cannot be used, and no
        checkpoint in `workdir` was changed; or the loss diverged.
    """
    hooks = check_hooks(hooks)
    progress, clock = progress or Progress(), clock or goodput.Clock()
    with contextlib.ExitStack() as held, jax_errors.reported(LESS_MEMORY):
        setup = set_up(train_config.resolve(config), workdir, progress, held, rewind)
        # An error may end the loop while the timer is armed.
        held.callback(faulthandler.cancel_dump_traceback_later)
        return run_steps(setup, progress, clock, [*hooks, *probe_hooks(setup)])


def run_steps(setup: Setup, progress: Progress, clock: goodput.Clock, hooks: Sequence[Hook]) -> TrainResult:
    """Compiles the train steps of a run that is set up, and runs its loop; see `train`."""
    config, home, data, state = setup.config, setup.home, setup.data, setup.state
    first, mesh, segments = int(state.step), setup.step.mesh, setup.step.segments

    ########## Compile #################################################################################################
    jit = functools.partial(setup.step.jit, out_shardings=sharding.replicated(mesh))
    ahead = [segment for segment in segments if segment.stop > first]
    evaluator = evaluate.Evaluator(segments, data.heldout, config.seed, data.put_whole, jit, data.corpus.sources)
    # XLA compiles without Python's lock, so the evaluation compiles beside the train steps.
    with clock.phase("compile"), ThreadPoolExecutor() as beside:
        evaluation = beside.submit(evaluator.compile, setup.step.gather(state.params), ahead)
        train_steps = {segment.start: setup.step.compile(segment) for segment in ahead}
        # Now, so that a lack of memory shows before the first step.
        check_memory(state, train_steps.values(), evaluation.result())
    # An identity whose output is replicated: hooks run in one process, which may hold only shards of the parameters.
    gather = jit(lambda params: params)

    ########## Loop ####################################################################################################
    log = MetricLog(setup.step, home, first, setup.totals, data.epochs, progress, clock)
    profile = metric_writers.Profile(home.folder, config.profile.at, config.profile.steps)
    window = metrics.MetricAccumulator()
    heldout: dict[str, float] = {}
    pending: metrics.Metrics | None = None
    skips = guard.SkipCounter(config.guard.patience, setup.skipped_in_a_row)
    with (
        contextlib.closing(setup.checkpoints),  # completes what is being written, whatever ends the loop
        distributed.PreemptionGuard() as preemption,
        progress,
        contextlib.closing(log),
        clock.phase("step"),
    ):
        progress.start("step", config.steps, first)
        for step in range(first + 1, config.steps + 1):
            # Each step arms the timer again.
            faulthandler.dump_traceback_later(_HANG, file=_STDERR)
            with clock.phase("data"):
                batch = next(data.train)
            profile.before(step, state)
            segment = segment_at(segments, step - 1)
            # Nothing but the batch moves between host and devices in a step.
            with jax.transfer_guard("disallow"):
                state, measured = train_steps[segment.start](state, data.put(batch, segment.batch_size))
            # Before a checkpoint of this step is saved: a run that resumes from it does not call `begin`.
            if step == segment.stop and step < config.steps:
                state = setup.step.begin(segment_at(segments, step), state)

            # The metrics of the previous step are read while this one runs: the devices never wait for the host ...
            if pending is not None:
                skips.count(window.add(pending), step - 1, setup.checkpoints.latest())
            pending = measured
            progress.update(step - 1)

            # ... except where they are needed now.
            due = what_is_due(config, step, preemption.should_stop(step), hooks)
            if any(due):
                skips.count(window.add(pending), step, setup.checkpoints.latest())
                pending = None
                logged = window.close()
                # Evaluating and saving may take longer than a step that hangs.
                faulthandler.cancel_dump_traceback_later()
                with clock.phase("evaluation"):
                    heldout = evaluator(setup.step.gather(state.params), step) if due.evaluation else {}
                    found = call(due.hooks, step, setup, gather(encoder_params(state))) if due.hooks else {}
                log.write(step, logged, heldout, found)
                # Before saving: the new checkpoint stores `good_step`, and old checkpoints are kept or deleted by it.
                if evaluate.is_better_than_baselines(heldout, setup.step.objective.system.losses):
                    setup.checkpoints.good.step = step
                if due.checkpoint:
                    with clock.phase("checkpoint"):
                        save(setup, step, state, {**log.totals, **clock.totals()}, skips.in_a_row)
            if due.stop:
                break
        with clock.phase("checkpoint"):
            # Closing the checkpoints would wait too, but outside the clock's phase.
            setup.checkpoints.wait()

    ########## Finish ##################################################################################################
    profile.close()
    if distributed.is_main_process():
        # Not `publish_if_possible`: no later checkpoint would try again.
        home.publish()
    last, words = int(state.step), []
    finished = last == config.steps
    if finished:
        with clock.phase("evaluation"):
            # A run that had finished before has made no step now, and so no evaluation.
            heldout = heldout or evaluator(setup.step.gather(state.params), last)
            words = sample(setup, state)
    totals = {**log.totals, "flops": log.flops(last)["model"], **clock.totals()}
    return TrainResult(last, finished, heldout if finished else {}, totals, words)


class Due(NamedTuple):
    """The actions that are due after a step, before the next one."""

    log: bool
    evaluation: bool
    hooks: list[Hook]
    checkpoint: bool
    stop: bool


def what_is_due(config: TrainConfig, step: int, stopping: bool, hooks: Sequence[Hook] = ()) -> Due:
    """Returns what is due after `step`. After the last: evaluate, call all hooks and save. If interrupted: save."""
    done, kept = step == config.steps, config.checkpoint

    def every(steps: int) -> bool:
        return steps > 0 and step % steps == 0

    return Due(
        log=every(config.log_every),
        evaluation=every(config.eval_every) or done,
        hooks=[hook for hook in hooks if (every(hook[0]) or done) and not stopping],
        checkpoint=(
            every(kept.every) or every(kept.keep_every) or step in kept.kept_steps(config.steps) or done or stopping
        ),
        stop=stopping,
    )


def probe_hooks(setup: Setup) -> list[Hook]:
    """Returns the hook of `config.probe`, if any. The main process reads its files now, before the first step."""
    config = setup.config
    if not config.probe.every:
        return []

    def make() -> Callable[[int, "Model"], Mapping[str, float]]:
        # Here, so that only runs with probes import fine-tuning.
        from electra_jax.downstream.finetuning.probe import Probe

        return Probe(config.probe, config.model.max_length, setup.data.corpus.tokenizer)

    return [(config.probe.every, distributed.main_process_first(make, others=lambda: lambda step, model: {}))]


def check_hooks(hooks: Sequence[Hook]) -> tuple[Hook, ...]:
    """Returns the hooks. Raises UserError if they are not pairs (every, function)."""
    try:
        given = tuple(hooks)
        valid = all(isinstance(every, Integral) and int(every) > 0 and callable(function) for every, function in given)
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise UserError(
            f"hooks={hooks!r} is invalid: expected pairs (every, function), where `every` is a whole number of steps, "
            "1 or more"
        )
    return given


def encoder_params(state: TrainState) -> Params:
    return {name: tree for name, tree in state.params.items() if name not in _NOT_ENCODER}


def call(hooks: Sequence[Hook], step: int, setup: Setup, params: Params) -> dict[str, float]:
    """Calls the hooks with the encoder of these replicated parameters, and returns their numbers by name.

    Only the main process calls them; the other processes get the names with NaN.
    """
    from electra_jax.loading.huggingface.directory import Pretrained
    from electra_jax.loading.model import Model  # and all that reads models: only needed by hooks
    from electra_jax.loading.run_checkpoint import trained_shape
    from electra_jax.modeling.subnetwork import extract

    def measure() -> dict[str, float]:
        here = jax.device_get(params)
        encoder = extract(trained_shape(setup.config, setup.step.objective, step), here, "encoder")
        assert encoder is not None
        vocabulary = setup.data.corpus.tokenizer
        networks = Pretrained(encoder, None, vocabulary, scores=setup.step.objective.system.scores)
        model = Model(f"{setup.home.path} at step {step}", networks, vocabulary)
        found: dict[str, float] = {}
        for _, function in hooks:
            returned = function(step, model)
            returned = {} if returned is None else returned
            if not isinstance(returned, Mapping) or not all(isinstance(name, str) for name in returned):
                raise UserError(f"a hook returned {returned!r}: expected a dict of numbers by name, or None")
            for name, value in returned.items():
                if name in found:
                    raise UserError(f"two hooks returned {name!r}; choose another name")
                found[name] = _number(name, value)
        return found

    found: dict[str, float] = distributed.main_process_first(measure, others=dict)
    # So that all processes refuse a name that the run logs itself.
    names = distributed.share(found)
    return found if distributed.is_main_process() else dict.fromkeys(names, math.nan)


def _number(name: str, value: Any) -> float:
    if not isinstance(value, str | bytes):  # of which `float` makes numbers
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            return float(value)
    raise UserError(f"a hook returned {name!r} as {value!r}: expected a number")


def save(setup: Setup, step: int, state: TrainState, totals: dict[str, float], skipped_in_a_row: int) -> None:
    """Starts writing a checkpoint, and publishes the files of the work directory."""
    # Before the checkpoint: a resumed run drops what was logged after it, but cannot recover what is missing before.
    if distributed.is_main_process():
        setup.home.publish_if_possible()
    metadata = {
        "data": setup.data.train.get_state(),
        "totals": metric_writers.finite_numbers(totals),  # JSON has no NaN
        "corpus": setup.data.corpus.key,
        "good_step": setup.checkpoints.good.step,
        "skipped_in_a_row": skipped_in_a_row,
    }
    setup.checkpoints.save(step, state, metadata)


def sample(setup: Setup, state: TrainState) -> list[list[samples.SampledWord]]:
    """Samples held-out sentences with fakes and the encoder's probabilities; empty if the encoder predicts tokens."""
    objective = setup.step.segments[-1].objective
    if objective.system.detect is None:
        return []
    return samples.sample_fakes(
        objective,
        setup.step.gather(state.params),
        state.step,
        setup.data.corpus.heldout,
        setup.data.corpus.tokenizer,
        setup.config.data.seq_length,
        setup.config.seed,
        out_shardings=sharding.replicated(setup.step.mesh),
    )
