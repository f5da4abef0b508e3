"""The streams of a seed. Their numbers are part of a run's results."""

import itertools

import jax
import pytest

from electra_jax.runtime import rng


def test_the_numbers_of_the_streams_stay_as_they_are():
    assert dict(rng.Stream.__members__) == {"INIT": 0, "STEP": 1, "EVALUATION": 2, "SAMPLES": 3, "ROUNDING": 4}
    assert dict(rng.Dropout.__members__) == {"GENERATOR": 0, "ENCODER": 1}


@pytest.mark.parametrize(
    ("key_of", "names"),
    [
        (lambda name: rng.stream_key(7, name), rng.Stream),
        (lambda name: rng.dropout_key(jax.random.key(7), name), rng.Dropout),
    ],
)
def test_no_two_streams_share_a_key(key_of, names):
    keys = [tuple(jax.random.key_data(key_of(name)).tolist()) for name in names.__members__.values()]
    assert all(a != b for a, b in itertools.combinations(keys, 2))


def test_seeds_and_steps_have_keys_of_their_own():
    keys = {tuple(jax.random.key_data(rng.stream_key(seed, rng.Stream.STEP)).tolist()) for seed in range(5)}
    keys |= {tuple(jax.random.key_data(rng.rounding_key(count)).tolist()) for count in range(5)}
    assert len(keys) == 10
