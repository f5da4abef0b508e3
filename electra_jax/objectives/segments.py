"""The schedule of a run: its batches, its objective and its trainable parameters at each step.

Each segment is compiled separately, so all of these are static within a segment.
"""

import bisect
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from electra_jax.objectives.spec import Objective, ObjectiveConfig, Stage


class Phase(NamedTuple):
    """Consecutive steps with the same settings, see `config.phases`.

    Attributes:
      steps: the number of steps.
      length: the sequence length, in tokens.
      batch_size: the global batch size, in sequences.
      objective: the settings of the objective.
      learning_rate: the peak learning rate.
      weights: relative sampling weights of the sources of the text; empty: the corpus's.
    """

    steps: int
    length: int
    batch_size: int
    objective: ObjectiveConfig
    learning_rate: float
    weights: tuple[float, ...] = ()


class Segment(NamedTuple):
    """Consecutive steps that run the same compiled program.

    Attributes:
      start: the number of steps done before its first step.
      stop: the number of steps done after its last step.
      length: the sequence length, in tokens.
      batch_size: the global batch size, in sequences.
      objective: the objective, with the settings of the phase.
      stage: the stage of the objective, with the loss of these steps.
    """

    start: int
    stop: int
    length: int
    batch_size: int
    objective: Objective
    stage: Stage

    @property
    def loss(self) -> Any:
        """What the loss depends on besides parameters and batch; equal for segments with the same loss."""
        return self.objective.settings, self.stage.loss

    @property
    def cost(self) -> tuple[Objective, Stage, int, int]:
        """What the cost of a step depends on: (objective, stage, batch size in sequences, sequence length)."""
        return self.objective, self.stage, self.batch_size, self.length


def make_segments(objective: Objective, phases: Sequence[Phase]) -> tuple[Segment, ...]:
    """Splits a run wherever the stage of its objective or its phase changes.

    Args:
      objective: the run's objective.
      phases: the phases, in order; with as many steps as the run.

    Returns:
      Segments without gaps from step 0 to the last; none is empty.
    """
    # Stages and phases divide the same steps independently; a segment ends wherever either does.
    stage_stops = list(itertools.accumulate(stage.steps for stage in objective.stages))
    phase_stops = list(itertools.accumulate(phase.steps for phase in phases))
    if stage_stops[-1] != phase_stops[-1]:
        raise ValueError(f"stages have {stage_stops[-1]} steps, phases {phase_stops[-1]}: expected equal numbers")
    segments = []
    # A set: where both end, or a stage has no steps, there is no empty segment.
    for start, stop in itertools.pairwise(sorted({0, *stage_stops, *phase_stops})):
        # To the right: at a boundary the next phase and stage apply.
        phase = phases[bisect.bisect_right(phase_stops, start)]
        here = dataclasses.replace(objective, settings=phase.objective)
        # Made with the phase's settings, on which the loss may depend (`encoder_weight` of electra_mlm).
        stage = here.stages[bisect.bisect_right(stage_stops, start)]
        segments.append(Segment(start, stop, phase.length, phase.batch_size, here, stage))
    return tuple(segments)


def segment_at(segments: Sequence[Segment], step: int) -> Segment:
    """Returns the segment of the step that follows `step` steps; after the end of the run, the last segment."""
    return next((segment for segment in segments if step < segment.stop), segments[-1])
