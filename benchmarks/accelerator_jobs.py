"""The jobs of benchmarks/accelerator.py: losses, speed, pre-training and fine-tuning."""

import dataclasses
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import device_profile
import jax
import numpy as np
from ml_collections import ConfigDict

import electra_jax
from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.downstream.finetuning import recipe, run
from electra_jax.downstream.tasks import glue
from electra_jax.loading import networks
from electra_jax.modeling import fused_attention
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import registry
from electra_jax.planning.flops import devices, hardware
from electra_jax.planning.flops.breakdown import sum_networks
from electra_jax.runtime import sharding
from electra_jax.runtime.progress import Progress
from electra_jax.sharded_step import ShardedStep
from electra_jax.train_config import TrainConfig

CHECKED_STEPS = 20
_CHECKED_BATCH = 16
_ROUNDS = 5
_ROUND = 1.0  # seconds
_PROFILED_STEPS = 3
_SEEDS = 3
_HELDOUT = ("mlm_loss", "disc_loss", "disc_auc", "unigram_auc")


@dataclasses.dataclass(frozen=True)
class Folders:
    """Where the jobs' data is.

    Attributes:
      text: a prepared corpus or text files; empty: the text of the config.
      glue: GLUE's folders.
      output: for the runs and what is exported from them.
    """

    text: str
    glue: str
    output: Path


def config_of(size: str, rehearse: bool, **changes: Any) -> ConfigDict:
    """A shipped config, or the same shrunk to less than a minute on a CPU."""
    config: ConfigDict = getattr(electra_jax.configs, size)(runlocal=rehearse)
    config.update(changes)
    return config


def step_and_batch(config: TrainConfig) -> tuple[ShardedStep, Batch]:
    """The step of a config on all devices, and a batch whose tokens have frequencies as Zipf's law gives them."""
    vocabulary = config.data.vocab_size
    objective = registry.make(config.objective, config.model, config.steps, vocabulary)
    mesh = sharding.make_mesh(config.mesh, config.batch_size, config.grad_accum_steps)
    shape = (config.batch_size, config.data.seq_length)
    uniform = np.random.default_rng(0).uniform(size=shape)
    first = 5  # after the special tokens
    ids = (first * (vocabulary / first) ** uniform).astype(np.int32)
    batch = sharding.put_batch(Batch(ids, np.zeros_like(ids), np.ones_like(ids)), mesh, config.batch_size)
    return ShardedStep(config, objective, mesh), batch


def losses(folders: Folders, settings: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """The losses of the first steps of ELECTRA-Small on one batch, in each of some precisions."""
    del folders, progress
    found: dict[str, Any] = {"kind": jax.devices()[0].device_kind, "devices": jax.device_count()}
    for dtype in settings["dtypes"]:
        config = config_of("small", settings["rehearse"], steps=CHECKED_STEPS, batch_size=_CHECKED_BATCH)
        config.model.dtype, config.optim.warmup_steps = dtype, CHECKED_STEPS // 4
        step, batch = step_and_batch(train_config.resolve(config))
        train_step, state = step.compile(step.segments[0]), step.fresh_state()
        measured = []
        for _ in range(CHECKED_STEPS):
            state, metrics = train_step(state, batch)
            measured.append(metrics)
        found[dtype] = {name: [each[name].number() for each in measured] for name in ("mlm_loss", "disc_loss")}
    return found


def speed(folders: Folders, settings: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Time and memory of the train step of a size with some settings; only the memory where it does not fit."""
    del folders, progress
    config = config_of(settings["size"], settings["rehearse"], grad_accum_steps=settings["grad_accum_steps"])
    config.model.update(settings["model"])
    step, batch = step_and_batch(train_config.resolve(config))
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    begin = time.perf_counter()
    try:
        compiled = step.compile(step.segments[0])
        memory: Any = compiled.memory_analysis()
        needed = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        needed += memory.temp_size_in_bytes + memory.generated_code_size_in_bytes
        found = {"compile_seconds": round(time.perf_counter() - begin, 1), "bytes": needed, "limit": limit}
        if limit is not None and needed > limit:
            return {"fits": False, **found}
        return {"fits": True, **found, **_timed(step, compiled, batch)}
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return {"fits": False, "limit": limit}


def _timed(step: ShardedStep, compiled: Any, batch: Batch) -> dict[str, Any]:
    state, config = step.fresh_state(), step.config

    def run_steps(count: int) -> Any:
        nonlocal state
        for _ in range(count):
            state, measured = compiled(state, batch)
        return state, measured

    def seconds_of(count: int) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(run_steps(count))
        return time.perf_counter() - begin

    jax.block_until_ready(run_steps(2))
    count = max(1, round(_ROUND / seconds_of(1)))
    seconds = statistics.median(seconds_of(count) / count for _ in range(_ROUNDS))
    shape = (config.batch_size, config.data.seq_length)
    flops = sum_networks(hardware.train_step(step.objective, step.objective.stages[0], *shape, config.optim.name))
    peak = devices.peak(jax.devices()[0].device_kind, config.model.dtype)
    with tempfile.TemporaryDirectory() as folder:
        spent = device_profile.measure(lambda: run_steps(_PROFILED_STEPS), compiled.as_text(), Path(folder))
    encoder = step.objective.model.config.encoder
    return {
        "batch_size": shape[0],
        "length": shape[1],
        "attention": fused_attention.chosen(encoder, shape[1], step.mesh.abstract_mesh),
        "step_seconds": seconds,
        "tokens_per_second": round(shape[0] * shape[1] / seconds),
        "flops": flops,
        "mfu": flops / seconds / (peak * jax.device_count()) if peak else None,
        **spent._asdict(),
    }


def train(folders: Folders, settings: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Pre-trains ELECTRA-Small for a share of the paper's steps, and exports it."""
    run_folder = folders.output / "runs" / settings["run"]
    config = config_of("small", settings["rehearse"], steps=settings["steps"])
    config.grad_accum_steps = settings["grad_accum_steps"]
    config.model.update(settings["model"])
    if folders.text:
        config.data.input = folders.text
    config.log_every, config.eval_every = max(1, config.steps // 500), max(1, config.steps // 10)
    config.checkpoint.update(every=max(1, config.steps // 20), keep_last=1)
    log = electra_jax.pretrain(config, run_folder, progress)
    last = log.metrics[-1]
    if last["step"] < config.steps:
        raise UserError(f"{run_folder} was stopped at step {last['step']} of {config.steps}; start it again")
    exported = folders.output / "exported" / settings["run"]
    if not exported.exists():  # it is written whole
        electra_jax.export(run_folder, exported)
    rates = [each["tokens_per_second"] for each in log.metrics]
    return {
        "steps": config.steps,
        "device_seconds": last["device_seconds"],
        "tokens_per_second": round(statistics.median(rates)),
        "epochs": last["epoch"],
        **{name: last[f"total_{name}"] for name in ("flops", "flops_paper", "tokens")},
        "heldout": [
            {"step": each.step, **{name: round(each.metrics[name], 4) for name in _HELDOUT if name in each.metrics}}
            for each in log.evaluations()
        ],
    }


def score(folders: Folders, settings: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Fine-tunes an exported encoder on a task as the paper does; the main score of each seed."""
    task, name = settings["task"], settings["run"]
    config = recipe.make(task, "size=small,head=paper")
    config.seeds = _SEEDS
    result = run.finetune_source(
        recipe.resolve(config),
        networks.find_source(folders.output / "exported" / name),
        glue.task_dir(folders.glue, task),
        folders.output / "finetuned" / f"{name}-{task}",
        tests=False,
        progress=progress,
    )
    scores = {seed["seed"]: round(seed["scores"][result["metric"]], 3) for seed in result["seeds"]}
    return {"metric": result["metric"], "scores": scores}


KINDS = {"losses": losses, "speed": speed, "train": train, "score": score}
