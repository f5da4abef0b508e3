import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from electra_jax.modeling import layers


def test_gelu_is_x_times_the_normal_distribution_function():
    x = np.linspace(-6, 6, 101, dtype=np.float32)
    expected = [v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in x.tolist()]
    np.testing.assert_allclose(layers.gelu(jnp.asarray(x)), expected, rtol=1e-6, atol=1e-6)


def test_gelu_keeps_bfloat16():
    assert layers.gelu(jnp.ones(3, jnp.bfloat16)).dtype == jnp.bfloat16


def test_truncated_normal_is_cut_at_two_sigma():
    draws = np.asarray(layers.truncated_normal(0.02)(jax.random.key(0), (200, 1000)))
    assert 0.0399 < np.abs(draws).max() <= 0.04
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    narrowed = math.sqrt(1 - 4 * density / math.erf(math.sqrt(2)))  # the variance of a normal cut at two sigma
    assert draws.std() == pytest.approx(0.02 * narrowed, rel=0.01)
    assert draws.mean() == pytest.approx(0, abs=2e-4)


def test_a_position_sees_its_own_sequence():
    seen = layers.same_sequence(jnp.asarray([[1, 1, 2, 0, 0]]))
    expected = [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1],
    ]
    np.testing.assert_array_equal(seen, np.asarray([[expected]], bool))


def test_positions_count_from_each_sequences_start():
    ids = jnp.asarray([[1, 1, 2, 2, 2, 0, 0], [1, 2, 3, 3, 4, 4, 4], [0, 0, 0, 1, 1, 1, 1]])
    positions = layers.sequence_positions(ids)
    np.testing.assert_array_equal(positions, [[0, 1, 0, 1, 2, 0, 1], [0, 0, 0, 1, 0, 1, 2], [0, 1, 2, 0, 1, 2, 3]])
    assert positions.dtype == jnp.int32
