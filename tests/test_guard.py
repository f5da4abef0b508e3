"""Skipped updates, repeated steps, and runs whose gradients are bad."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cli_runs import arrays, logged, small_config
from hypothesis import given
from hypothesis import strategies as st

from electra_jax import guard, metrics, step, train_config
from electra_jax.config.errors import UserError
from electra_jax.runtime.checkpoint import Checkpoints
from electra_jax.train import train

NAN, INF = float("nan"), float("inf")


def norms_of(*values: float) -> jax.Array:
    return guard.no_norms().at[: len(values)].set(jnp.array(values, jnp.float32))


def inspect(norms, loss, norm, spike=0.0, at=0):
    return guard.inspect(norms, jnp.int32(at), jnp.float32(loss), jnp.float32(norm), spike)


@pytest.mark.parametrize(
    ("loss", "norm", "accepted"),
    [(1.0, 2.0, True), (NAN, 2.0, False), (1.0, NAN, False), (INF, 1.0, False), (1.0, INF, False)],
)
def test_an_update_is_skipped_where_loss_or_gradient_is_not_finite(loss, norm, accepted):
    assert bool(inspect(guard.no_norms(), loss, norm)[0]) is accepted


def test_the_last_norms_are_kept_in_a_ring():
    _, norms = inspect(guard.no_norms(), 1.0, 3.0, at=guard.WINDOW + 2)
    np.testing.assert_array_equal(norms, [0, 0, 3] + [0] * (guard.WINDOW - 3))
    for loss, norm in ((1.0, NAN), (NAN, 4.0)):
        assert inspect(norms, loss, norm, at=2)[1][2] == 0


@pytest.mark.parametrize(
    ("seen", "norm", "accepted"),
    [
        ([1.0] * 64, 3.01, False),
        ([1.0] * 64, 3.0, True),
        ([1.0] * 63, 100.0, True),  # too few to say
        ([1.0] * 40 + [50.0] * 30, 3.01, False),  # the median, not the mean
        ([1.0] * 60 + [50.0] * 68, 100.0, True),  # after a change that lasts
    ],
)
def test_a_norm_far_above_the_median_is_a_spike(seen, norm, accepted):
    assert bool(inspect(norms_of(*seen), 1.0, norm, spike=3.0)[0]) is accepted
    assert bool(inspect(norms_of(*seen), 1.0, norm, spike=0.0)[0])


@given(st.floats(width=32), st.floats(width=32))
def test_a_skipped_update_changes_no_bit_but_counts(new, old):
    news, olds = ({"mu": jnp.float32(value), "count": jnp.int32(n)} for value, n in ((new, 8), (old, 7)))
    for accepted, wanted in ((True, new), (False, old)):
        chosen = guard.select(jnp.bool_(accepted), news, olds)
        assert np.float32(chosen["mu"]).tobytes() == np.float32(wanted).tobytes()
        assert int(chosen["count"]) == 8


def test_a_metric_that_is_not_finite_counts_nothing():
    measured = {
        "good": metrics.Mean(jnp.float32(6), jnp.float32(2)),
        "bad": metrics.Mean(jnp.float32(NAN), jnp.float32(2)),
        "worse": metrics.Roc(jnp.array([[1.0, INF], [0.0, 1.0]])),
    }
    clean = guard.finite_only(measured)
    assert clean["good"].number() == 3.0
    assert float(clean["bad"].sum) == float(clean["bad"].count) == 0
    np.testing.assert_array_equal(clean["worse"].histogram, np.zeros((2, 2)))


def spoil(monkeypatch, factor):
    """Multiplies one element of the gradient of the word embeddings by `factor(steps done)`."""
    gradient = step.gradient

    def spoilt(objective, stage, params, batch, steps_done, *more):
        grads, loss, measured = gradient(objective, stage, params, batch, steps_done, *more)
        word = grads["embeddings"]["word"]
        word = word.at[7, 1].add(factor(steps_done))
        return {**grads, "embeddings": {**grads["embeddings"], "word": word}}, loss, measured

    monkeypatch.setattr(step, "gradient", spoilt)


def test_one_bad_gradient_does_not_poison_the_run(text_file, tmp_path, monkeypatch, light_steps):
    """A NaN in one element, at a step that saves and at the last one; the loss is finite at both."""
    spoil(monkeypatch, lambda done: jnp.where((done == 3) | (done == 7), NAN, 0.0))
    every = {"checkpoint__every": 1, "checkpoint__keep_last": 8, "log_every": 2, "eval_every": 100}
    result = train(small_config(text_file, "objective=mlm", steps=8, **every), tmp_path / "run")
    assert result.finished
    assert result.totals["skipped_steps"] == 2
    lines = logged(tmp_path / "run")
    assert [line["step"] for line in lines if line["skipped_steps"]] == [4, 8]
    assert [line["step"] for line in lines if line["grad_norm"] is None] == [4, 8]
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert lines[-1]["total_skipped_steps"] == 2
    before, after, later = (arrays(tmp_path / "run", at) for at in (3, 4, 5))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert all(np.all(np.isfinite(value)) for value in after.values())
    assert {name.rpartition(".")[2] for name in changed} == {"step", "count"}
    assert any(".params" in name for name in after if not np.array_equal(after[name], later[name]))


@pytest.mark.parametrize(
    ("loss", "norm", "cause"),
    [(NAN, 0.5, "its loss or gradient is not finite"), (1.0, 0.5, "its gradient norm is 0.5")],
)
def test_the_cause_of_a_skipped_update_is_named(loss, norm, cause):
    values = {"loss": loss, "grad_norm": norm, "skipped_steps": 1.0}
    measured = {name: metrics.scalar(jnp.float32(value)) for name, value in values.items()}
    with pytest.raises(UserError, match=f"up to step 3: {cause}; nothing is saved"):
        guard.SkipCounter(1).count(guard.finite_only(measured), 3, None)


def test_too_many_skipped_updates_end_the_run_before_it_is_saved(text_file, tmp_path, monkeypatch, light_steps):
    spoil(monkeypatch, lambda done: jnp.where(done >= 4, INF, 0.0))
    config = small_config(text_file, "objective=mlm", steps=12, checkpoint__every=2, eval_every=100, guard__patience=4)
    with pytest.raises(UserError, match="4 updates in a row were skipped, up to step 8: its loss or gradient is not"):
        train(config, tmp_path / "run")
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", read_only=True)
    assert checkpoints.latest() == 6
    assert all(np.all(np.isfinite(value)) for value in arrays(tmp_path / "run", 6).values())
    with pytest.raises(UserError, match=r"up to step 8: .* or go back before it with --rewind_to=6 --skip_batches=M"):
        train(config, tmp_path / "run")


@pytest.mark.slow
def test_a_spike_is_skipped(text_file, tmp_path, monkeypatch, light_steps):
    monkeypatch.setattr(guard, "WINDOW", 4)
    spoil(monkeypatch, lambda done: jnp.where(done == 5, 1e6, 0.0))
    steps = []
    for spike in (0.0, 20.0):
        config = small_config(text_file, "objective=mlm", steps=7, log_every=1, eval_every=100, guard__spike=spike)
        train(config, tmp_path / f"run{spike}")
        steps.append([line["step"] for line in logged(tmp_path / f"run{spike}") if line["skipped_steps"]])
    assert steps == [[], [6]]


@pytest.mark.parametrize(("name", "value"), [("spike", 0.5), ("spike", -1.0), ("patience", 0)])
def test_settings_that_mean_nothing_are_refused(name, value):
    with pytest.raises(UserError, match=f"config.guard.{name}={value} is invalid"):
        train_config.resolve(small_config(**{f"guard__{name}": value}))
