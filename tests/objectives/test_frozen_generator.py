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


@pytest.mark.parametrize(
    ("start", "decay", "step", "expected"),
    [
        *((2.0, 0.1, step, 1 + math.exp(-step)) for step in (0, 1, 2, 10)),
        (0.5, 0.5, 5, 1 - 0.5 * math.exp(-1)),
        *((1.5, 0.0, step, 1.5) for step in (0, 10)),
    ],
)
def test_the_temperature_goes_to_one_if_it_decays(start, decay, step, expected):
    """1 + (temperature - 1) exp(-u / decay): a decay of .1 is one step of ten."""
    o = systems.with_settings(systems.objective("frozen_generator"), temperature=start, temperature_decay=decay)
    assert float(electra.temperature(o, jnp.int32(step))) == pytest.approx(expected, rel=1e-6)


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
