"""Pre-trains a text encoder by replaced-token detection: `python -m electra_jax.train --config=configs/tiny.py`.

Read it from top to bottom: mesh, data, model, state, loop, finish. Started again with the same command, a run goes on
from its last checkpoint and ends with the same bits as one that was never stopped.
"""

import contextlib
import dataclasses
import functools
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from ml_collections import ConfigDict

from electra_jax import evaluate, metrics, sharded_step, step, train_config
from electra_jax.config import errors
from electra_jax.config.settings import differences
from electra_jax.data import corpus, pipeline, tokenizer
from electra_jax.data.batches import MODES, Examples, heldout_batches, training_batches
from electra_jax.downstream.finetuning.probe import Probe
from electra_jax.loading import detection, warm_start
from electra_jax.modeling.subnetwork import extract
from electra_jax.objectives import registry
from electra_jax.planning.flops import devices
from electra_jax.planning.flops.totals import first_steps
from electra_jax.runtime import distributed, metric_writers, sharding
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.runtime.io import read_json, write_whole
from electra_jax.runtime.metric_text import format_heldout, format_logged, short_number
from electra_jax.runtime.progress import ConsoleProgress, Progress
from electra_jax.runtime.workdir import AnyPath, WorkDir
from electra_jax.train_config import TrainConfig

_FAKING = ("generator", "generator_head")  # parameters that no encoder needs
_SAMPLES = 5  # sentences shown at the end


def train(config: ConfigDict | TrainConfig, workdir: AnyPath, live: ConsoleProgress) -> dict[str, float]:
    """Trains until `config.steps`, or until SIGTERM or Ctrl-C, and leaves everything in `workdir`.

    Args:
      config: a run, see `configs/`.
      workdir: where it lives; a run that is there already goes on.
      live: told what happens.

    Returns:
      The held-out numbers at the end; empty where the run was stopped before.

    Raises:
      UserError: the config, the text, what it is to begin from or the work directory cannot be used; no checkpoint in
        `workdir` was changed.
    """
    ########## Mesh ####################################################################################################
    config = adopt_settings(train_config.resolve(config), workdir, live)
    if config.compile_cache:
        jax.config.update("jax_compilation_cache_dir", config.compile_cache)
    mesh = sharding.make_mesh(config.mesh, config.batch_size, config.grad_accum_steps)
    sharding.check_divisible(config.model.heads, config.model.ffn, mesh)
    distributed.check_shared(workdir)
    home = WorkDir(workdir)

    ########## Work directory and data #################################################################################
    # Read before anything is written; a run that is there has it in its checkpoints.
    given = warm_start.load(config, live.say) if not (workdir / "config.json").exists() else None
    checkpoints = Checkpoints(home.checkpoints, config.checkpoint.keep_last, config.checkpoint.keep_every)
    saved_step = checkpoints.latest()
    distributed.first_then_others(lambda: open_home(config, home, saved_step, live), others=lambda: None)
    progress: dict[str, Any] = checkpoints.progress(saved_step) if saved_step is not None else {}

    def find_text() -> corpus.Corpus:
        with home.preparing() as folder:
            return pipeline.find_or_prepare(folder, config.data, progress.get("corpus"), Telling(live))

    text = distributed.first_then_others(find_text, others=find_text)
    distributed.check_same("a text", text.key)
    distributed.first_then_others(lambda: tokenizer.keep(text.tokenizer, home.folder), others=lambda: None)

    def make_probe() -> Probe | None:
        return Probe(config.probe, config.model.max_length, text.tokenizer) if config.probe.every else None

    probe = distributed.first_then_others(make_probe, others=lambda: None)
    special, length, phases = (
        text.tokenizer.special,
        config.data.seq_length,
        train_config.phases(config.data, config.steps),
    )
    mode = functools.partial(MODES[config.data.mode], seed=config.seed, special=special)
    train_examples = [(mode(text.train, length), steps) for length, steps in phases]
    rows = sharding.rows(mesh, config.batch_size)  # of each batch, those that the devices of this process have
    put = functools.partial(sharding.put, mesh=mesh, batch_size=config.batch_size)
    batches = training_batches(train_examples, config.batch_size, config.seed, text.weights, rows)
    heldout = heldout_batches(mode(text.heldout, length), config.batch_size, config.eval_batches, config.seed)

    ########## ObjectiveSpec and operations ###################################################################################
    vocab_size = len(text.tokenizer)
    objective = registry.make(
        config.objective, config.model, config.steps, vocab_size, text.unigram, special, text.tokenizer.word_starts
    )
    run = sharded_step.ShardedStep(config, objective, mesh)
    operations = functools.partial(first_steps, objective, config.batch_size, phases)
    peak = devices.peak(jax.devices()[0].device_kind, config.model.dtype)

    ########## State ###################################################################################################
    # A checkpoint comes before networks that are given, and these before a fresh state, which is made on the devices.
    if saved_step is None:
        state = run.fresh_state()
        given = warm_start.load(config, live.say) if given is None else given
        if given:
            begin = warm_start.WarmStart(config.init, objective.model.config, text.tokenizer, live.say)
            params = sharding.place(begin(run.fresh_params(), given), sharding.of(run.state.params))
            state = step.TrainState(state.step, params, state.opt_state)
        totals = {"tokens": 0.0, "device_seconds": 0.0}
    else:
        state = checkpoints.restore(saved_step, run.state)
        batches.set_state(progress["data"])
        totals = progress["totals"]
    first = int(state.step)
    passed = epochs(train_examples, config.batch_size)
    describe(live, config, workdir, first, state, text, passed(config.steps))

    ########## Compile #################################################################################################
    everywhere = sharding.replicated(mesh)
    eval_step = run.jit(evaluate.make_eval_step(objective), out_shardings=everywhere)
    evaluator = evaluate.Evaluator(
        eval_step, heldout, config.seed, special, lambda batch: put({name: batch[name][rows] for name in batch})
    )
    compiled = {length: run.compile(length) for length, _ in phases}
    whole = run.jit(lambda params: params, out_shardings=everywhere)

    def probed() -> dict[str, float]:
        """Scores of the encoder as it is, in process 0; every process gives its part of the parameters."""
        params = jax.device_get(whole({name: tree for name, tree in state.params.items() if name not in _FAKING}))

        def score() -> dict[str, float]:
            encoder = extract(objective.model.config, params, "encoder")
            assert probe is not None
            assert encoder is not None
            return probe(encoder)

        return distributed.first_then_others(score, others=dict)

    ########## Loop ####################################################################################################
    def log(at: int, evaluating: bool, probing: int) -> dict[str, float]:
        measured, steps, seconds, waiting = window.close()
        if not math.isfinite(measured["loss"]):
            raise errors.UserError(
                f"the loss is {measured['loss']} near step {at}; the checkpoints before it are kept: start again with "
                "another --workdir and a lower config.optim.learning_rate or a longer config.optim.warmup_steps"
            )
        evaluation = evaluator(state.params, state.step) if evaluating else {}
        probes = probed() if probing else {}
        totals["tokens"] += measured["tokens"]
        totals["device_seconds"] += seconds * jax.device_count()
        before, total = operations(at - steps), operations(at)
        mean = {accounting: (total[accounting] - before[accounting]) / steps for accounting in total}
        achieved = mean["model"] * steps / seconds
        values: dict[str, float | None] = {
            **measured,
            "tokens_per_second": measured["tokens"] / seconds,
            "flops": mean["model"],
            "flops_paper": mean["paper"],
            "total_flops": total["model"],
            "total_flops_paper": total["paper"],
            "total_tokens": totals["tokens"],
            "device_seconds": totals["device_seconds"],
            "mfu": achieved / (peak * jax.device_count()) if peak else None,
            "loader_wait": waiting,
            "epoch": passed(at),
            **{f"heldout_{name}": value for name, value in evaluation.items() if name != "tokens"},
            **probes,
        }
        if writer is not None:
            writer.write(at, values)
        live.update(at, format_logged(values))
        if evaluating:
            live.say(f"step {at} held out: {format_heldout(evaluation)}")
        if probes:
            live.say(f"step {at} probe: " + ", ".join(f"{name[6:]} {value:.1f}" for name, value in probes.items()))
        return evaluation

    final: dict[str, float] = {}
    window = metrics.MetricAccumulator()
    writer = metric_writers.MetricsWriter(home.folder, first) if distributed.is_first() else None
    pending: metrics.Metrics | None = None
    profile = metric_writers.Profile(home.folder, config.profile.at, config.profile.steps)
    closing = contextlib.closing(writer) if writer else contextlib.nullcontext()
    with distributed.PreemptionGuard() as stop, live, closing:
        live.start("step", config.steps, first)
        for at in range(first + 1, config.steps + 1):
            waiting_since = time.perf_counter()
            batch = next(batches)
            window.waited(time.perf_counter() - waiting_since)
            profile.before(at)
            with jax.transfer_guard("disallow"):  # but the batch, nothing goes between host and devices for a step
                state, measured = compiled[batch["input_ids"].shape[1]](state, put(batch))

            # The step before this one is read while this one runs: the devices never wait for the host ...
            if pending is not None:
                window.add(pending)
            pending = measured
            live.update(at - 1)

            # ... except where its numbers are needed now.
            stopping = stop.asked(at)
            last = at == config.steps or stopping
            evaluating = at % config.eval_every == 0 or at == config.steps
            saving = at % config.checkpoint.every == 0 or at % config.checkpoint.keep_every == 0 or last
            probing = config.probe.every and (at % config.probe.every == 0 or at == config.steps) and not stopping
            if at % config.log_every == 0 or evaluating or saving or probing:
                window.add(pending)
                pending = None
                final = log(at, evaluating, probing)
                if saving:
                    if distributed.is_first():
                        home.publish()
                    checkpoints.save(at, state, {"data": batches.get_state(), "totals": totals, "corpus": text.key})
                window.restart()  # the time of evaluating and saving is not training time
            if stopping:
                break
    profile.close()
    if distributed.is_first():
        home.publish()
    checkpoints.wait()
    checkpoints.close()

    ########## Finish ##################################################################################################
    if int(state.step) < config.steps:
        live.say(f"stopped and saved at step {int(state.step)}; the same command goes on from there")
        return {}
    final = final or evaluator(state.params, state.step)
    summarise(live, config, workdir, totals, operations(config.steps)["model"], final)
    if objective.system.detect is not None:
        texts = detection.sentences(text.heldout, _SAMPLES, length, config.seed, special)
        key = jax.random.fold_in(jax.random.key(config.seed), 3)
        corrupt_and_detect = jax.jit(detection.make_corrupt_and_detect(objective), out_shardings=everywhere)
        found = corrupt_and_detect(state.params, state.step, texts, key)
        detection.show(live.console, text.tokenizer, zip(*jax.device_get(found), strict=True))
    return final


def adopt_settings(config: TrainConfig, workdir: AnyPath, live: ConsoleProgress) -> TrainConfig:
    """The config with the settings that a prepared corpus was prepared with, or the vocabulary of what it starts from.

    It says which settings it changes.
    """
    data = config.data
    changes = {
        name: value for name, value in pipeline.settings_of(Path(data.input)).items() if getattr(data, name) != value
    }
    for name, value in changes.items():
        live.say(f"{data.input} was prepared with {name}={value!r}; this replaces {getattr(data, name)!r}")
    start = config.init_from or config.generator_from
    if start and not data.vocabulary and not corpus.is_prepared(Path(data.input)):
        path = workdir / "config.json"
        begun = read_json(path) if path.exists() else {}
        if all(begun.get(name) == getattr(config, name) for name in ("init_from", "generator_from")):
            changes["vocabulary"] = begun["data"]["vocabulary"]  # as when this run was started
        else:
            changes["vocabulary"] = warm_start.vocabulary(config)
            if changes["vocabulary"]:
                live.say(f"using the vocabulary {changes['vocabulary']} of {start}")
    return dataclasses.replace(config, data=dataclasses.replace(data, **changes))


def open_home(config: TrainConfig, home: WorkDir, latest: int | None, live: ConsoleProgress) -> None:
    """Checks that a run which is there, at step `latest`, is this one; writes config and environment."""
    home.fetch()
    settings, workdir = train_config.to_dict(config), home.place
    path = home.folder / "config.json"
    if latest is not None:
        if latest > config.steps:
            raise errors.UserError(f"{workdir} is at step {latest} already; give config.steps={latest} or more")
        if not path.exists():
            raise errors.UserError(f"{workdir} has checkpoints but no config.json; use another --workdir")
        changed = differences(read_json(path), settings)
        fixed = [f"{name}: {text}" for name, text in changed.items() if name not in train_config.RESUMABLE]
        if fixed:
            raise errors.UserError(
                f"{workdir} holds a run with other settings ({'; '.join(fixed)}); use those, or another --workdir"
            )
        for name, text in changed.items():
            live.say(f"changed since this run was begun: {name}: {text}")
    write_whole(path, json.dumps(settings, indent=2) + "\n")
    write_whole(home.folder / "environment.json", json.dumps(metric_writers.environment(), indent=2) + "\n")
    home.publish()


def epochs(train_examples: Sequence[tuple[Examples, int]], batch_size: int) -> Callable[[int], float]:
    """The function from a number of steps to how often all examples have been seen in them."""

    def passed(steps: int) -> float:
        total = 0.0
        for these, count in train_examples:
            total += min(steps, count) * batch_size / len(these)
            steps -= min(steps, count)
        return total

    return passed


class Telling(Progress):
    """Tells a run's report what the preparation of its text does."""

    def __init__(self, live: ConsoleProgress):
        self._live = live

    def say(self, text: str) -> None:
        self._live.say(text)


def describe(
    live: ConsoleProgress,
    config: TrainConfig,
    workdir: Path,
    first: int,
    state: step.TrainState,
    text: corpus.Corpus,
    epochs: float,
) -> None:
    parameters = sum(x.size for x in jax.tree.leaves(state.params))
    live.say(
        f"{config.objective.name} · {config.model.encoder} · {short_number(parameters)} parameters · "
        f"{len(text.tokenizer)} pieces · {short_number(len(text.train.tokens))} tokens of text, {epochs:.3g} times · "
        f"{jax.device_count()} x {jax.devices()[0].device_kind}"
    )
    live.say(f"{'going on from step ' + str(first) if first else 'beginning'} in {workdir}")


def summarise(
    live: ConsoleProgress, config: TrainConfig, workdir: Path, totals: dict[str, float], flops: float, final: dict[str, float]
) -> None:
    live.say("")
    live.say(
        f"Done: {config.steps} steps, {short_number(totals['tokens'])} tokens, {short_number(flops)}FLOP, "
        f"{totals['device_seconds'] / jax.device_count() / 60:.1f} minutes of training"
    )
    live.say(f"Held out: {format_heldout(final)}")
    live.say(f"Files: {workdir}/metrics.jsonl, tensorboard/, checkpoints/{config.steps}, config.json, environment.json")
    live.say("")


if __name__ == "__main__":  # `python -m electra_jax.train` is `electra-jax train`
    from electra_jax import __main__

    sys.exit(errors.run(__main__.run, ["train", *sys.argv[1:]]))
