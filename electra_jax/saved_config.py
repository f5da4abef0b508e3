"""The config of a saved run, converted to the settings of this version."""

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
