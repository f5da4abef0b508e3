"""The schedule of a run: from which step on, which sequence length, which loss, which trainable parameters.

Each segment is compiled on its own, so all of these are static within a segment.
"""

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from electra_jax.objectives.spec import Stage


class Segment(NamedTuple):
    """Consecutive steps that run the same compiled program.

    Attributes:
      start: steps done before its first step.
      stop: steps done after its last step.
      length: tokens in a sequence.
      stage: what these steps minimize.
    """

    start: int
    stop: int
    length: int
    stage: Stage


def make_segments(stages: Sequence[Stage], phases: Sequence[tuple[int, int]]) -> tuple[Segment, ...]:
    """Splits a run wherever its stage or its sequence length changes.

    Args:
      stages: the objective's stages, in order.
      phases: (sequence length, steps at that length), in order; as many steps in total as `stages` have.

    Returns:
      Segments without gaps from step 0 to the last; none is empty.
    """
    stage_stops = list(itertools.accumulate(stage.steps for stage in stages))
    phase_stops = list(itertools.accumulate(steps for _, steps in phases))
    if stage_stops[-1] != phase_stops[-1]:
        raise ValueError(f"stages have {stage_stops[-1]} steps, phases {phase_stops[-1]}: expected equal numbers")
    return tuple(
        Segment(
            start,
            stop,
            length=phases[bisect.bisect_right(phase_stops, start)][0],
            stage=stages[bisect.bisect_right(stage_stops, start)],
        )
        for start, stop in itertools.pairwise(sorted({0, *stage_stops, *phase_stops}))
    )


def segment_at(segments: Sequence[Segment], step: int) -> Segment:
    """The segment of the step that follows `step` steps; beyond the end of the run, the last one."""
    return next((segment for segment in segments if step < segment.stop), segments[-1])
