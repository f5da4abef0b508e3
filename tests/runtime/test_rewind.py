import json

import pytest

from electra_jax.config.errors import UserError
from electra_jax.runtime import rewind
from electra_jax.runtime.rewind import Rewind, Rewinds
from electra_jax.runtime.workdir import WorkDir

STEPS = [10, 20, 30]


@pytest.fixture
def home(tmp_path):
    return WorkDir(tmp_path)


def test_a_rewind_is_made_once(home):
    planned = rewind.plan(home, Rewind(20, 5), STEPS)
    assert planned == Rewinds([Rewind(20, 5)], True)
    assert planned.newest(STEPS) == 20
    assert rewind.read(home) == Rewinds([], False)
    rewind.write(home, planned)
    assert rewind.plan(home, None, STEPS) == planned  # interrupted
    rewind.write(home, planned.settled(20))
    again = rewind.plan(home, Rewind(20, 5), [20, 40])  # the same command again
    assert again == rewind.read(home) == Rewinds([Rewind(20, 5)], False)
    assert again.newest([20, 40]) == 40


def test_a_rewind_replaces_those_to_later_steps_and_to_its_own(home):
    for asked in (Rewind(10, 1), Rewind(20, 2), Rewind(30, 3), Rewind(20, 4)):
        rewind.write(home, rewind.plan(home, asked, STEPS))
    made = [Rewind(10, 1), Rewind(20, 4)]
    assert rewind.read(home) == Rewinds(made, True)
    assert [Rewinds(made, False).skipped_batches(*span) for span in ((0, 10), (0, 11), (10, 30), (20, 21))] == [
        0,
        1,
        5,
        4,
    ]


@pytest.mark.parametrize(
    ("asked", "steps", "message"),
    [
        (Rewind(15, 0), STEPS, "no checkpoint of --rewind_to=15: expected one of 10, 20, 30"),
        (Rewind(0, 0), [], "it has none yet; leave --rewind_to out"),
        (Rewind(-3, 0), STEPS, "--rewind_to=-3 is invalid: expected an integer, 0 or more"),
        (Rewind(10, -1), STEPS, "--skip_batches=-1 is invalid"),
    ],
)
def test_a_rewind_that_cannot_be_made(home, asked, steps, message):
    with pytest.raises(UserError, match=message):
        rewind.plan(home, asked, steps)
    assert not (home.folder / rewind.FILE).exists()


@pytest.mark.parametrize(
    ("made", "steps", "newest"),
    [
        (Rewinds([], False), [], None),
        (Rewinds([Rewind(20, 0)], False), STEPS, 30),
        (Rewinds([Rewind(20, 0)], True), STEPS, 20),
        (Rewinds([Rewind(20, 0)], True), [10, 30], 10),  # moved away after the rewind was interrupted
    ],
)
def test_the_checkpoint_that_a_run_resumes_from(made, steps, newest):
    assert made.newest(steps) == newest


@pytest.mark.parametrize(
    "content", [{}, {"rewinds": [{"step": "x"}], "pending": True}, {"rewinds": 3, "pending": True}]
)
def test_a_damaged_file(home, content):
    (home.folder / rewind.FILE).write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"rewinds\.json is damaged"):
        rewind.read(home)


@pytest.mark.parametrize(("latest", "left"), [(30, [10, 30]), (29, [10]), (10, [10]), (9, []), (None, [])])
def test_rewinds_after_the_newest_checkpoint_are_forgotten(latest, left):
    made = Rewinds([Rewind(10, 1), Rewind(30, 1)], False)
    assert made.settled(latest) == Rewinds([Rewind(step, 1) for step in left], False)
