"""The config of a saved run, converted to the settings of this version."""

import itertools
from collections.abc import Mapping
from typing import Any

from electra_jax import train_config
from electra_jax.config import settings


def with_later_settings(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the saved config of a run, with the default of each setting that was added since.

    The default of an added setting changes nothing (CONTRIBUTING.md), so the run computes what it did before.

    Args:
      saved: what the run's config.json holds.

    Raises:
      UserError: there is no such objective.
    """
    saved = _with_phases(saved)
    config = train_config.paper()
    config.steps = saved["steps"]
    objective = saved["objective"]
    train_config.choose_objective(config, objective["name"], objective.get("generator", "transformer"))
    given = settings.flatten(saved)
    later = {
        name: value
        for name, value in settings.flatten(config).items()
        # A damaged file may have a group where there should be a setting.
        if name not in given and not any(other.startswith(f"{name}.") for other in given)
    }
    return settings.nest({**later, **given})


def _with_phases(saved: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the saved config of a run with `phases` for the settings that early versions had in their place."""
    if not isinstance(saved.get("data"), Mapping) or "batch_doublings" not in saved:
        return saved
    data, steps = dict(saved["data"]), saved["steps"]
    short_steps, short_length = data.pop("short_steps", 0), data.pop("short_length", 0)
    doublings, size = saved["batch_doublings"], saved["batch_size"]
    grows_at = [round(steps * part / (doublings + 1)) for part in range(1, doublings + 1)]
    written = []
    for start, stop in itertools.pairwise(sorted({0, short_steps, *grows_at, steps})):
        length = short_length if start < short_steps else data["seq_length"]
        batch_size = size >> (doublings - sum(start >= step for step in grows_at))
        written.append(f"{stop - start}/{steps} data.seq_length={length} batch_size={batch_size}")
    phases = "; ".join(written) if len(written) > 1 else ""
    return {name: value for name, value in saved.items() if name != "batch_doublings"} | {
        "data": data,
        "phases": phases,
    }
