"""Layer norm with a custom derivative."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name

Array = jax.Array


class LayerNorm(nn.Module):
    """Layer norm over the last axis, computed in float32, with output in `dtype`."""

    epsilon: float
    use_bias: bool
    dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        ones = (1,) * (x.ndim - 1)
        scale = self.param("scale", nn.initializers.ones, x.shape[-1:]).reshape(*ones, -1)
        y = standardize(x.astype(jnp.float32), self.epsilon) * scale
        if self.use_bias:
            y += self.param("bias", nn.initializers.zeros, x.shape[-1:]).reshape(*ones, -1)
        return y.astype(self.dtype)


def standardize(x: Array, epsilon: float) -> Array:
    """Computes (x - mean) / sqrt(variance + epsilon) over the last axis.

    The custom derivative keeps the result and one number per row. That of the plain formula keeps more arrays of x's
    size, and XLA:CPU recomputes them wherever they are used.
    """

    @jax.custom_jvp
    def normalize(x: Array) -> Array:
        return _standardize(x, epsilon)[0]

    @normalize.defjvp
    def derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
        (x,), (t,) = primals, tangents
        y, rate = _standardize(x, epsilon)
        # The tangent is rate x (t - mean(t) - y mean(t y)); `rate` comes last, so the transpose multiplies by it once.
        inner = t - jnp.mean(t, axis=-1, keepdims=True) - y * jnp.mean(t * y, axis=-1, keepdims=True)
        return y, rate * inner

    return normalize(x)


def _standardize(x: Array, epsilon: float) -> tuple[Array, Array]:
    # With `remat=dots` mean and rate are saved, two numbers per row, and the rest is recomputed.
    centered = x - checkpoint_name(jnp.mean(x, axis=-1, keepdims=True), "norm")
    # From centered values: E[x^2] - E[x]^2, Flax's fast variance, cancels where the mean is large.
    rate = jax.lax.rsqrt(jnp.mean(jnp.square(centered), axis=-1, keepdims=True) + epsilon)
    rate = checkpoint_name(rate, "norm")
    return centered * rate, rate
