"""Sets up a run before its loop: work directory, text, train step, state. `train.py` has the loop."""

import contextlib
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax.sharding import Mesh

from electra_jax import metrics, train_config
from electra_jax.config.errors import UserError
from electra_jax.config.settings import differences
from electra_jax.data import batches, corpus, mixtures, pipeline, processes, tokenizer
from electra_jax.data.batches import HeldoutBatch
from electra_jax.data.corpus import Corpus
from electra_jax.modeling import fused_attention, model_config, transformer
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import registry
from electra_jax.objectives.segments import Phase
from electra_jax.runtime import compile_cache, cuda, distributed, metric_writers, rewind, run_log, sharding
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.runtime.io import read_json, write_whole
from electra_jax.runtime.lock import lock
from electra_jax.runtime.metric_text import short_number
from electra_jax.runtime.progress import Progress
from electra_jax.runtime.rewind import Rewind, Rewinds
from electra_jax.runtime.workdir import AnyPath, WorkDir
from electra_jax.step import ShardedStep, TrainState
from electra_jax.train_config import TrainConfig

if TYPE_CHECKING:
    from electra_jax.loading.warm_start import Donor


class Setup(NamedTuple):
    """A run that is ready for its loop.

    Attributes:
      config: the config, with the settings taken from a prepared corpus or from the networks that the run starts from.
      home: the work directory.
      checkpoints: the run's checkpoints.
      data: the text and its batches.
      step: the train step on the mesh, with the objective and its networks.
      state: fresh, warm-started, or restored from the last checkpoint.
      totals: each of `metrics.TOTALS` up to that state.
      skipped_in_a_row: the number of consecutive skipped updates just before that state.
    """

    config: TrainConfig
    home: WorkDir
    checkpoints: Checkpoints
    data: "Data"
    step: ShardedStep
    state: TrainState
    totals: dict[str, float]
    skipped_in_a_row: int


def set_up(
    config: TrainConfig,
    workdir: AnyPath,
    progress: Progress,
    held: contextlib.ExitStack,
    asked: Rewind | None = None,
) -> Setup:
    """Sets up a new run, or resumes the one in `workdir`.

    Args:
      config: the run.
      workdir: its work directory.
      progress: receives the progress.
      held: exit stack that holds the lock on the work directory until the run ends.
      asked: the earlier checkpoint to go back to; None: resume from the last one.

    Raises:
      UserError: the config, the text, the networks to start from or the work directory cannot be used; no checkpoint in
        `workdir` was changed.
    """
    # 1. The devices: where JAX cannot use a GPU, it only warns, and computes on the CPU.
    cuda.check_is_used()
    # 2. The folder, before anything is read: it must be empty or hold a run.
    home = WorkDir(workdir)
    distributed.on_main_process(home.check_is_run)
    # 3. Settings that the text or the first networks decide. All that follows depends on them.
    config = adopt_settings(config, workdir, progress)
    # 4. The mesh. Whether batch, heads and widths can be split over it is known without the text.
    sizes = [phase.batch_size for phase in train_config.phases(config)]
    mesh = sharding.make_mesh(config.mesh, config.batch_size, config.grad_accum_steps, others=sizes)
    sharding.check_divisible(config.model.heads, config.model.ffn, mesh)
    encoder, lengths = model_config.encoder_config(config.model), [each.length for each in train_config.phases(config)]
    # In another phase, another implementation may be faster.
    by_length = [fused_attention.chosen(encoder, length, mesh.abstract_mesh) for length in lengths]
    attention = " then ".join(dict.fromkeys(by_length))
    # 5. Processes: a worker must not run the user's script again, and all hosts must see the same folder.
    processes.check_main_is_guarded()
    distributed.check_shared_folder(workdir)
    # 6. Networks to start from, before anything is written. A resumed run has them in its checkpoints.
    donors = [] if home.has_checkpoints() else load_donors(config, progress)
    # 7. The lock, until the run ends: from here on files are written.
    distributed.on_main_process(lambda: held.enter_context(lock(workdir, progress.say)))
    # 8. Checkpoints, and which of them the run resumes from. `claim` compares the run in the folder with this one.
    kept = config.checkpoint
    checkpoints = Checkpoints(home.checkpoints, kept.keep_last, kept.keep_every, keep=kept.kept_steps(config.steps))
    steps = checkpoints.steps()
    distributed.check_same("a list of checkpoints", str(steps), "run the same command again in a minute")
    rewinds = rewind.plan(home, asked, steps)
    saved_step = rewinds.newest(steps)
    distributed.on_main_process(lambda: claim(home, config, saved_step, progress))
    saved: dict[str, Any] = checkpoints.metadata(saved_step) if saved_step is not None else {}
    # 9. config.json of a new run, before its text is prepared, which may take hours: it marks the folder as a run's.
    if saved_step is None:
        distributed.on_main_process(lambda: record(home, config, attention))
    # 10. The text. A resumed run gets the corpus that it began with, even if its sources have changed since.
    settled = rewinds.settled(saved_step)
    data = load_data(config, home, mesh, saved.get("corpus"), settled, progress)
    # 11. The train step, whose objective needs the vocabulary and the token frequencies of the text.
    objective = registry.make_for_text(config.objective, config.model, config.steps, data.corpus)
    step = ShardedStep(config, objective, mesh)
    # 12. The state, in the shardings of the step.
    if saved_step is not None:
        state = checkpoints.restore(saved_step, step.state)
        # A rewind to this checkpoint was made after it was saved, so its position does not count the batches left out.
        left_out = settled.skipped_batches(saved_step, saved_step + 1)
        data.train.set_state({**saved["data"], "next_index": saved["data"]["next_index"] + left_out})
        checkpoints.good.step = saved["good_step"]
        # Only now: if the checkpoint cannot be restored, config.json stays as it is.
        distributed.on_main_process(lambda: record(home, config, attention))
    else:
        # A run that was killed while it saved its first checkpoint has a part of one, so 6. loaded none.
        donors = donors or load_donors(config, progress)
        state = initial_state(step, donors, data.corpus.tokenizer, progress)
    # 13. Later checkpoints are deleted last: had the one to go back to been damaged, they would be needed.
    go_back(home, checkpoints, rewinds, saved_step, progress)
    describe(step, workdir, state, data, attention, progress)
    totals = saved.get("totals", dict.fromkeys(metrics.TOTALS, 0.0))
    return Setup(config, home, checkpoints, data, step, state, totals, saved.get("skipped_in_a_row", 0))


def adopt_settings(config: TrainConfig, workdir: AnyPath, progress: Progress) -> TrainConfig:
    """Returns the config with the settings of a prepared corpus, or the vocabulary of the networks it starts from."""
    data = config.data
    prepared = pipeline.settings_of(Path(data.input))
    changes = {name: value for name, value in prepared.items() if getattr(data, name) != value}
    for name, value in changes.items():
        progress.say(f"{data.input} was prepared with {name}={value!r}, which replaces {getattr(data, name)!r}")
    start = config.starts_from
    if start and not data.vocabulary and not corpus.is_prepared(Path(data.input)):
        path = workdir / "config.json"
        begun = read_json(path) if path.exists() else {}
        same = all(begun.get(name) == getattr(config, name) for name in ("init_from", "generator_from"))
        if same and begun.get("init", {}).get("vocabulary", "same") == config.init.vocabulary:
            changes["vocabulary"] = begun["data"]["vocabulary"]  # as when this run was started
        else:
            from electra_jax.loading import warm_start

            changes["vocabulary"] = warm_start.vocabulary_of_donors(config)
            if changes["vocabulary"]:
                progress.say(f"using the vocabulary of {start}: {changes['vocabulary']}")
    return dataclasses.replace(config, data=dataclasses.replace(data, **changes))


def claim(home: WorkDir, config: TrainConfig, saved_step: int | None, progress: Progress) -> None:
    """Checks that a run in the work directory is this one, and that it resumes from a step within `config.steps`.

    A run without a checkpoint restarts at step 0. Its log is kept under another name: it may have been killed before
    its first checkpoint, or its checkpoints may have been moved away.

    Raises:
      UserError: it is another run, or it is past `config.steps`.
    """
    home.fetch()
    path = home.folder / "config.json"
    logged = run_log.read_metrics(home.folder)
    if saved_step is not None and saved_step > config.steps:
        raise UserError(f"{home.path} is at step {saved_step}: expected config.steps={saved_step} or more")
    if path.exists() and (saved_step is not None or logged):
        from electra_jax import saved_config  # only needed to resume

        saved = saved_config.with_later_settings(read_json(path))
        changed, done = differences(saved, train_config.to_dict(config)), saved_step or 0
        may_change = train_config.RESUMABLE
        if not changed.keys() - may_change and changed.keys() & {"steps", "phases"}:
            # Phases are shares of the steps; what the run has done must stay the same.
            before = train_config.phases_until(train_config.as_dataclass(saved), done)
            if before != train_config.phases_until(config, done):
                may_change -= {"steps", "phases"}
        fixed = [f"{name}: {change}" for name, change in changed.items() if name not in may_change]
        if fixed:
            named = "; ".join(fixed)
            if saved_step is None:
                raise UserError(
                    f"{home.path} holds a run with other settings and without its checkpoints ({named}); put these "
                    "back, or use another --workdir"
                )
            of_network = any(each.startswith(("model.", "data.", "objective.")) for each in fixed)
            weights = "" if of_network else f", with --init_from={home.path} to begin with its weights"
            raise UserError(
                f"{home.path} holds a run with other settings ({named}); use its settings, or another --workdir"
                f"{weights}"
            )
        for name, change in changed.items():
            progress.say(f"changed since this run was started: {name}: {change}")
    if saved_step is None and logged:
        kept = run_log.put_aside(home.folder)
        progress.say(
            f"{home.path} has no checkpoint: starting again at step 0; what was logged until step "
            f"{logged[-1]['step']} is kept in {kept}"
        )


def record(home: WorkDir, config: TrainConfig, attention: str) -> None:
    """Writes config.json and environment.json; the latter includes the attention implementation."""
    environment = {**metric_writers.environment(), "attention": attention}
    write_whole(home.folder / "config.json", json.dumps(train_config.to_dict(config), indent=2) + "\n")
    write_whole(home.folder / "environment.json", json.dumps(environment, indent=2) + "\n")
    home.publish()


def go_back(
    home: WorkDir, checkpoints: Checkpoints, rewinds: Rewinds, saved_step: int | None, progress: Progress
) -> None:
    """Makes a rewind that was asked for or was interrupted: deletes the checkpoints after `saved_step`."""
    if rewinds.pending:
        # Before a checkpoint is deleted: a start after a kill in between must know that it has to delete the rest.
        distributed.on_main_process(lambda: rewind.write(home, rewinds))
        step, skip_batches = rewinds.made[-1]
        progress.say(f"going back to step {step} and leaving out {skip_batches} batches")
        # In all processes: Orbax waits for all of them after each deletion.
        for later in checkpoints.steps():
            if later > step:
                checkpoints.delete(later)
    distributed.on_main_process(lambda: rewind.write(home, rewinds.settled(saved_step)))


class Data(NamedTuple):
    """The text of a run and its batches.

    Attributes:
      corpus: the prepared corpus with its vocabulary.
      train: endless iterator over this process's rows of training batches; `get_state` and `set_state` access its
        position.
      heldout: whole held-out batches.
      put: (this process's rows, the batch size) -> the global batch on the devices.
      put_whole: like `put`, for a whole held-out batch, of which this process takes its own rows.
      epochs: steps -> the number of epochs over the training text.
    """

    corpus: Corpus
    train: Any
    heldout: list[HeldoutBatch]
    put: Callable[[Batch, int], Batch]
    put_whole: Callable[[HeldoutBatch], HeldoutBatch]
    epochs: Callable[[int], float]


def check_weights(phases: Sequence[Phase], sources: Sequence[str]) -> None:
    """Raises UserError if a phase has weights, and there is a single source or not one weight for each source."""
    for each in phases:
        if each.weights and len(each.weights) != len(sources):
            raise UserError(
                f"config.data.weights={':'.join(f'{weight:g}' for weight in each.weights)} is invalid: expected a "
                f"number for each source of the text: {', '.join(sources)}"
            )
        if each.weights and len(sources) == 1:
            raise UserError(f"config.data.weights has no effect on a single source, {sources[0]}; leave it out")


def load_data(
    config: TrainConfig, home: WorkDir, mesh: Mesh, key: str | None, rewinds: Rewinds, progress: Progress
) -> Data:
    """Finds or prepares the text, and plans its batches.

    Args:
      config: the run.
      home: its work directory.
      mesh: the devices.
      key: the key of the corpus that a resumed run was started with; None for a new run.
      rewinds: the run's rewinds, whose batches are skipped.
      progress: receives the progress.
    """

    def find() -> Corpus:
        with home.lock_data_folder() as folder:
            return pipeline.find_or_prepare(folder, config.data, key, progress)

    run_phases = train_config.phases(config)
    # Before the text is prepared, which may take hours.
    if not corpus.is_prepared(Path(config.data.input)):
        check_weights(run_phases, mixtures.labels([source.name for source in mixtures.parse(config.data)]))
    text = distributed.main_process_first(find, others=find)
    check_weights(run_phases, text.sources)
    distributed.check_same("text", text.key)
    distributed.on_main_process(lambda: tokenizer.save(text.tokenizer, home.folder))
    examples_of, special = batches.MODES[config.data.mode], text.tokenizer.special
    # One object for each length: a phase continues the order of the one before it if both have the same object.
    examples = {
        length: examples_of(text.train, length, config.seed, special) for length in {each.length for each in run_phases}
    }
    phases, start = [], 0
    for number, each in enumerate(run_phases, 1):
        stop = start + each.steps
        # Batches that were left out still belong to the phase in which they would have come, those after the last step
        # to the last phase.
        count = each.steps + rewinds.skipped_batches(start, stop if number < len(run_phases) else math.inf)
        phases.append(batches.BatchPhase(examples[each.length], each.batch_size, count, each.weights or text.weights))
        start = stop
    rows = functools.partial(sharding.local_rows, mesh)
    heldout = examples_of(text.heldout, config.data.seq_length, config.seed, special)

    def put(batch: Batch, batch_size: int) -> Batch:
        return sharding.put_batch(batch, mesh, batch_size)

    def put_whole(batch: HeldoutBatch) -> HeldoutBatch:
        own = rows(config.batch_size)
        local: HeldoutBatch = jax.tree.map(lambda x: x[own], batch)
        return sharding.put_batch(local, mesh, config.batch_size)

    def epochs(steps: int) -> float:
        total = 0.0
        for each in run_phases:  # by their steps: batches that were left out have not been read
            total += min(steps, each.steps) * each.batch_size / len(examples[each.length])
            steps -= min(steps, each.steps)
        return total

    return Data(
        text,
        batches.training_batches(phases, config.seed, rows),
        list(batches.heldout_batches(heldout, config.batch_size, config.eval_batches, config.seed, special)),
        put,
        put_whole,
        epochs,
    )


def load_donors(config: TrainConfig, progress: Progress) -> list["Donor"]:
    """Loads the networks that the run starts from; see `warm_start.load_donors`."""
    if not config.starts_from and not registry.SYSTEMS[config.objective.name].pretrained_generator:
        return []
    from electra_jax.loading import warm_start  # reads models of all kinds: only needed by a warm start

    return warm_start.load_donors(config, progress.say)


def initial_state(
    run: ShardedStep, donors: list["Donor"], vocabulary: tokenizer.Tokenizer, progress: Progress
) -> TrainState:
    """Initializes a state; the networks that the run starts from replace random parameters."""
    state = run.fresh_state()
    if not donors:
        return state
    from electra_jax.loading import warm_start

    start = warm_start.WarmStart(run.config.init, run.objective.model.config, vocabulary, progress.say)
    params = sharding.put_tree(start.apply(run.fresh_params(), donors), sharding.shardings(run.state.params))
    return TrainState(state.step, params, state.opt_state, state.grad_norms)


def describe(
    step: ShardedStep, workdir: AnyPath, state: TrainState, data: Data, attention: str, progress: Progress
) -> None:
    config = step.config
    encoder = step.objective.model.config.encoder
    layers = "unrolled" if transformer.is_unrolled(config.model.unroll, encoder, step.device_kind) else "scanned"
    first, parameters = int(state.step), sum(x.size for x in jax.tree.leaves(state.params))
    progress.say(
        f"{config.objective.name}, {config.model.encoder}: {short_number(parameters)} parameters, "
        f"{len(data.corpus.tokenizer)} pieces, {short_number(len(data.corpus.train.tokens))} tokens of text for "
        f"{data.epochs(config.steps):.3g} epochs, on {jax.device_count()} x {step.device_kind}, "
        f"layers {layers}, attention {attention}"
    )
    if config.phases:
        ends = itertools.accumulate(phase.steps for phase in train_config.phases(config))
        progress.say(f"phases end after steps {', '.join(map(str, ends))}: {config.phases}")
    warmup = config.optim.warmup_steps
    if len(step.objective.stages) == 1 and warmup >= config.steps:  # shorter stages have a shorter warm-up
        progress.say(
            f"the learning rate rises to the end, as config.optim.warmup_steps={warmup} is not less than config.steps="
            f"{config.steps}"
        )
    if kept := compile_cache.folder():
        progress.say(f"compiled programs are kept in {kept} (config.compile_cache)")
    progress.say(f"resuming from step {first} in {workdir}" if first else f"starting in {workdir}")
