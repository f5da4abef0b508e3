"""Layer norm against its formula, differentiated by JAX."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from electra_jax.modeling.layer_norm import LayerNorm, standardize

EPSILON = 1e-3
X = (3 + 2 * np.random.default_rng(0).standard_normal((2, 5, 8))).astype(np.float32)
SLOPES = np.random.default_rng(1).standard_normal(X.shape).astype(np.float32)
close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)


def formula(x):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    return centered / jnp.sqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + EPSILON)


def value_and_gradient(compute, *arguments):
    """The result, and the gradients of its sum with `SLOPES`."""

    @jax.jit
    def both(*arguments):
        found, pull = jax.vjp(compute, *arguments)
        return found, pull(SLOPES)

    return jax.device_get(both(*arguments))


@pytest.mark.parametrize("x", [X, np.float32(1e-2) * X], ids=["of variance 4", "near epsilon"])
def test_value_and_derivative_of_the_formula(x):
    (found, ours), (expected, theirs) = (
        value_and_gradient(compute, x) for compute in (lambda x: standardize(x, EPSILON), formula)
    )
    close(found, expected)
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-5, atol=1e-6 * np.abs(theirs[0]).max())


@pytest.mark.parametrize("use_bias", [True, False])
def test_parameters_values_and_gradients_are_those_of_flax(use_bias):
    ours = LayerNorm(EPSILON, use_bias, jnp.float32)
    theirs = nn.LayerNorm(EPSILON, use_bias=use_bias, use_fast_variance=False)
    fresh, of_flax = jax.device_get(jax.jit(lambda: [layer.init(jax.random.key(0), X) for layer in (ours, theirs)])())
    jax.tree.map(np.testing.assert_array_equal, fresh, of_flax)
    params = jax.tree.map(lambda p: p + np.linspace(-1, 1, 8, dtype=np.float32), fresh)
    (found, gradients), (expected, by_jax) = (value_and_gradient(layer.apply, params, X) for layer in (ours, theirs))
    close(found, expected)
    jax.tree.map(functools.partial(close, atol=1e-5), gradients, by_jax)


def test_bfloat16_is_normalized_in_float32():
    ours = LayerNorm(EPSILON, True, jnp.bfloat16)
    x = jnp.asarray(X, jnp.bfloat16)
    params = ours.init(jax.random.key(0), x)
    found = ours.apply(params, x)
    assert found.dtype == jnp.bfloat16
    np.testing.assert_array_equal(found, formula(x.astype(jnp.float32)).astype(jnp.bfloat16))
