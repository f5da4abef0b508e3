"""Compares forecasts of `electra-jax plan` for one H100 with the steps that were measured on one.

    python benchmarks/gpu_forecast.py [--topology=h100:1] [--only=TEXT]

Each row of benchmarks/results/h100_steps.json is compiled as it was measured, with the settings that were defaults
then, and its forecast printed beside the measured milliseconds. Needs '.[cuda]'; a row takes one to three minutes.
"""

import sys
from pathlib import Path
from typing import Any

import jax

from electra_jax.config import cli, config_file, errors
from electra_jax.planning.estimate import estimate
from electra_jax.runtime.io import read_json

_MEASURED = Path(__file__).parent / "results" / "h100_steps.json"
_OPTIONS = {"topology": "h100:1", "only": ""}
_PARTS = ("products", "attention", "memory", "launches")


def main(argv: list[str]) -> int:
    chosen = cli.parse(argv, __doc__ or "", _OPTIONS)
    jax.config.update("jax_platforms", "cpu")
    rows = {name: row for name, row in read_json(_MEASURED)["steps"].items() if chosen["only"] in name}
    if not rows:
        raise errors.UserError(f"--only={chosen['only']} is in no name of a step in {_MEASURED}")
    print(f"| step | batch | measured, ms | forecast, ms | difference | {' | '.join(_PARTS)} |")
    print("|---" * (5 + len(_PARTS)) + "|")
    for name, row in rows.items():
        print(f"| {' | '.join(compare(name, row, chosen['topology']))} |", flush=True)
    return 0


def compare(name: str, row: dict[str, Any], topology: str) -> list[str]:
    """The cells of a row."""
    config, _, arg = row["config"].partition(":")
    run = config_file.load(config, arg)
    run.update_from_flattened_dict(row["settings"])
    plan = estimate(run, topology)
    assert plan.forecast is not None
    assert plan.forecast_seconds is not None
    measured, expected = row["milliseconds"], 1e3 * plan.forecast_seconds
    parts = [f"{1e3 * plan.forecast[part]:.1f}" for part in _PARTS]
    batch = " x ".join(map(str, row["batch"]))
    return [name, batch, f"{measured:.1f}", f"{expected:.1f}", f"{expected / measured - 1:+.1%}", *parts]


if __name__ == "__main__":
    sys.exit(errors.run(main))
