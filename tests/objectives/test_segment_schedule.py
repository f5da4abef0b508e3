import functools

import pytest
from cli_runs import make_objective, small_config

from electra_jax.objectives.segments import Phase, Segment, make_segments, segment_at
from electra_jax.objectives.spec import Stage
from electra_jax.planning.flops.totals import count_flops


def stage(steps: int) -> Stage:
    return Stage(steps, (), loss=lambda objective, params, x: (x, {}))


def phases(*each: tuple[int, int]) -> list[Phase]:
    """Of (length, steps), with batches of 4."""
    return [Phase(length, 4, steps) for length, steps in each]


def described(segments) -> list[tuple[int, int, int]]:
    return [(segment.start, segment.stop, segment.length) for segment in segments]


def test_a_run_is_split_where_its_stage_or_its_length_changes():
    first, second = stage(3), stage(5)
    segments = make_segments([first, second], phases((16, 6), (64, 2)))
    assert described(segments) == [(0, 3, 16), (3, 6, 16), (6, 8, 64)]
    assert [segment.stage for segment in segments] == [first, second, second]


def test_a_run_is_split_where_its_batch_size_changes():
    only = stage(8)
    segments = make_segments([only], [Phase(16, 2, 3), Phase(16, 4, 5)])
    assert segments == (Segment(0, 3, 16, 2, only), Segment(3, 8, 16, 4, only))


def test_a_run_of_one_kind_is_one_segment():
    only = stage(8)
    assert make_segments([only], phases((16, 8))) == (Segment(0, 8, 16, 4, only),)


def test_a_stage_and_a_length_that_change_together_make_one_boundary():
    assert described(make_segments([stage(4), stage(4)], phases((16, 4), (64, 4)))) == [(0, 4, 16), (4, 8, 64)]


def test_a_stage_without_steps_has_no_segment():
    last = stage(0)
    assert all(segment.stage is not last for segment in make_segments([stage(4), last], phases((16, 4))))


def test_stages_and_phases_must_have_the_same_number_of_steps():
    with pytest.raises(ValueError, match="stages have 4 steps, phases 5: expected equal numbers"):
        make_segments([stage(4)], phases((16, 5)))


@pytest.mark.parametrize(("step", "start"), [(0, 0), (2, 0), (3, 3), (5, 3), (6, 6), (7, 6), (8, 6), (100, 6)])
def test_the_segment_of_the_step_after_so_many(step, start):
    segments = make_segments([stage(3), stage(5)], phases((16, 6), (64, 2)))
    assert segment_at(segments, step).start == start


@functools.cache
def objective():
    return make_objective(small_config(steps=10, arg="objective=two_stage", objective__generator_steps=3), 600)


@pytest.mark.parametrize("steps", [0, 2, 3, 4, 6, 7, 10])
def test_flops_add_up_over_segments(steps):
    """Stages of 3 and 7 steps; 6 steps at 16, then 4 at 64."""
    o = objective()

    def one_step(stage: Stage, length: int, accounting: str) -> float:
        return count_flops(o, [Segment(0, 1, length, 4, stage)], 1)[accounting]

    first, second = o.stages
    segments = make_segments(o.stages, phases((16, 6), (64, 4)))
    schedule = [(first, 16)] * 3 + [(second, 16)] * 3 + [(second, 64)] * 4
    for accounting, counted in count_flops(o, segments, steps).items():
        assert counted == pytest.approx(sum(one_step(*each, accounting) for each in schedule[:steps]), rel=1e-12)
