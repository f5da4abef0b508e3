import json
import subprocess
import sys
import threading
import types

import pytest
from cli_runs import environment

from electra_jax.runtime import watchdog
from electra_jax.runtime.goodput import Activity
from electra_jax.runtime.watchdog import Watchdog


class FakeClock:
    def __init__(self):
        self.now = Activity("setup", 1000.0)

    def activity(self) -> Activity:
        return self.now


class FakeClient:
    """JAX's key-value store, which all processes share; `answers` is whether process 0 does."""

    def __init__(self):
        self.store: dict[str, str] = {}
        self.answers = True

    def key_value_set(self, key, value, allow_overwrite):
        assert allow_overwrite
        self.store[key] = value

    def key_value_dir_get(self, folder):
        if not self.answers:
            raise watchdog.jax.errors.JaxRuntimeError("UNAVAILABLE")
        return [(key, value) for key, value in self.store.items() if key.startswith(folder)]

    def say(self, number, beat, hangs=0, failure=""):
        self.store[f"alive/{number}"] = json.dumps([beat, hangs, failure])


class EndedError(Exception):
    pass


@pytest.fixture
def several(monkeypatch):
    """The watchdog's view of process 1 of 3, at a time that the test sets; instead of ending, it raises."""
    time = types.SimpleNamespace(now=0.0, monotonic=lambda: time.now)
    monkeypatch.setattr(watchdog, "time", time)
    monkeypatch.setattr(watchdog.jax, "process_index", lambda: 1)
    monkeypatch.setattr(watchdog.jax, "process_count", lambda: 3)

    def end(message):
        raise EndedError(message)

    monkeypatch.setattr(watchdog, "end", end)
    client, clock = FakeClient(), FakeClock()
    return time, client, clock, Watchdog(20, clock, client), watchdog._Peers(client)


def turn(dog, peers):
    """What its two threads do in a second."""
    dog._exchange(peers)
    dog._look_after(peers)


@pytest.mark.parametrize(
    ("phase", "seconds", "expected"),
    [
        ("step", 19.0, False),
        ("step", 21.0, True),
        ("data", 21.0, True),
        *((phase, 1e6, False) for phase in ("setup", "compile", "evaluation", "checkpoint")),
    ],
)
def test_a_hang_is_a_step_that_lasts_longer_than_patience(phase, seconds, expected):
    clock = FakeClock()
    dog = Watchdog(20, clock)
    clock.now = Activity(phase, seconds)
    assert dog._hangs_now() == expected


def test_a_hang_is_reported_once_in_patience_seconds():
    clock = FakeClock()
    dog = Watchdog(20, clock)
    reports = []
    for seconds in range(100):
        clock.now = Activity("step", float(seconds))
        if dog._hangs_now():
            reports.append(seconds)
    assert reports == [21, 42, 63, 84]
    clock.now = Activity("step", 0.0)  # it went on
    assert not dog._hangs_now()
    clock.now = Activity("step", 21.0)
    assert dog._hangs_now()


def test_the_others_say_what_they_do_when_a_step_hangs_in_one(several, capfd):
    _, client, clock, dog, peers = several
    clock.now = Activity("checkpoint", 33.0)
    client.say(0, 1)
    turn(dog, peers)
    client.say(0, 2, hangs=1)
    for _ in range(2):  # reported once
        turn(dog, peers)
    err = capfd.readouterr().err
    assert err.count("warning: ") == 1
    assert (
        "warning: process 1: process 0 has finished no step for 20 seconds; this process has been in the phase "
        "'checkpoint' for 33 seconds; the Python stacks of its threads:\n"
    ) in err
    assert "test_the_others_say_what_they_do" in err  # the stack of this thread


def test_the_reason_for_which_another_process_ends_is_passed_on(several):
    time, client, _, dog, peers = several
    client.say(0, 1)
    client.say(2, 1, failure="no space left")
    turn(dog, peers)
    time.now += watchdog.GRACE
    turn(dog, peers)
    time.now += 0.1
    with pytest.raises(EndedError, match=r"^process 2: no space left$"):
        turn(dog, peers)


def test_a_process_that_fails_itself_reports_only_that(several):
    time, client, _, dog, peers = several
    client.say(2, 1, failure="no space left")
    turn(dog, peers)
    dog.fail("no space left")
    assert json.loads(client.store["alive/1"])[2] == "no space left"  # told at once
    time.now += 1000
    turn(dog, peers)


def test_silent_processes_are_named(several):
    time, client, _, dog, peers = several
    for beat in range(30):
        time.now += 1
        client.say(0, beat)
        if beat < 5:
            client.say(2, beat)
        if time.now <= 25:
            turn(dog, peers)
    with pytest.raises(EndedError, match="process 1 stops: process 2 of 3 has not answered for 20 seconds; run"):
        turn(dog, peers)


def test_process_0_keeps_the_list(several):
    time, client, _, dog, peers = several
    client.answers = False
    for seconds in range(21):
        time.now = float(seconds)
        turn(dog, peers)
    time.now = 20.1
    with pytest.raises(EndedError, match="process 1 stops: process 0 of 3 has not answered for 20 seconds"):
        turn(dog, peers)


def test_a_call_that_never_returns_does_not_keep_the_watchdog_from_ending_the_process(monkeypatch):
    returns, ended, messages = threading.Event(), threading.Event(), []

    class SilentClient(FakeClient):
        def key_value_dir_get(self, folder):
            returns.wait()
            return []

    def end(message):
        messages.append(message)
        ended.set()
        returns.wait()

    monkeypatch.setattr(watchdog.jax, "process_index", lambda: 1)
    monkeypatch.setattr(watchdog.jax, "process_count", lambda: 2)
    monkeypatch.setattr(watchdog, "end", end)
    dog = Watchdog(0.1, FakeClock(), SilentClient())
    dog.start()
    assert ended.wait(60)
    returns.set()
    dog.stop()
    assert messages[0].startswith("process 1 stops: process 0 of 2 has not answered for 0.1 seconds")


def test_after_a_pause_of_this_process_the_others_get_their_time_again(several):
    time, client, _, dog, peers = several
    for number in (0, 2):
        client.say(number, 1)
    turn(dog, peers)
    time.now += 1000  # as by Ctrl-Z and `fg`
    dog._look_after(peers)
    for _ in range(20):
        time.now += 1
        dog._look_after(peers)
    time.now += 1
    with pytest.raises(EndedError, match="process 0 of 3 has not answered for 20 seconds"):
        dog._look_after(peers)


HANGING = """
import time
from electra_jax.runtime import distributed
from electra_jax.runtime.goodput import Clock

def a_step_that_hangs():
    time.sleep(2.5)

clock = Clock()
with distributed.initialize({**distributed.OPTIONS, "patience": 1}, clock), clock.phase("step"):
    a_step_that_hangs()
print("goes on")
"""


@pytest.mark.slow
def test_a_single_process_prints_its_stacks_and_goes_on():
    done = subprocess.run(
        [sys.executable, "-c", HANGING], capture_output=True, text=True, env=environment(), check=True
    )
    first, *stacks = done.stderr.splitlines()
    assert first.startswith(
        "warning: no step has finished for 1 seconds; this process has been in the phase 'step' for"
    )
    assert any("a_step_that_hangs" in line for line in stacks)
    assert done.stdout == "goes on\n"
