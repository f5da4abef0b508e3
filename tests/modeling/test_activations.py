"""Activations against their definitions, GELU also against JAX's derivative of it."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.modeling.activations import ACTIVATIONS, gelu

X = np.linspace(-6, 6, 101, dtype=np.float32)


def test_gelu_is_x_times_the_normal_distribution_function():
    expected = [v * (1 + math.erf(v / math.sqrt(2))) / 2 for v in X.tolist()]
    np.testing.assert_allclose(gelu(jnp.asarray(X)), expected, rtol=1e-6, atol=1e-6)


def test_derivative_is_that_of_the_formula():
    def formula(x):
        return 0.5 * x * (1.0 + jax.lax.erf(x * 0.5**0.5))

    found, expected = (jax.vmap(jax.grad(function))(X) for function in (gelu, formula))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    value, slope = jax.jvp(gelu, (X,), (np.ones_like(X),))
    np.testing.assert_allclose(value, gelu(X), rtol=1e-6)
    np.testing.assert_allclose(slope, expected, rtol=1e-6, atol=1e-6)


def test_backward_pass_keeps_one_array():
    """The derivative; neither x nor the value, nor erf of anything."""
    _, gradient = jax.vjp(gelu, X)
    assert [leaf.shape for leaf in jax.tree.leaves(gradient)] == [X.shape]


def test_keeps_bfloat16():
    x = jnp.ones(3, jnp.bfloat16)
    value, gradient = jax.vjp(gelu, x)
    assert (value.dtype, gradient(x)[0].dtype) == (jnp.bfloat16, jnp.bfloat16)


def test_squared_relu():
    np.testing.assert_array_equal(ACTIVATIONS["relu2"](jnp.asarray([-2.0, 0.0, 0.5, 3.0])), [0.0, 0.0, 0.25, 9.0])
