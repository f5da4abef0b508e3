import contextlib
import sys
import time

import pytest

from electra_jax.runtime import goodput
from electra_jax.runtime.goodput import CATEGORIES, PHASES, Clock

IMPORTED = time.monotonic()


class FakeTime:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def fake():
    return FakeTime()


def spend(fake: FakeTime, clock: Clock, **seconds: float) -> None:
    for name, value in seconds.items():
        with clock.phase(name):
            fake.now += value


def with_totals(**seconds: float) -> dict[str, float]:
    return {f"seconds_{name}": seconds.get(name, 0.0) for name in CATEGORIES}


def test_phases_add_up_to_the_wall_time_whatever_is_nested(fake):
    clock = Clock(started=90.0, now=fake)
    fake.now += 5
    with clock.phase("step"):
        fake.now += 1
        with clock.phase("data"):
            fake.now += 2
        with contextlib.suppress(KeyError), clock.phase("evaluation"):
            fake.now += 4
            raise KeyError
        fake.now += 8
        assert clock.seconds()["step"] == 9  # with the phase that has not ended
    fake.now += 16
    seconds = clock.seconds()
    assert seconds == {"setup": 31, "compile": 0, "data": 2, "step": 9, "evaluation": 4, "checkpoint": 0, "lost": 0}
    assert sum(seconds.values()) == fake.now - 90


def test_laps_add_up_to_the_phases(fake):
    clock = Clock(now=fake)
    clock.add_earlier(with_totals(step=1000.0, lost=50.0))
    spend(fake, clock, compile=3.0, step=1.0)
    first = clock.lap()
    spend(fake, clock, step=2.0, checkpoint=0.5)
    second = clock.lap()
    assert first == {**dict.fromkeys(PHASES, 0.0), "compile": 3.0, "step": 1.0}
    assert second == {**dict.fromkeys(PHASES, 0.0), "step": 2.0, "checkpoint": 0.5}
    assert clock.seconds()["step"] == 1003


def test_goodput_is_the_share_of_steps_that_were_not_lost(fake):
    clock = Clock(now=fake)
    clock.add_earlier(with_totals(setup=10.0, step=60.0, lost=30.0))
    assert goodput.goodput(clock.seconds()) == 0.6
    assert goodput.describe(clock.totals()) == (
        "60% of 1.7 min: step 1.0 min (60.0%), lost 30.0 s (30.0%), setup 10.0 s (10.0%)"
    )


def logged(clock: Clock) -> dict[str, float]:
    """What a line of metrics.jsonl has."""
    return {f"total_seconds_{name}": seconds for name, seconds in clock.seconds().items()}


def test_what_a_killed_start_logged_after_its_checkpoint_is_lost(fake):
    first = Clock(started=98.0, now=fake)
    spend(fake, first, compile=10.0, step=20.0)
    saved = first.totals()  # a checkpoint is saved ...
    spend(fake, first, checkpoint=1.0, step=7.0, data=2.0, evaluation=3.0)
    line = logged(first)  # ... and this is the last that the start logs before it is killed
    earlier = goodput.time_of_earlier_starts(saved, line)
    assert earlier == with_totals(setup=2.0, compile=10.0, step=20.0, evaluation=3.0, checkpoint=1.0, lost=9.0)
    second = Clock(started=fake.now, now=fake)
    second.add_earlier(earlier)
    spend(fake, second, step=5.0)
    assert goodput.time_of_earlier_starts(saved, logged(second)) == {**earlier, "seconds_lost": 14.0}


def test_time_that_only_the_checkpoint_has_counted_is_counted_once():
    """The line of a step is written before its checkpoint."""
    saved = with_totals(compile=10.0, step=20.0)
    assert goodput.time_of_earlier_starts(saved, {"total_seconds_step": 19.0, "step": 7}) == saved
    assert goodput.time_of_earlier_starts({}, {}) == with_totals()


def test_a_process_started_before_now():
    latest = IMPORTED if sys.platform == "linux" else time.monotonic()  # other systems do not tell
    assert time.monotonic() - 3600 * 24 < goodput.process_started() <= latest
