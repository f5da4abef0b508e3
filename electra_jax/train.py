"""Pre-trains a text encoder. Read it from top to bottom: mesh, data, objective, state, compile, loop, finish.

Started again with the same settings, a run resumes from its last checkpoint and ends with the same bits in every
parameter as a run that was never interrupted. `python -m electra_jax.train` is `electra-jax train`.
"""

import contextlib
import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from electra_jax import evaluate, metrics, train_config
from electra_jax.config import errors
from electra_jax.config.errors import UserError
from electra_jax.config.settings import differences
from electra_jax.data import batches, corpus, pipeline, tokenizer
from electra_jax.data.corpus import Corpus
from electra_jax.downstream.finetuning.probe import Probe
from electra_jax.loading import samples, warm_start
from electra_jax.metric_log import MetricLog
from electra_jax.modeling.batch import Batch
from electra_jax.modeling.subnetwork import extract
from electra_jax.objectives import registry
from electra_jax.objectives.segments import segment_at
from electra_jax.objectives.spec import Objective
from electra_jax.runtime import distributed, metric_writers, run_log, sharding
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.runtime.compile_cache import compile_cache
from electra_jax.runtime.io import read_json, write_whole
from electra_jax.runtime.metric_text import short_number
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.workdir import AnyPath, WorkDir, resolve
from electra_jax.sharded_step import ShardedStep
from electra_jax.step import TrainState
from electra_jax.train_config import TrainConfig

_NOT_ENCODER = ("generator", "generator_head")  # parameters that the encoder does not need


class TrainResult(NamedTuple):
    """How a run ended.

    Attributes:
      step: steps done.
      finished: whether these are all; otherwise the run was interrupted and saved.
      heldout: the last held-out metrics; empty if it was interrupted.
      totals: `tokens`, `device_seconds`, `flops` since the first step.
      samples: held-out sentences with fakes and what the encoder says about them; empty if the encoder predicts tokens.
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
      workdir: where checkpoints and logs go: a folder, or gs://BUCKET/FOLDER.
      progress: told what happens; `electra_jax.runtime.progress.ConsoleProgress()` prints it.

    Returns:
      What was logged: `run.metrics` has a dict for each logged step, `run.heldout()` the last held-out metrics.

    Raises:
      UserError: the config, the text or the work directory cannot be used.
    """
    path = resolve(str(workdir))
    with compile_cache(train_config.as_dataclass(config).compile_cache):
        train(config, path, progress)
    return run_log.read_run_log(WorkDir(path).folder)


def train(config: ConfigDict | TrainConfig, workdir: AnyPath, progress: Progress | None = None) -> TrainResult:
    """Trains until `config.steps`, or until SIGTERM or Ctrl-C, and leaves everything in `workdir`.

    Args:
      config: a run, see `configs/`.
      workdir: where the run lives; a run that is there is resumed.
      progress: told what happens.

    Raises:
      UserError: the config, the text, the networks to start from or the work directory cannot be used; no checkpoint in
        `workdir` was changed.
    """
    progress = progress or Progress()

    ########## Mesh and work directory #################################################################################
    config = adopt_settings(train_config.resolve(config), workdir, progress)
    mesh = sharding.make_mesh(config.mesh, config.batch_size, config.grad_accum_steps)
    sharding.check_divisible(config.model.heads, config.model.ffn, mesh)
    distributed.check_shared_folder(workdir)
    home = WorkDir(workdir)
    # Read before anything is written. A run that is resumed has these networks in its checkpoints.
    donors = warm_start.load_donors(config, progress.say) if not (workdir / "config.json").exists() else None
    checkpoints = Checkpoints(home.checkpoints, config.checkpoint.keep_last, config.checkpoint.keep_every)
    saved_step = checkpoints.latest()
    distributed.main_process_first(lambda: claim(home, config, saved_step, progress), others=lambda: None)
    saved: dict[str, Any] = checkpoints.progress(saved_step) if saved_step is not None else {}

    ########## Data ####################################################################################################
    data = load_data(config, home, mesh, saved.get("corpus"), progress)
    vocabulary = data.corpus.tokenizer
    probe = distributed.main_process_first(lambda: make_probe(config, vocabulary), others=lambda: None)

    ########## Objective and state #####################################################################################
    objective = registry.make(
        config.objective,
        config.model,
        config.steps,
        len(vocabulary),
        data.corpus.unigram,
        vocabulary.special,
        vocabulary.word_starts,
    )
    run = ShardedStep(config, objective, mesh)
    if saved_step is None:
        donors = warm_start.load_donors(config, progress.say) if donors is None else donors
        state = initial_state(run, donors, vocabulary, progress)
    else:
        state = checkpoints.restore(saved_step, run.state)
        data.train.set_state(saved["data"])
    first = int(state.step)
    describe(config, workdir, first, state, data, progress)

    ########## Compile #################################################################################################
    train_steps = {segment.start: run.compile(segment) for segment in run.segments}
    evaluator = evaluate.Evaluator(
        objective,
        data.heldout,
        config.seed,
        data.put_whole,
        functools.partial(run.jit, out_shardings=sharding.replicated(mesh)),
    )
    gather = run.jit(lambda params: params, out_shardings=sharding.replicated(mesh))

    ########## Loop ####################################################################################################
    log = MetricLog(run, home, first, saved.get("totals"), data.epochs, progress)
    window = metrics.MetricAccumulator()
    profile = metric_writers.Profile(home.folder, config.profile.at, config.profile.steps)
    pending: metrics.Metrics | None = None
    heldout: dict[str, float] = {}
    with distributed.PreemptionGuard() as guard, progress, contextlib.closing(log):
        progress.start("step", config.steps, first)
        for step in range(first + 1, config.steps + 1):
            with window.waiting():
                batch = next(data.train)
            profile.before(step)
            segment = segment_at(run.segments, step - 1)
            with jax.transfer_guard("disallow"):  # nothing but the batch moves between host and devices in a step
                state, measured = train_steps[segment.start](state, data.put(batch))
            if step == segment.stop and step < config.steps:
                state = run.begin(segment_at(run.segments, step), state)

            # The metrics of the step before are read while this one runs: the devices never wait for the host ...
            if pending is not None:
                window.add(pending)
            pending = measured
            progress.update(step - 1)

            # ... except where they are needed now.
            stopping = guard.should_stop(step)
            done = step == config.steps
            evaluating = step % config.eval_every == 0 or done
            saving = is_saved(config, step) or done or stopping
            probing = bool(config.probe.every) and (step % config.probe.every == 0 or done) and not stopping
            if step % config.log_every == 0 or evaluating or saving or probing:
                window.add(pending)
                pending = None
                measurements = window.close()
                check_finite(measurements.metrics["loss"], step)
                heldout = evaluator(state.params, step) if evaluating else {}
                probed = run_probe(probe, objective, gather, state) if probing else {}
                log.write(step, measurements, heldout, probed)
                if saving:
                    if distributed.is_main_process():
                        home.publish()
                    position = {"data": data.train.get_state(), "totals": log.totals, "corpus": data.corpus.key}
                    checkpoints.save(step, state, position)
                window.restart()  # evaluating and saving are not training time
            if stopping:
                break

    ########## Finish ##################################################################################################
    profile.close()
    if distributed.is_main_process():
        home.publish()
    checkpoints.wait()
    checkpoints.close()
    last = int(state.step)
    totals = {**log.totals, "flops": log.flops(last)["model"]}
    if last < config.steps:
        return TrainResult(last, False, {}, totals, [])
    heldout = heldout or evaluator(state.params, last)
    if objective.system.detect is None:
        return TrainResult(last, True, heldout, totals, [])
    shown = samples.sample_fakes(
        objective,
        state.params,
        state.step,
        data.corpus.heldout,
        vocabulary,
        config.data.seq_length,
        config.seed,
        out_shardings=sharding.replicated(mesh),
    )
    return TrainResult(last, True, heldout, totals, shown)


########## Set-up ######################################################################################################


def adopt_settings(config: TrainConfig, workdir: AnyPath, progress: Progress) -> TrainConfig:
    """The config with the settings of a prepared corpus, or with the vocabulary of the networks that it starts from."""
    data = config.data
    prepared = pipeline.settings_of(Path(data.input))
    changes = {name: value for name, value in prepared.items() if getattr(data, name) != value}
    for name, value in changes.items():
        progress.say(f"{data.input} was prepared with {name}={value!r}, which replaces {getattr(data, name)!r}")
    start = config.init_from or config.generator_from
    if start and not data.vocabulary and not corpus.is_prepared(Path(data.input)):
        path = workdir / "config.json"
        begun = read_json(path) if path.exists() else {}
        if all(begun.get(name) == getattr(config, name) for name in ("init_from", "generator_from")):
            changes["vocabulary"] = begun["data"]["vocabulary"]  # as when this run was started
        else:
            changes["vocabulary"] = warm_start.vocabulary_of_donors(config)
            if changes["vocabulary"]:
                progress.say(f"using the vocabulary of {start}: {changes['vocabulary']}")
    return dataclasses.replace(config, data=dataclasses.replace(data, **changes))


def claim(home: WorkDir, config: TrainConfig, saved_step: int | None, progress: Progress) -> None:
    """Checks that a run in the work directory is this one, and writes config.json and environment.json.

    Raises:
      UserError: it is another run, or it is past `config.steps`.
    """
    home.fetch()
    settings, path = train_config.to_dict(config), home.folder / "config.json"
    if saved_step is not None:
        if saved_step > config.steps:
            raise UserError(f"{home.path} is at step {saved_step}: expected config.steps={saved_step} or more")
        if not path.exists():
            raise UserError(f"{home.path} has checkpoints but no config.json; use another --workdir")
        changed = differences(read_json(path), settings)
        fixed = [f"{name}: {change}" for name, change in changed.items() if name not in train_config.RESUMABLE]
        if fixed:
            raise UserError(
                f"{home.path} holds a run with other settings ({'; '.join(fixed)}); use its settings, or another "
                "--workdir"
            )
        for name, change in changed.items():
            progress.say(f"changed since this run was started: {name}: {change}")
    write_whole(path, json.dumps(settings, indent=2) + "\n")
    write_whole(home.folder / "environment.json", json.dumps(metric_writers.environment(), indent=2) + "\n")
    home.publish()


class Data(NamedTuple):
    """The text of a run.

    Attributes:
      corpus: the prepared text with its vocabulary.
      train: endless training batches, the rows of this process; `get_state` and `set_state` are its position.
      heldout: held-out batches, whole.
      put: places the rows of this process on the devices, as a batch of all processes.
      put_whole: the same for a whole batch, of which this process takes its rows.
      epochs: steps -> how often the training text has been seen.
    """

    corpus: Corpus
    train: Any
    heldout: list[Batch]
    put: Callable[[Batch], Batch]
    put_whole: Callable[[Batch], Batch]
    epochs: Callable[[int], float]


def load_data(config: TrainConfig, home: WorkDir, mesh: Mesh, key: str | None, progress: Progress) -> Data:
    """Finds or prepares the text, and plans its batches.

    Args:
      config: the run.
      home: its work directory.
      mesh: the devices.
      key: the corpus that a resumed run was started with.
      progress: told what happens.
    """

    def find() -> Corpus:
        with home.lock_data_folder() as folder:
            return pipeline.find_or_prepare(folder, config.data, key, progress)

    text = distributed.main_process_first(find, others=find)
    distributed.check_same("text", text.key)
    distributed.main_process_first(lambda: tokenizer.keep(text.tokenizer, home.folder), others=lambda: None)
    examples_of, special = batches.MODES[config.data.mode], text.tokenizer.special
    phases = [
        (examples_of(text.train, length, config.seed, special), steps)
        for length, steps in train_config.phases(config.data, config.steps)
    ]
    rows = sharding.local_rows(mesh, config.batch_size)
    put = functools.partial(sharding.put_batch, mesh=mesh, batch_size=config.batch_size)
    heldout = examples_of(text.heldout, config.data.seq_length, config.seed, special)

    def epochs(steps: int) -> float:
        total = 0.0
        for examples, count in phases:
            total += min(steps, count) * config.batch_size / len(examples)
            steps -= min(steps, count)
        return total

    return Data(
        text,
        batches.training_batches(phases, config.batch_size, config.seed, text.weights, rows),
        list(batches.heldout_batches(heldout, config.batch_size, config.eval_batches, config.seed)),
        put,
        lambda batch: put(jax.tree.map(lambda x: x[rows], batch)),
        epochs,
    )


def initial_state(
    run: ShardedStep, donors: list[warm_start.Donor], vocabulary: tokenizer.Tokenizer, progress: Progress
) -> TrainState:
    """A fresh state, with the networks that the run starts from in the place of random ones."""
    state = run.fresh_state()
    if not donors:
        return state
    start = warm_start.WarmStart(run.config.init, run.objective.model.config, vocabulary, progress.say)
    params = sharding.put_tree(start.apply(run.fresh_params(), donors), sharding.shardings(run.state.params))
    return TrainState(state.step, params, state.opt_state)


def describe(
    config: TrainConfig, workdir: AnyPath, first: int, state: TrainState, data: Data, progress: Progress
) -> None:
    parameters = sum(x.size for x in jax.tree.leaves(state.params))
    progress.say(
        f"{config.objective.name}, {config.model.encoder}: {short_number(parameters)} parameters, "
        f"{len(data.corpus.tokenizer)} pieces, {short_number(len(data.corpus.train.tokens))} tokens of text for "
        f"{data.epochs(config.steps):.3g} epochs, on {jax.device_count()} x {jax.devices()[0].device_kind}"
    )
    progress.say(f"resuming from step {first} in {workdir}" if first else f"starting in {workdir}")


########## In the loop #################################################################################################


def is_saved(config: TrainConfig, step: int) -> bool:
    return step % config.checkpoint.every == 0 or step % config.checkpoint.keep_every == 0


def check_finite(loss: float, step: int) -> None:
    if not math.isfinite(loss):
        raise UserError(
            f"the loss is {loss} near step {step}: expected a finite number; earlier checkpoints are kept, start again "
            "with another --workdir and a lower config.optim.learning_rate or a longer config.optim.warmup_steps"
        )


def make_probe(config: TrainConfig, vocabulary: tokenizer.Tokenizer) -> Probe | None:
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


if __name__ == "__main__":  # `python -m electra_jax.train` is `electra-jax train`
    from electra_jax import __main__

    sys.exit(errors.run(__main__.run, ["train", *sys.argv[1:]]))
