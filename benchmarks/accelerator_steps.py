"""The train steps that benchmarks/accelerator.py measures: how each is compiled, timed and shown."""

import functools
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import device_profile
import jax
import numpy as np

from electra_jax import train_config
from electra_jax.config import config_file
from electra_jax.flops import devices, hardware
from electra_jax.flops.hardware import sum_networks
from electra_jax.modeling import fused_attention
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import registry
from electra_jax.runtime import sharding
from electra_jax.step import ShardedStep, device_memory, memory_of

TRAINED = "budget:flops=1e17"
STEPS: Mapping[str, tuple[str, dict[str, Any]]] = {  # a config and its settings; what is most worth knowing comes first
    "base": ("base", {}),
    TRAINED: (TRAINED, {}),
    "base, attention_dropout=0": ("base", {"model.attention_dropout": 0.0}),
    "small, no dropout, 512 sequences": ("small", {"batch_size": 512, "model.dropout": 0.0}),
    "small": ("small", {}),
    "small, attention_dropout=0": ("small", {"model.attention_dropout": 0.0}),
    "modern:size=base": ("modern:size=base", {}),
    "modern:size=small": ("modern:size=small", {}),
    "base, profiled": ("base", {"profile.at": 1}),
    f"{TRAINED}, profiled": (TRAINED, {"profile.at": 1}),
}
_ROUNDS = 4
_ROUND = 1.0  # seconds
_PROFILED_STEPS = 3


class Compiled(NamedTuple):
    """A step that can run.

    Attributes:
      step: the run's step.
      program: the compiled step.
      seconds: how long it compiled, with other programs beside it.
      config: its config and settings.
    """

    step: ShardedStep
    program: jax.stages.Compiled
    seconds: float
    config: dict[str, Any]


def compile_step(name: str, settings: dict[str, Any], rehearse: bool) -> Compiled:
    """Compiles the step of a config, or of the same shrunk to less than a minute on a CPU."""
    begin = time.perf_counter()
    shipped, _, arg = name.partition(":")
    config = config_file.load(shipped, f"{arg},runlocal".removeprefix(",") if rehearse else arg)
    kept = {key: value for key, value in settings.items() if not rehearse or key.startswith("profile.")}
    config.update_from_flattened_dict(kept)
    typed = train_config.resolve(config)
    objective = registry.make(typed.objective, typed.model, typed.steps, typed.data.vocab_size)
    step = ShardedStep(typed, objective, sharding.make_mesh(typed.mesh, typed.batch_size, typed.grad_accum_steps))
    program = step.compile(step.segments[-1])
    return Compiled(step, program, time.perf_counter() - begin, {"config": name, "settings": settings})


def measure(compiled: Compiled) -> dict[str, Any]:
    """The time and memory of a step on tokens whose frequencies follow Zipf's law; of a profiled step its parts."""
    step, config = compiled.step, compiled.step.config
    shape = (config.batch_size, config.data.seq_length)
    needed = memory_of(compiled.program)
    found = {
        **compiled.config,
        "batch": shape,
        "attention": fused_attention.chosen(step.objective.model.config.encoder, shape[1], step.mesh.abstract_mesh),
        "gib": round(needed / 2**30, 2),
        "compile_seconds": round(compiled.seconds, 1),
    }
    limit = device_memory()
    if limit is not None and needed > limit:
        return found
    state, batch = step.fresh_state(), _batch(step)

    def run_steps(count: int) -> Any:
        nonlocal state
        for _ in range(count):
            state, measured = compiled.program(state, batch)
        return measured

    def seconds_of(count: int) -> float:
        begin = time.perf_counter()
        jax.block_until_ready(run_steps(count))
        return time.perf_counter() - begin

    jax.block_until_ready(run_steps(2))
    if config.profile.at:
        with tempfile.TemporaryDirectory() as folder:
            text = compiled.program.as_text() or ""
            calls = functools.partial(run_steps, _PROFILED_STEPS)
            profile = device_profile.measure(calls, _PROFILED_STEPS, text, Path(folder))
            return {**found, **profile._asdict()}
    count = max(1, round(_ROUND / seconds_of(1)))
    rounds = [seconds_of(count) / count for _ in range(_ROUNDS)]
    seconds = statistics.median(rounds)
    flops = sum_networks(hardware.train_step(step.objective, step.segments[-1].stage, *shape, config.optim.name))
    peak = devices.peak(jax.devices()[0].device_kind, config.model.dtype)
    return {
        **found,
        "milliseconds": round(1e3 * seconds, 3),
        "rounds": [round(1e3 * each, 3) for each in rounds],
        "tokens_per_second": round(shape[0] * shape[1] / seconds),
        "flops": flops,
        "mfu": round(flops / seconds / (peak * jax.device_count()), 4) if peak else None,
    }


def _batch(step: ShardedStep) -> Batch:
    config, first = step.config, 5  # after the special tokens
    uniform = np.random.default_rng(0).uniform(size=(config.batch_size, config.data.seq_length))
    ids = (first * (config.data.vocab_size / first) ** uniform).astype(np.int32)
    return sharding.put_batch(Batch(ids, np.zeros_like(ids), np.ones_like(ids)), step.mesh, config.batch_size)


def table(steps: Mapping[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    if steps:
        yield "| step | batch | attention | ms | tokens/s | MFU | GiB | compiled in, s |"
        yield "|---|---|---|---|---|---|---|---|"
    for name, row in steps.items():
        if "kinds" in row:
            continue
        speed = ("does not fit", "", "")
        if "milliseconds" in row:
            mfu = "" if row["mfu"] is None else f"{row['mfu']:.1%}"
            speed = (f"{row['milliseconds']:.1f}", f"{row['tokens_per_second']:,}", mfu)
        batch = " x ".join(map(str, row["batch"]))
        cells = (name, batch, row["attention"], *speed, f"{row['gib']:.1f}", f"{row['compile_seconds']:.0f}")
        yield f"| {' | '.join(cells)} |"
    for name, row in steps.items():
        if "kinds" in row:
            shares = {**row["kinds"], **dict(row["places"])}
            parts = ", ".join(f"{part} {share:.0%}" for part, share in shares.items())
            yield from ("", f"{name}: {row['launches']:,.0f} launches, idle {row['idle']:.0%}; of the rest {parts}")
