"""Compares forecasts of `electra-jax plan` for one H100 with the steps that were measured on one.

    python benchmarks/gpu_forecast.py [--topology=h100:1] [--only=TEXT] [--evaluation]

Each row of benchmarks/results/h100_steps.json is compiled as it was measured, with the settings that were defaults
then, and its forecast printed beside the measured milliseconds. Needs '.[cuda]'; a row takes up to three minutes.

With --evaluation, the program that evaluates on held-out text is compiled instead, and its time and memory printed.
"""

import functools
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from electra_jax import evaluate, step, train_config
from electra_jax.config import cli, config_file, errors
from electra_jax.config.settings import replace
from electra_jax.data.batches import HeldoutBatch
from electra_jax.flops.count import make_objective
from electra_jax.planning.estimate import estimate
from electra_jax.planning.targets import find_target
from electra_jax.runtime import sharding
from electra_jax.runtime.compile_cache import NONE, compile_cache
from electra_jax.runtime.io import read_json
from electra_jax.step import ShardedStep, compiler_options

_MEASURED = Path(__file__).parent / "results" / "h100_steps.json"
_OPTIONS = {"topology": "h100:1", "only": "", "evaluation": False}
_PARTS = ("products", "attention", "memory", "launches")


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    jax.config.update("jax_platforms", "cpu")
    rows = {name: row for name, row in read_json(_MEASURED)["steps"].items() if chosen["only"] in name}
    if not rows:
        raise errors.UserError(f"--only={chosen['only']} is in no name of a step in {_MEASURED}")
    cells, head = compare, ["measured, ms", "forecast, ms", "difference", *_PARTS]
    if chosen["evaluation"]:
        cells, head = compile_evaluation, ["evaluation compiled in, s", "temporary memory, GiB"]
    print(f"| step | batch | {' | '.join(head)} |\n" + "|---" * (2 + len(head)) + "|")
    for name, row in rows.items():
        config, _, arg = row["config"].partition(":")
        run = config_file.load(config, arg)
        run.update_from_flattened_dict(row["settings"])
        batch = " x ".join(map(str, row["batch"]))
        print(f"| {' | '.join([name, batch, *cells(run, row, chosen['topology'])])} |", flush=True)
    return 0


def compare(run: Any, row: dict[str, Any], topology: str) -> list[str]:
    """The cells of a row."""
    plan = estimate(run, topology)
    assert plan.forecast is not None
    assert plan.forecast_seconds is not None
    measured, expected = row["milliseconds"], 1e3 * plan.forecast_seconds
    parts = [f"{1e3 * plan.forecast[part]:.1f}" for part in _PARTS]
    return [f"{measured:.1f}", f"{expected:.1f}", f"{expected / measured - 1:+.1%}", *parts]


def compile_evaluation(run: Any, row: dict[str, Any], topology: str) -> list[str]:
    """The cells of a row with --evaluation."""
    target = find_target(topology)
    config = replace(train_config.resolve(run), {"compiler_options": target.options})
    mesh = sharding.make_mesh(config.mesh, config.batch_size, devices=target.devices)
    one_step, whole = ShardedStep(config, make_objective(config), mesh), sharding.replicated(mesh)
    options = compiler_options(config, mesh.devices.flat[0].device_kind)
    jit = functools.partial(one_step.jit, out_shardings=whole, compiler_options=options)
    batch = step.batch_shapes(config.batch_size, config.data.seq_length, sharding.batch_sharding(mesh))
    ids, sources = np.zeros(row["batch"], np.int32), jax.ShapeDtypeStruct(row["batch"][:1], np.int32, sharding=whole)
    heldout = HeldoutBatch(batch._replace(input_ids=ids), np.zeros(len(ids), np.int32))
    evaluator = evaluate.Evaluator(one_step.segments, [heldout], 0, lambda _: HeldoutBatch(batch, sources), jit)
    params = jax.eval_shape(one_step.gather, one_step.state.params)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), params)
    begin = time.perf_counter()
    with compile_cache(NONE):  # JAX cannot read back programs for devices that it does not have
        (program,) = evaluator.compile(params, one_step.segments[-1:])
    memory: Any = program.memory_analysis()
    return [f"{time.perf_counter() - begin:.1f}", f"{memory.temp_size_in_bytes / 2**30:.2f}"]


if __name__ == "__main__":
    sys.exit(errors.run(main))
