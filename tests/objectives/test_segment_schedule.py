import dataclasses
import functools

import pytest
from cli_runs import make_objective, small_config

from electra_jax.flops.totals import count_flops
from electra_jax.objectives.segments import Phase, Segment, make_segments, segment_at
from electra_jax.objectives.spec import Objective, Stage


@functools.cache
def objective() -> Objective:
    """Stages of 3 and 7 steps."""
    return make_objective(small_config(steps=10, arg="objective=two_stage", objective__generator_steps=3), 600)


def phases(*each: tuple[int, int], o: Objective | None = None) -> list[Phase]:
    """Of (length, steps), with batches of 4."""
    return [Phase(steps, length, 4, (o or objective()).settings, 1e-3) for length, steps in each]


def described(segments) -> list[tuple[int, int, int, int]]:
    """(start, stop, length, number of the stage)."""
    return [(each.start, each.stop, each.length, each.objective.stages.index(each.stage)) for each in segments]


def test_a_run_is_split_where_its_stage_or_its_phase_changes():
    segments = make_segments(objective(), phases((16, 6), (64, 4)))
    assert described(segments) == [(0, 3, 16, 0), (3, 6, 16, 1), (6, 10, 64, 1)]


def test_a_run_is_split_where_its_batch_size_changes():
    settings = objective().settings
    segments = make_segments(objective(), [Phase(5, 16, 2, settings, 1e-3), Phase(5, 16, 4, settings, 1e-3)])
    assert [(each.start, each.batch_size) for each in segments] == [(0, 2), (3, 2), (5, 4)]


def test_a_stage_and_a_phase_that_change_together_make_one_boundary():
    assert described(make_segments(objective(), phases((16, 3), (64, 7)))) == [(0, 3, 16, 0), (3, 10, 64, 1)]


def test_a_stage_without_steps_has_no_segment():
    def stages(settings, steps):
        return Stage(10, (), None), Stage(0, (), None)

    o = dataclasses.replace(objective(), system=dataclasses.replace(objective().system, stages=stages))
    (segment,) = make_segments(o, phases((16, 10)))
    assert segment.stage.steps == 10


def test_segments_have_the_settings_of_their_phase():
    """And the same loss where only the shapes differ."""
    o = make_objective(small_config(steps=10), 600)
    other = dataclasses.replace(o.settings, mask_prob=0.3)
    given = [Phase(2, 16, 4, o.settings, 1e-3), Phase(3, 64, 4, o.settings, 1e-3), Phase(5, 64, 4, other, 1e-3)]
    first, longer, masked = make_segments(o, given)
    assert [each.objective.settings.mask_prob for each in (first, longer, masked)] == [0.15, 0.15, 0.3]
    assert first.loss == longer.loss != masked.loss
    assert {each.objective.model for each in (first, masked)} == {o.model}


def test_stages_and_phases_must_have_the_same_number_of_steps():
    with pytest.raises(ValueError, match="stages have 10 steps, phases 5: expected equal numbers"):
        make_segments(objective(), phases((16, 5)))


@pytest.mark.parametrize(("step", "start"), [(0, 0), (2, 0), (3, 3), (5, 3), (6, 6), (9, 6), (10, 6), (100, 6)])
def test_the_segment_of_the_step_after_so_many(step, start):
    segments = make_segments(objective(), phases((16, 6), (64, 4)))
    assert segment_at(segments, step).start == start


@pytest.mark.parametrize("steps", [0, 2, 3, 4, 6, 7, 10])
def test_flops_add_up_over_segments(steps):
    """Stages of 3 and 7 steps; 6 steps at 16, then 4 at 64."""
    o = objective()

    def one_step(stage: Stage, length: int, accounting: str) -> float:
        return count_flops([Segment(0, 1, length, 4, o, stage)], 1)[accounting]

    first, second = o.stages
    segments = make_segments(o, phases((16, 6), (64, 4)))
    schedule = [(first, 16)] * 3 + [(second, 16)] * 3 + [(second, 64)] * 4
    for accounting, counted in count_flops(segments, steps).items():
        assert counted == pytest.approx(sum(one_step(*each, accounting) for each in schedule[:steps]), rel=1e-12)
