"""Runs whose phases differ in length, batch size, objective, learning rate or the weights of their text."""

import dataclasses
import re
import shutil

import hypothesis.strategies as st
import numpy as np
import pytest
from cli_runs import arrays, logged, make_objective, quiet, small_config
from hypothesis import given

from electra_jax import optim, train, train_config, train_setup
from electra_jax.config.errors import UserError
from electra_jax.data import pipeline
from electra_jax.flops.totals import count_flops
from electra_jax.loading.networks import load_networks
from electra_jax.loading.run_checkpoint import saved_steps
from electra_jax.objectives.segments import make_segments
from electra_jax.optim import OptimConfig


@pytest.fixture
def run(tmp_path, text_file, light_steps):
    """A function: settings -> the config and the work directory of a run of six steps with them."""

    def run(**settings):
        often = {"steps": 6, "log_every": 1, "checkpoint__every": 2, "checkpoint__keep_last": 9}
        config = small_config(text_file, "objective=mlm", **{**often, **settings})
        workdir = tmp_path / f"run{len([*tmp_path.iterdir()])}"
        train.train(config, workdir, quiet())
        return config, workdir

    return run


SHORT_FIRST = {"phases": "1/2 data.seq_length=16; 1/2"}
GROWING = {"batch_size": 16, "phases": "1/2 batch_size=8; 1/2"}


def test_short_sequences_come_first_and_cost_less(run):
    config, workdir = run(**SHORT_FIRST)
    lines = logged(workdir)
    sizes = np.diff([0, *(line["total_tokens"] for line in lines)])
    assert all(100 < size <= config.batch_size * 16 for size in sizes[:3])
    assert all(400 < size <= config.batch_size * 64 for size in sizes[3:])
    objective = make_objective(config, 40)
    segments = make_segments(objective, train_config.phases(train_config.resolve(config)))
    for steps, line in enumerate(lines, 1):
        found = count_flops(segments, steps)
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


@pytest.mark.slow
def test_a_larger_batch_costs_more_and_reads_more(run):
    _, workdir = run(**GROWING)
    lines = logged(workdir)
    flops = [line["flops"] for line in lines]
    assert flops[:3] == [pytest.approx(flops[3] / 2)] * 3
    epochs = np.diff([0, *(line["epoch"] for line in lines)])
    np.testing.assert_allclose(epochs, epochs[0] * np.asarray([1, 1, 1, 2, 2, 2]))


RUN = {"steps": 10, "model__max_length": 64}


def phases_of(text: str, **changes):
    return train_config.phases(train_config.resolve(small_config(phases=text, **{**RUN, **changes})))


def test_a_config_without_phases_is_one_phase():
    (whole,) = phases_of("")
    assert whole[:3] == (10, 64, 8)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("1/2; 1/2", [5, 5]),
        ("0.9; 0.1", [9, 1]),
        ("1/3; 1/3; 1/3;", [3, 4, 3]),
        (" 1 ", [10]),
        (".25;.25;.5", [2, 3, 5]),
    ],
)
def test_the_steps_are_split_by_shares(text, steps):
    assert [phase.steps for phase in phases_of(text)] == steps


@given(parts=st.lists(st.integers(1, 9), min_size=1, max_size=6), steps=st.integers(100, 1000))
def test_shares_leave_no_step_out(parts, steps):
    found = phases_of("; ".join(f"{part}/{sum(parts)}" for part in parts), steps=steps)
    assert sum(phase.steps for phase in found) == steps
    assert all(abs(phase.steps - steps * part / sum(parts)) <= 1 for phase, part in zip(found, parts, strict=True))


def test_a_phase_changes_what_it_names_and_nothing_else():
    first, second = phases_of(
        "1/2 data.seq_length=16 optim.learning_rate=1e-5; 1/2 batch_size=4 objective.mask_prob=.3 data.weights=1:0"
    )
    plain = train_config.resolve(small_config(**RUN))
    assert first == (5, 16, 8, plain.objective, 1e-5, ())
    masked = dataclasses.replace(plain.objective, mask_prob=0.3)
    assert second == (5, 64, 4, masked, plain.optim.learning_rate, (1.0, 0.0))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1/2; 1/3", "the shares add up to 5/6; expected SHARE NAME=VALUE"),
        ("half; 1/2", "at 'half': expected SHARE NAME=VALUE"),
        ("1/0", "at '1/0': expected SHARE NAME=VALUE"),
        ("2; -1", "at '2': expected"),
        ("1e-99999999; 1", "at '1e-99999999': expected"),
        ("0.333; 0.333; 0.333", "the shares add up to 999/1000; expected"),
        ("1 batch_size", "at '1 batch_size': expected"),
        ("1 batch_size=4 batch_size=8", "at '1 batch_size=4 batch_size=8': expected"),
        ("1 model.layers=3", "model.layers cannot differ between phases; expected one of batch_size, data.seq_length"),
        ("1 objective.encoder_weight=2", "objective.encoder_weight cannot differ between phases; expected one of"),
        ("1 objective.generator_steps=2", "objective.generator_steps cannot differ between phases"),
        ("1 batch_size=many", "config.batch_size=many is invalid: expected an integer"),
        ("1 batch_size=0", "config.batch_size=0 is invalid: expected more than 0"),
        (
            "1 data.weights=1:x",
            "config.data.weights='1:x' is invalid: expected numbers separated by colons, 0 or from 1e-6",
        ),
        ("1 data.seq_length=65", "config.data.seq_length=65 is longer than config.model.max_length=64"),
        ("1 objective.random_prob=.5", "replace_prob=0.85 and random_prob=0.5 add up to more than 1"),
        ("99/100; 1/100", "config.steps=10 leaves no step for a phase; raise one of them"),
    ],
)
def test_phases_that_cannot_be_are_refused(text, message):
    with pytest.raises(UserError, match=f"^config.phases={re.escape(repr(text))} is invalid.*{re.escape(message)}"):
        phases_of(text)


@pytest.mark.parametrize("done", [0, 3, 5, 6, 10, 12])
def test_phases_until_a_step(done):
    config = train_config.resolve(small_config(**RUN, phases="1/2; 1/2 batch_size=4"))
    found = [(phase.steps, phase.batch_size) for phase in train_config.phases_until(config, done)]
    assert found == [(steps, size) for steps, size in [(min(done, 5), 8), (min(done - 5, 5), 4)] if steps > 0]


def test_a_phase_has_a_peak_learning_rate_of_its_own():
    settings = OptimConfig(learning_rate=1e-3, warmup_steps=2, schedule="stable", decay=0.4)
    rates = [(4, 1e-3), (4, 5e-4), (2, 1e-3)]
    changed, plain = (optim.in_stages(settings, [10], each) for each in (rates, ()))
    factors = [1] * 4 + [0.5] * 4 + [1] * 2
    np.testing.assert_allclose(
        [changed(t) for t in range(10)], [f * plain(t) for t, f in enumerate(factors)], rtol=1e-6
    )


def test_weights_are_one_for_each_source(tmp_path, text_file):
    config = small_config(text_file, data__weights="3:1")
    message = r"^config\.data\.weights=3:1 is invalid: expected a number for each source of the text: "
    with pytest.raises(UserError, match=message):
        train.train(config, tmp_path / "run", quiet())
    assert not list((tmp_path / "run").rglob("manifest.json"))  # no text was prepared
    text = pipeline.find_or_prepare(tmp_path, train_config.resolve(config).data)
    with pytest.raises(UserError, match=message):
        train.train(small_config(tmp_path / text.key, data__weights="3:1"), tmp_path / "run", quiet())


def test_weights_of_the_config_replace_those_of_the_text(tmp_path, text_file, monkeypatch):
    class EnoughError(Exception):
        pass

    def note(phases, *rest):
        found.extend(phase.weights for phase in phases)
        raise EnoughError

    found = []
    other = tmp_path / "other.txt"
    other.write_text("\n\n".join(f"{document} more" for document in text_file.read_text().split("\n\n")))
    monkeypatch.setattr(train_setup.batches, "training_batches", note)
    for weights, expected in (("", [None, (0.0, 1.0)]), ("3:1", [(3.0, 1.0), (0.0, 1.0)])):
        config = small_config(f"{text_file};{other}", data__weights=weights, phases="1/2; 1/2 data.weights=0:1")
        with pytest.raises(EnoughError):
            train.train(config, tmp_path / f"run{weights}", quiet())
        assert found == expected
        found.clear()
    with pytest.raises(UserError, match=r"config\.data\.weights has no effect on a single source, .*; leave it out"):
        train.train(small_config(text_file, phases="1/2; 1/2 data.weights=1"), tmp_path / "one", quiet())


def test_checkpoints_at_fractions_of_the_run_are_saved_and_kept(run):
    _, workdir = run(checkpoint__keep_at="1/6,1/2")
    assert saved_steps(workdir) == [1, 2, 3, 4, 6]
    _, workdir = run(checkpoint__keep_at="1/6,1/2", checkpoint__keep_last=1, checkpoint__every=100)
    assert saved_steps(workdir) == [1, 3, 6]


@pytest.mark.slow
def test_a_run_whose_objective_changes_goes_on_with_the_same_bits_or_on_another_mesh(tmp_path, text_file):
    """Detection alone, then prediction too: killed in each phase."""
    phases = "1/2 objective.encoder_weight=0; 1/2 optim.learning_rate=1e-4 batch_size=16"
    often = {"log_every": 1, "checkpoint__every": 2, "checkpoint__keep_last": 9, "eval_every": 2}
    config = small_config(text_file, "objective=electra_mlm", steps=6, phases=phases, **often)
    train.train(config, tmp_path / "whole", quiet())
    for kept in (2, 4):
        goes_on_with_the_same_bits(config, tmp_path / "whole", tmp_path / f"killed{kept}", kept)
    elsewhere = shutil.copytree(tmp_path / "killed2", tmp_path / "elsewhere")
    for step in (4, 6):
        shutil.rmtree(elsewhere / "checkpoints" / str(step))
    config.mesh.fsdp = 2
    train.train(config, elsewhere, quiet())
    found = arrays(elsewhere, 6)
    for name, value in arrays(tmp_path / "whole", 6).items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-3, err_msg=name)
    lines = logged(tmp_path / "whole")
    assert [line["encoder_mlm_loss"] is None for line in lines] == [True] * 3 + [False] * 3
    assert lines[2]["learning_rate"] > 2 * lines[3]["learning_rate"]
    assert [line["step"] for line in lines if "heldout_fill_loss" in line] == [4, 6]
    heads = [load_networks(tmp_path / "whole", step).encoder.config.heads for step in (2, 4)]
    assert heads == [("discriminator_head",), ("discriminator_head", "mlm_head")]
