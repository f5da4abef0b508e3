"""What stands in the place of the masked tokens, whoever draws it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import systems
from scipy import stats

from electra_jax.data.tokenizer import SPECIAL_TOKENS
from electra_jax.modeling.batch import Batch
from electra_jax.objectives import electra, masking
from electra_jax.objectives.spec import Inputs

FREE = ("unigram", "uniform", "clusters")  # generators without parameters
FIRST = len(SPECIAL_TOKENS)
ROWS, LENGTH = 50, 400
COUNTS = np.arange(1, systems.VOCABULARY + 1)  # of the training text in `systems.objective`


def everywhere(token: int) -> Inputs:
    """A long text of one token, masked at every position."""
    shape = (ROWS, LENGTH)
    ids, ones = np.full(shape, token, np.int32), np.ones(shape, np.float32)
    batch = Batch(ids, np.zeros_like(ids), np.ones_like(ids))
    positions = np.broadcast_to(np.arange(LENGTH, dtype=np.int32), shape)
    uniform = np.random.default_rng(0).random(shape, np.float32)
    masked = masking.Masked(batch, ones, ids, positions, ids, ones, uniform, ones)
    return Inputs(masked, masking.count(masked), jnp.int32(0))


@functools.cache
def corrupt_with(generator: str, disallow_correct: bool):
    """`corrupt`, compiled: (parameters, inputs, temperature) -> Corrupted."""
    how = {"disallow_correct": disallow_correct, "temperature_decay": 0.0}
    o = systems.with_settings(systems.objective("electra", "", generator), **how)
    return jax.jit(lambda params, x, t: electra.corrupt(systems.with_settings(o, temperature=t), params, x))


def fakes(generator: str, token: int = 9, temperature: float = 1.0, disallow_correct: bool = False) -> np.ndarray:
    """What a generator without parameters draws."""
    found = corrupt_with(generator, disallow_correct)({}, everywhere(token), temperature)
    np.testing.assert_array_equal(found.input_ids, found.fakes)
    np.testing.assert_array_equal(found.labels, found.fakes != token)
    assert found.states is None
    return np.asarray(found.fakes).ravel()


def shares(generator: str, temperature: float = 1.0) -> np.ndarray:
    """The probability of every token."""
    mass = COUNTS ** (1 / temperature) if generator == "unigram" else np.ones(systems.VOCABULARY)
    mass = np.where(np.arange(systems.VOCABULARY) < FIRST, 0, mass)
    return mass / mass.sum()


def agree(drawn: np.ndarray, expected: np.ndarray) -> bool:
    counts = np.bincount(drawn, minlength=systems.VOCABULARY)
    assert len(counts) == systems.VOCABULARY  # no padded entry of the vocabulary
    assert np.all(counts[expected == 0] == 0)
    possible = expected > 0
    return stats.chisquare(counts[possible], len(drawn) * expected[possible]).pvalue > 1e-3


@pytest.mark.parametrize(("generator", "temperature"), [("unigram", 1.0), ("unigram", 2.0), ("uniform", 1.0)])
def test_fakes_are_as_frequent_as_they_should_be(generator, temperature):
    """Special tokens never, though the training text has them."""
    assert agree(fakes(generator, temperature=temperature), shares(generator, temperature))


def in_cluster(token: int, temperature: float = 1.0) -> np.ndarray:
    """The probability of every token as the fake of `token` by its cluster."""
    mass = shares("unigram", temperature)
    mass[np.arange(systems.VOCABULARY) % 4 != token % 4] = 0
    mass[systems.ALONE] = 0
    return mass / mass.sum()


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_fakes_are_of_the_cluster_of_the_original(temperature):
    assert agree(fakes("clusters", 9, temperature), in_cluster(9, temperature))


def test_a_token_without_a_cluster_has_fakes_of_all_tokens():
    assert agree(fakes("clusters", systems.ALONE), shares("unigram"))


def test_in_a_cluster_too_the_original_may_be_forbidden():
    expected = in_cluster(9)
    expected[9] = 0
    assert agree(fakes("clusters", 9, disallow_correct=True), expected / expected.sum())


@pytest.mark.parametrize("generator", ["unigram", "uniform"])
def test_the_original_is_forbidden_and_the_others_keep_their_odds(generator):
    expected = shares(generator)
    expected[50] = 0
    assert agree(fakes(generator, 50, disallow_correct=True), expected / expected.sum())


@pytest.mark.parametrize("generator", FREE)
@pytest.mark.parametrize("system", ["electra", "electra_15", "electra_mlm", "replace_mlm", "all_tokens_mlm"])
def test_without_a_network_there_are_no_parameters_of_a_generator(system, generator):
    o = systems.objective(system, "", generator)
    assert not [name for name in systems.shapes(o) if name.startswith("generator")]
    assert "generator_weight" not in systems.config(system, "", generator).objective
    assert [p.network for p in o.stages[0].passes] == ["encoder"]


@pytest.mark.parametrize("generator", FREE)
def test_without_a_network_the_loss_is_the_encoders_alone(generator):
    measured = systems.loss("electra", "", generator, discriminator_weight=3.0)
    assert "mlm_loss" not in measured
    assert measured["loss"] == pytest.approx(3 * measured["disc_loss"], rel=1e-6)
    assert 0 < measured["replaced_fraction"] < 0.4


def test_a_network_that_knows_the_answer_can_be_forbidden_to_give_it():
    """A generator that says 9 everywhere, in a text of 9s."""
    params = systems.with_generator_that_says(9, systems.parameters("electra"))
    ids = systems.batch().input_ids
    text = systems.batch()._replace(input_ids=jnp.where(ids >= FIRST, jnp.int32(9), ids))
    x = systems.inputs(systems.objective("electra"), text=text)
    allowed, forbidden = (corrupt_with("transformer", disallow)(params, x, 1.0) for disallow in (False, True))
    chosen = np.asarray(x.masked.weights) > 0
    assert np.all(np.asarray(allowed.fakes)[chosen] == 9)
    assert not np.any(allowed.labels)
    assert not np.any(np.asarray(forbidden.fakes)[chosen] == 9)
    assert float(np.sum(forbidden.labels)) == np.sum(chosen) == 20
    np.testing.assert_array_equal(forbidden.logits, allowed.logits)  # its own loss does not know of this


@pytest.mark.parametrize("system", ["adversarial", "electric"])  # which have a gradient of what is divided
@pytest.mark.parametrize("temperature", [0.5, 0.01])
def test_a_low_temperature_gives_numbers(system, temperature):
    """The lowest float of an entry that is not in use, divided by it, is no longer a float."""
    params = systems.parameters(system)
    direction = {name: jax.tree.map(lambda p: p + 1, params[name]) for name in params}
    how = {"temperature": temperature, "step": 0}
    assert np.all(np.isfinite(list(systems.loss(system, **how).values())))
    assert np.all(np.isfinite(list(systems.slopes(system, direction=direction, **how).values())))


@pytest.mark.parametrize("generator", FREE)
def test_a_low_temperature_gives_numbers_without_a_network(generator):
    drawn = fakes(generator, temperature=0.1, disallow_correct=True)
    assert np.all((drawn >= FIRST) & (drawn < systems.VOCABULARY) & (drawn != 9))


def test_a_low_temperature_draws_the_most_probable_token():
    x = systems.inputs(systems.objective("electra"))
    found = corrupt_with("transformer", False)(systems.parameters("electra"), x, 1e-4)
    np.testing.assert_array_equal(found.fakes, np.argmax(found.logits, axis=-1))
