"""Activations of feed-forward layers, by their names in transformers; GELU has a custom derivative."""

import math
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp

Array = jax.Array


@jax.custom_jvp
def gelu(x: Array) -> Array:
    """Computes exact GELU, x times the normal CDF.

    Its derivative, CDF + x times density, is computed together with the value, which needs the CDF anyway.
    """
    return x * _cdf(x)


@gelu.defjvp
def _derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (t,) = primals, tangents
    cdf = _cdf(x)
    density = math.sqrt(1 / (2 * math.pi)) * jnp.exp(-0.5 * x * x)
    # The factor of `t` is all that the backward pass saves.
    return x * cdf, (cdf + x * density) * t


def _cdf(x: Array) -> Array:
    # Not the erfc of `jax.nn.gelu`, which takes twice as long on CPU.
    return 0.5 * (1.0 + jax.lax.erf(x * 0.5**0.5))


def squared_relu(x: Array) -> Array:
    """Computes max(x, 0)^2 (Primer, arXiv 2109.08668)."""
    return jnp.square(jax.nn.relu(x))


# The keys are transformers' names: exports write them to config.json, and imports accept no others.
ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {"gelu": gelu, "relu2": squared_relu}
