import contextlib
import json
import os
import time

import pytest

from electra_jax.runtime import goodput
from electra_jax.runtime.goodput import CATEGORIES, PHASES, Clock, Ledger


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
    return {f"seconds_{name}": seconds.get(name, 0.0) for name in (*CATEGORIES, "down")}


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
        assert clock.activity() == ("step", 8)
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
    clock.add_earlier(with_totals(setup=10.0, step=60.0, lost=30.0, down=7200.0))
    assert goodput.goodput(clock.seconds()) == 0.6
    assert goodput.describe(clock.totals()) == (
        "60% of 1.7 min: step 1.0 min (60.0%), lost 30.0 s (30.0%), setup 10.0 s (10.0%); 2.0 h between starts"
    )


def start(folder, fake: FakeTime, saved: dict[str, float]) -> tuple[Clock, Ledger]:
    """Starts a run, two seconds of set-up included; it ends with a kill after what the caller lets it do."""
    clock = Clock(now=fake)
    fake.now += 2
    return clock, Ledger(folder, clock, saved)


def test_what_a_killed_start_did_after_its_checkpoint_is_lost(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(goodput.time, "time", fake)
    first, ledger = start(tmp_path, fake, {})
    spend(fake, first, compile=10.0, step=20.0)
    saved = first.totals()  # a checkpoint is saved ...
    spend(fake, first, checkpoint=1.0, step=7.0, data=2.0, evaluation=3.0)
    ledger.write()  # ... and this is the last that the start writes before it is killed
    fake.now += 300
    second, ledger = start(tmp_path, fake, saved)
    seconds = second.seconds()
    known = {"setup": 4.0, "compile": 10.0, "step": 20.0, "evaluation": 3.0, "checkpoint": 1.0, "lost": 9.0}
    assert seconds == {**dict.fromkeys(CATEGORIES, 0.0), **known}
    assert second.totals()["seconds_down"] == 300
    assert sum(seconds.values()) + 300 == fake.now - 100  # the time of both starts, and between them

    spend(fake, second, data=1.0, step=5.0)
    ledger.write()
    third, _ = start(tmp_path, fake, saved)  # killed before its first checkpoint: from the same one again
    assert (third.seconds()["step"], third.seconds()["lost"], third.seconds()["setup"]) == (20, 15, 6)


def test_without_a_checkpoint_all_steps_are_lost(fake, tmp_path):
    first, ledger = start(tmp_path, fake, {})
    spend(fake, first, compile=10.0, step=20.0)
    ledger.write()
    second, _ = start(tmp_path, fake, {})
    assert second.seconds() == {**dict.fromkeys(CATEGORIES, 0.0), "setup": 4.0, "compile": 10.0, "lost": 20.0}


def test_an_interrupted_run_that_was_saved_has_lost_nothing(fake, tmp_path, monkeypatch):
    monkeypatch.setattr(goodput.time, "time", fake)
    first, ledger = start(tmp_path, fake, {})
    spend(fake, first, step=20.0)
    saved = first.totals()
    spend(fake, first, checkpoint=4.0)  # until it is written
    ledger.write()
    again, _ = start(tmp_path, fake, saved)
    assert (again.seconds()["lost"], again.seconds()["checkpoint"]) == (0, 4)
    assert again.totals()["seconds_down"] == 0


def test_time_that_only_the_checkpoint_has_counted_is_counted_once(fake, tmp_path, monkeypatch):
    """Killed after a checkpoint and before `goodput.json` was written again."""
    monkeypatch.setattr(goodput.time, "time", fake)
    first, _ = start(tmp_path, fake, {})
    spend(fake, first, compile=10.0, step=20.0)
    saved = first.totals()
    fake.now += 300
    second, _ = start(tmp_path, fake, saved)
    assert second.totals() == with_totals(setup=4.0, compile=10.0, step=20.0, down=300.0)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"seconds_step": 1}', '{"seconds_step": null, "written": "x"}', "x" * 5000]
)
def test_a_file_that_cannot_be_read_counts_as_none(text, fake, tmp_path):
    (tmp_path / goodput.FILE).write_text(text)
    clock, _ = start(tmp_path, fake, with_totals(step=3.0, compile=1.0))
    assert (clock.seconds()["step"], clock.seconds()["compile"], clock.seconds()["lost"]) == (3, 1, 0)
    assert json.loads((tmp_path / goodput.FILE).read_text())["seconds_step"] == 3


def test_the_file_is_rewritten_in_place_while_the_run_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(goodput, "_WRITE_EVERY", 0.001)
    clock = Clock()
    with Ledger(tmp_path, clock, {}), clock.phase("step"):
        deadline = time.monotonic() + 60
        seen = set()
        while len(seen) < 5 and time.monotonic() < deadline:
            seen.add(json.loads((tmp_path / goodput.FILE).read_text())["seconds_step"])
        assert os.listdir(tmp_path) == [goodput.FILE]
    assert len(seen) >= 5
    assert json.loads((tmp_path / goodput.FILE).read_text())["seconds_step"] >= max(seen)


def test_only_one_process_keeps_the_file(fake, tmp_path):
    with Ledger(tmp_path, Clock(now=fake), {}, enabled=False):
        pass
    assert os.listdir(tmp_path) == []


def test_a_process_started_before_now():
    assert time.monotonic() - 3600 * 24 < goodput.process_started() <= time.monotonic()
