"""A run that begins on short sequences, and one whose batches grow."""

import re
import shutil

import numpy as np
import pytest
from cli_runs import arrays, logged, make_objective, quiet, small_config

from electra_jax import train, train_config
from electra_jax.config.errors import UserError
from electra_jax.objectives.segments import make_segments
from electra_jax.planning.flops.totals import count_flops


@pytest.fixture
def run(tmp_path, text_file, light_steps):
    """A function: settings -> the config and the work directory of a run of six steps with them."""

    def run(**settings):
        often = {"steps": 6, "log_every": 1, "checkpoint__every": 2, "checkpoint__keep_last": 9}
        config = small_config(text_file, "objective=mlm", **settings, **often)
        train.train(config, tmp_path / "run", quiet())
        return config, tmp_path / "run"

    return run


SHORT_FIRST = {"data__short_length": 16, "data__short_steps": 3}
GROWING = {"batch_size": 16, "batch_doublings": 1}


def test_short_sequences_come_first_and_cost_less(run):
    config, workdir = run(**SHORT_FIRST)
    lines = logged(workdir)
    sizes = np.diff([0, *(line["total_tokens"] for line in lines)])
    assert all(100 < size <= config.batch_size * 16 for size in sizes[:3])
    assert all(400 < size <= config.batch_size * 64 for size in sizes[3:])
    objective = make_objective(config, 40)
    segments = make_segments(objective.stages, train_config.phases(train_config.resolve(config)))
    for steps, line in enumerate(lines, 1):
        found = count_flops(objective, segments, steps)
        assert line["total_flops"] == pytest.approx(found["model"])
        assert line["total_flops_paper"] == pytest.approx(found["paper"])
    assert lines[2]["flops"] < lines[3]["flops"] / 3
    assert np.all(np.diff([line["epoch"] for line in lines]) > 0)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SHORT_FIRST, GROWING], ids=["length", "batch"])
def test_a_run_goes_on_over_a_switch_and_after_it_with_the_same_bits(run, tmp_path, settings):
    config, whole = run(**settings)
    for kept in (2, 4):
        goes_on_with_the_same_bits(config, whole, tmp_path / f"killed{kept}", kept)


def goes_on_with_the_same_bits(config, whole, workdir, kept):
    """A copy of a run of six steps without its checkpoints after step `kept`."""
    shutil.copytree(whole, workdir)
    for step in (4, 6):
        if step > kept:
            shutil.rmtree(workdir / "checkpoints" / str(step))
    train.train(config, workdir, quiet())
    wanted, found = arrays(whole, 6), arrays(workdir, 6)
    for name, value in wanted.items():
        np.testing.assert_array_equal(value, found[name], err_msg=name)
    assert logged(workdir)[-1]["total_tokens"] == logged(whole)[-1]["total_tokens"]


def test_phases_of_a_config():
    config = small_config(steps=6, **SHORT_FIRST)
    assert train_config.phases(train_config.resolve(config)) == [(16, 8, 3), (64, 8, 3)]
    assert train_config.phases(train_config.resolve(small_config(steps=7))) == [(64, 8, 7)]


@pytest.mark.parametrize(
    ("changes", "phases"),
    [
        ({"batch_doublings": 1}, [(64, 4, 5), (64, 8, 5)]),
        ({"batch_doublings": 2}, [(64, 2, 3), (64, 4, 4), (64, 8, 3)]),
        ({"batch_doublings": 3, "steps": 4}, [(64, 1, 1), (64, 2, 1), (64, 4, 1), (64, 8, 1)]),
        (
            {"batch_doublings": 1, "data__short_length": 16, "data__short_steps": 7},
            [(16, 4, 5), (16, 8, 2), (64, 8, 3)],
        ),
        ({"batch_doublings": 1, "data__short_length": 16, "data__short_steps": 5}, [(16, 4, 5), (64, 8, 5)]),
    ],
    ids=str,
)
def test_the_batch_size_doubles_after_equal_shares_of_the_steps(changes, phases):
    assert train_config.phases(train_config.resolve(small_config(**{"steps": 10, **changes}))) == phases


@pytest.mark.parametrize(
    "changes",
    [
        *({"batch_doublings": 4}, {"batch_doublings": 10**15}),
        *({"batch_doublings": 1, "batch_size": 7}, {"batch_doublings": 2, "steps": 2}),
    ],
)
def test_a_batch_that_cannot_be_halved_so_often_is_refused(changes):
    given = {"steps": 10, "batch_size": 8, **changes}
    message = "config.batch_doublings={batch_doublings} is invalid: expected 2^{batch_doublings} to divide "
    message += "config.batch_size={batch_size}, and fewer doublings than config.steps={steps}; lower it"
    with pytest.raises(UserError, match=f"^{re.escape(message.format(**given))}$"):
        train_config.resolve(small_config(**given))


@pytest.mark.slow
def test_a_larger_batch_costs_more_and_reads_more(run):
    _, workdir = run(**GROWING)
    lines = logged(workdir)
    flops = [line["flops"] for line in lines]
    assert flops[:3] == [pytest.approx(flops[3] / 2)] * 3
    epochs = np.diff([0, *(line["epoch"] for line in lines)])
    np.testing.assert_allclose(epochs, epochs[0] * np.asarray([1, 1, 1, 2, 2, 2]))


@pytest.mark.parametrize("wrong", [{"short_steps": 6}, {"short_steps": 3, "short_length": 64}])
def test_phases_that_cannot_be_are_refused(wrong):
    config = small_config(steps=6, **{f"data__{name}": value for name, value in wrong.items()})
    with pytest.raises(
        UserError, match=r"short_steps=. at config.data.short_length=.* is invalid: expected fewer steps than"
    ):
        train_config.resolve(config)
