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
    # Before the objective, because some of its defaults depend on the number of steps.
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
    data = saved.get("data")
    if not isinstance(data, Mapping) or "phases" in saved:
        return saved
    steps, size, length = saved["steps"], saved.get("batch_size"), data.get("seq_length")
    doublings, short_steps = saved.get("batch_doublings", 0), data.get("short_steps", 0)
    short_length = data.get("short_length", 0)
    if not all(
        isinstance(each, int) and each >= 0 for each in (steps, size, length, doublings, short_steps, short_length)
    ):
        # The file is damaged; `train_config` refuses these names, which it does not know.
        return saved
    grows_at = [round(steps * part / (doublings + 1)) for part in range(1, doublings + 1)]
    written = []
    for start, stop in itertools.pairwise(sorted({0, short_steps, *grows_at, steps})):
        at_start = short_length if start < short_steps else length
        # `size` is the batch size after the last doubling; each one that is still to come halves it.
        batch_size = size >> (doublings - sum(start >= step for step in grows_at))
        written.append(f"{stop - start}/{steps} data.seq_length={at_start} batch_size={batch_size}")
    kept = {name: value for name, value in saved.items() if name != "batch_doublings"}
    kept["data"] = {name: value for name, value in data.items() if name not in ("short_steps", "short_length")}
    return kept | {"phases": "; ".join(written) if len(written) > 1 else ""}
