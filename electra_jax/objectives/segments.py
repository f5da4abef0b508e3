"""The schedule of a run: its batch size, sequence length, loss and trainable parameters at each step.

Each segment is compiled separately, so all of these are static within a segment.
"""

import bisect
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from electra_jax.objectives.spec import Stage


class Phase(NamedTuple):
    """Consecutive steps with batches of the same shape.

    Attributes:
      length: the sequence length, in tokens.
      batch_size: the global batch size, in sequences.
      steps: the number of steps.
    """

    length: int
    batch_size: int
    steps: int


class Segment(NamedTuple):
    """Consecutive steps that run the same compiled program.

    Attributes:
      start: the number of steps done before its first step.
      stop: the number of steps done after its last step.
      length: the sequence length, in tokens.
      batch_size: the global batch size, in sequences.
      stage: the stage of the objective, with the loss of these steps.
    """

    start: int
    stop: int
    length: int
    batch_size: int
    stage: Stage


def make_segments(stages: Sequence[Stage], phases: Sequence[Phase]) -> tuple[Segment, ...]:
    """Splits a run wherever its stage or the shape of its batches changes.

    Args:
      stages: the objective's stages, in order.
      phases: the shapes of the batches, in order; with the same total number of steps as `stages`.

    Returns:
      Segments without gaps from step 0 to the last; none is empty.
    """
    stage_stops = list(itertools.accumulate(stage.steps for stage in stages))
    phase_stops = list(itertools.accumulate(phase.steps for phase in phases))
    if stage_stops[-1] != phase_stops[-1]:
        raise ValueError(f"stages have {stage_stops[-1]} steps, phases {phase_stops[-1]}: expected equal numbers")
    segments = []
    for start, stop in itertools.pairwise(sorted({0, *stage_stops, *phase_stops})):
        phase = phases[bisect.bisect_right(phase_stops, start)]
        stage = stages[bisect.bisect_right(stage_stops, start)]
        segments.append(Segment(start, stop, phase.length, phase.batch_size, stage))
    return tuple(segments)


def segment_at(segments: Sequence[Segment], step: int) -> Segment:
    """Returns the segment of the step that follows `step` steps; after the end of the run, the last segment."""
    return next((segment for segment in segments if step < segment.stop), segments[-1])
