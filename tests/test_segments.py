"""A run that begins on short sequences, and one whose text is a mixture."""

import re
import shutil

import numpy as np
import pytest
from cli_runs import arrays, logged, make_objective, quiet, small_config

from electra_jax import train, train_config
from electra_jax.config.errors import UserError
from electra_jax.objectives.segments import make_segments
from electra_jax.planning.flops.totals import count_flops


@pytest.fixture(scope="module")
def short_first(tmp_path_factory, text_file):
    """(config, work directory) of three steps at 16 and three at 64."""
    settings = {"data__short_length": 16, "data__short_steps": 3, "steps": 6, "log_every": 1}
    config = small_config(text_file, "objective=mlm", **settings, checkpoint__every=2, checkpoint__keep_last=9)
    workdir = tmp_path_factory.mktemp("short_first")
    train.train(config, workdir, quiet())
    return config, workdir


def test_short_sequences_come_first_and_cost_less(short_first):
    config, workdir = short_first
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
@pytest.mark.parametrize("kept", [2, 4])
def test_it_goes_on_over_the_switch_with_the_same_bits(short_first, tmp_path, kept):
    goes_on_with_the_same_bits(*short_first, tmp_path / "killed", kept)


def goes_on_with_the_same_bits(config, whole, workdir, kept):
    """A copy of a run of six steps without its checkpoints after step `kept`."""
    shutil.copytree(whole, workdir)
    for step in (4, 6):
        if step > kept:
            shutil.rmtree(workdir / "checkpoints" / str(step))
    train.train(config, workdir, quiet())
    for name, value in arrays(whole, 6).items():
        np.testing.assert_array_equal(value, arrays(workdir, 6)[name], err_msg=name)
    assert logged(workdir)[-1]["total_tokens"] == logged(whole)[-1]["total_tokens"]


def test_phases_of_a_config(short_first):
    config, _ = short_first
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


@pytest.fixture(scope="module")
def growing(tmp_path_factory, text_file):
    """(config, work directory) of three steps with batches of 8 and three with batches of 16."""
    settings = {"steps": 6, "batch_size": 16, "batch_doublings": 1, "log_every": 1}
    config = small_config(text_file, "objective=mlm", **settings, checkpoint__every=2, checkpoint__keep_last=9)
    workdir = tmp_path_factory.mktemp("growing")
    train.train(config, workdir, quiet())
    return config, workdir


@pytest.mark.slow
def test_a_larger_batch_costs_more_and_reads_more(growing):
    _, workdir = growing
    lines = logged(workdir)
    flops = [line["flops"] for line in lines]
    assert flops[:3] == [pytest.approx(flops[3] / 2)] * 3
    epochs = np.diff([0, *(line["epoch"] for line in lines)])
    np.testing.assert_allclose(epochs, epochs[0] * np.asarray([1, 1, 1, 2, 2, 2]))


@pytest.mark.slow
@pytest.mark.parametrize("kept", [2, 4])
def test_a_growing_batch_goes_on_with_the_same_bits(growing, tmp_path, kept):
    goes_on_with_the_same_bits(*growing, tmp_path / "killed", kept)


@pytest.mark.parametrize("wrong", [{"short_steps": 6}, {"short_steps": 3, "short_length": 64}])
def test_phases_that_cannot_be_are_refused(wrong):
    config = small_config(steps=6, **{f"data__{name}": value for name, value in wrong.items()})
    with pytest.raises(
        UserError, match=r"short_steps=. at config.data.short_length=.* is invalid: expected fewer steps than"
    ):
        train_config.resolve(config)


@pytest.mark.slow
def test_a_mixture_is_trained_on(tmp_path, text_file):
    config = small_config(text_file, steps=2, data__mode="packed")
    config.data.input = f"{text_file}@3;docstrings:json@1"
    config.data.vocab_size = 90
    assert train.train(config, tmp_path, quiet()).finished
