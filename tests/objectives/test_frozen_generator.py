"""A frozen generator, sampled at a decaying temperature; its weights: tests/loading/test_warm_start.py."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import systems
from cli_runs import make_objective

from electra_jax import train_config
from electra_jax.config.errors import UserError
from electra_jax.objectives import electra

GENERATOR = ("generator_embeddings", "generator", "generator_head")


def test_the_generator_rests():
    """Real steps of such a stage: test_two_stage.py."""
    o = systems.objective("frozen_generator")
    (stage,) = o.stages
    assert set(stage.trainable) == set(systems.shapes(o)) - set(GENERATOR)
    assert [(p.network, p.trained) for p in stage.passes] == [("generator", False), ("encoder", True)]


def test_the_loss_is_detection_alone():
    measured = systems.loss("frozen_generator", discriminator_weight=3.0)
    assert measured["loss"] == pytest.approx(3 * measured["disc_loss"], rel=1e-6)
    assert measured["mlm_loss"] > 0  # it is measured: it says how good the generator is


@pytest.mark.parametrize("tying", ["embeddings", "all", "gdes"])
def test_other_tying_is_refused(tying):
    with pytest.raises(UserError, match=f"config.model.tying='{tying}' .* 'none'"):
        train_config.resolve(systems.config("frozen_generator", tying))


def temperature(step: int, **settings) -> float:
    o = systems.with_settings(systems.objective("frozen_generator"), **settings)
    assert o.steps == 10
    return float(electra.temperature(o, jnp.int32(step)))


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 2), (1, 1 + math.exp(-1)), (2, 1 + math.exp(-2)), (10, 1 + math.exp(-10))]
)
def test_the_temperature_falls_to_one(step, expected):
    """1 + (temperature - 1) exp(-u / decay): a decay of .1 is one step of ten."""
    assert temperature(step, temperature=2.0, temperature_decay=0.1) == pytest.approx(expected, rel=1e-6)


def test_a_temperature_below_one_rises():
    assert temperature(5, temperature=0.5, temperature_decay=0.5) == pytest.approx(1 - 0.5 * math.exp(-1), rel=1e-6)


@pytest.mark.parametrize("step", [0, 5, 10])
def test_without_decay_the_temperature_stays(step):
    assert temperature(step, temperature=1.5, temperature_decay=0.0) == 1.5


def test_the_temperature_of_the_step_is_measured():
    found = [systems.loss("frozen_generator", step=step, temperature=3.0)["temperature"] for step in (0, 5)]
    np.testing.assert_allclose(found, [3, 1 + 2 * math.exp(-1)], rtol=1e-6)


def test_no_dropout_falls_on_a_generator_that_rests():
    """It says of the tokens what it says without dropout; the encoder does not."""
    o = make_objective(systems.config("frozen_generator", model__dropout=0.5), systems.VOCABULARY)

    @jax.jit
    def measure(params, x):
        total, measured = o.loss(o.stages[0], params, x)
        return total, measured["mlm_loss"].value

    dropped, likelihood = measure(
        systems.parameters("frozen_generator"), systems.inputs(o)._replace(key=jax.random.key(0))
    )
    without = systems.loss("frozen_generator")
    assert float(likelihood) == pytest.approx(without["mlm_loss"], rel=1e-5)
    assert float(dropped) != pytest.approx(without["loss"], rel=1e-2)
