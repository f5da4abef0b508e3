"""A run in both accountings."""

import functools
from collections.abc import Sequence
from typing import Any

from electra_jax.objectives.spec import Objective
from electra_jax.planning.flops import hardware, paper
from electra_jax.planning.flops.breakdown import until

ACCOUNTINGS: dict[str, Any] = {"model": hardware, "paper": paper}


def first_steps(objective: Objective, batch: int, phases: Sequence[tuple[int, int]], steps: int) -> dict[str, float]:
    """Operations of a run's first `steps` steps, by accounting.

    Args:
      objective: the system.
      batch: sequences a step.
      phases: (length of the sequences, steps at that length), one phase after another.
      steps: of the run.
    """
    totals = dict.fromkeys(ACCOUNTINGS, 0.0)
    for name, accounting in ACCOUNTINGS.items():
        begin = 0
        for length, count in phases:
            at_length = functools.partial(accounting.train_step, objective, batch, length)
            end = min(begin + count, steps)
            totals[name] += until(end, objective.stages, at_length) - until(begin, objective.stages, at_length)
            begin = end
    return totals
