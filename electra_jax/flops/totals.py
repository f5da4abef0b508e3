"""A run in both accountings."""

import functools
from typing import Any

from electra_jax.flops import model, paper
from electra_jax.flops.parts import until
from electra_jax.objectives.system import Objective

ACCOUNTINGS: dict[str, Any] = {"model": model, "paper": paper}


def first_steps(objective: Objective, batch: int, length: int, steps: int) -> dict[str, float]:
    """Operations of a run's first `steps` steps on batches [batch, length], by accounting."""
    return {
        name: until(steps, objective.stages, functools.partial(accounting.train_step, objective, batch, length))
        for name, accounting in ACCOUNTINGS.items()
    }
