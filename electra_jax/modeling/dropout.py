"""Dropout whose decisions are a hash of a key and an element's indices, cheap enough to recompute in the backward pass.

The element in row r and column c is kept if

    mix(row_hash(key, r) ^ column_hash(c)) >= rate x 2^32

where `mix` scrambles 32 bits by shifts, additions and exclusive ors. There are far fewer row and column hashes than
elements, so a decision takes about a dozen operations; threefry, the default of `jax.random.bernoulli`, takes ten times
as many. Indices are global: every mesh drops the same.

Attention takes two decisions of 16 bits from each hash, see `keep_weights`; the Pallas kernels compute the same ones.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

Array = jax.Array
# These two and `mix` are part of a run's results: another value changes the decisions of every run.
PAIR = 128  # keys k and k + PAIR share a hash: the one decides by its lower, the other by its upper 16 bits
_COLUMN = np.uint32(0x9E3779B9)  # the key of column hashes


def mix(x: Array) -> Array:
    """Permutes the 32-bit numbers (the last steps of Jenkins' one-at-a-time hash)."""
    # No multiplication: the vector units of TPU v2 and v3 multiply no integers.
    x = x + (x << np.uint32(10))
    x = x ^ (x >> np.uint32(6))
    x = x + (x << np.uint32(3))
    x = x ^ (x >> np.uint32(11))
    return x + (x << np.uint32(15))


def row_hash(words: Sequence[Array], rows: Array) -> Array:
    """Hashes each of `rows` (uint32, any shape) to 32 bits, under a key of several uint32."""
    for word in words:
        # Twice: the lower half of `mix(x)` depends only in part on the upper half of `x`.
        rows = mix(mix(rows ^ word))
    return rows


def column_hash(columns: Array) -> Array:
    """Hashes each of `columns` (uint32, any shape) to 32 bits, the same under every key."""
    return mix(mix(columns ^ _COLUMN))


def key_words(key: Array) -> Array:
    """Returns the uint32 words of a `jax.random` key."""
    return jax.random.key_data(key).reshape(-1)


# Jitted, so that all layers share the trace; otherwise `keep` and `keep_weights` take a quarter of the time of tracing
# a step.
@functools.partial(jax.jit, static_argnums=(1, 2))
def keep(words: Array, shape: tuple[int, ...], rate: float) -> Array:
    """Decides which elements of an array are kept, bool [*shape]; its last axis is the columns, all others the rows.

    Args:
      words: from `key_words`.
      shape: the shape of the array.
      rate: the probability that an element is dropped, rounded to a multiple of 2^-32.
    """
    rows, size = jnp.zeros(shape[:-1], jnp.uint32), 1
    for axis in reversed(range(len(shape) - 1)):
        # Row numbers wrap around at 2^32; `np.uint32` would refuse a larger factor.
        rows += jax.lax.broadcasted_iota(jnp.uint32, rows.shape, axis) * np.uint32(size % 2**32)
        size *= shape[axis]
    rows = row_hash(list(words), rows)
    columns = column_hash(jax.lax.iota(jnp.uint32, shape[-1])).reshape((1,) * rows.ndim + (-1,))
    return _combine(rows[..., None], columns) >= np.uint32(round(rate * 2.0**32))


@functools.partial(jax.jit, static_argnums=(1, 2))
def keep_weights(words: Array, shape: tuple[int, ...], rate: float) -> Array:
    """Decides which attention weights are kept, bool [B, H, Q, K].

    Columns are the queries, rows the keys of an example and a head. The kernel has keys in blocks of `PAIR`, so two
    blocks share their hashes.

    Args:
      words: from `key_words`.
      shape: the shape of the weights.
      rate: the probability that a weight is dropped, rounded to a multiple of 2^-16.
    """
    examples, heads, queries, keys = shape
    number = jax.lax.iota(jnp.uint32, examples * heads).reshape(examples, heads, 1)
    key = jax.lax.iota(jnp.uint32, keys)
    pair = key // np.uint32(2 * PAIR) * np.uint32(PAIR) + key % np.uint32(PAIR)
    # A head's key hashes example x heads + head, so rows count from 0 in each head.
    rows_BHK = row_hash([row_hash(list(words), number)], pair[None, None])
    columns_Q = column_hash(jax.lax.iota(jnp.uint32, queries))
    bits = _combine(rows_BHK[:, :, None], columns_Q[None, None, :, None])
    upper = (key // np.uint32(PAIR) % np.uint32(2)) * np.uint32(16)
    return ((bits >> upper[None, None, None]) & np.uint32(0xFFFF)) >= weights_threshold(rate)


def weights_threshold(rate: float) -> np.uint32:
    """Computes the threshold: weights whose 16 bits are below it are dropped."""
    return np.uint32(round(rate * 2.0**16))


def _combine(rows: Array, columns: Array) -> Array:
    """Hashes row and column hashes, broadcast against each other."""
    # Without the barrier XLA would recompute both hashes for every element.
    rows, columns = jax.lax.optimization_barrier((rows, columns))
    return mix(rows ^ columns)


Decide = Callable[[Array, tuple[int, ...], float], Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def drop(x: Array, words: Array, rate: float, decide: Decide = keep) -> Array:
    """Divides `x` by 1 - rate where `decide` keeps it, else zeroes it; the backward pass recomputes the decisions."""
    return jnp.where(decide(words, x.shape, rate), x * jnp.asarray(1 / (1 - rate), x.dtype), jnp.zeros_like(x))


def _forward(x: Array, words: Array, rate: float, decide: Decide) -> tuple[Array, Array]:
    return drop(x, words, rate, decide), words


def _backward(rate: float, decide: Decide, words: Array, gradient: Array) -> tuple[Array, None]:
    return drop(gradient, words, rate, decide), None


drop.defvjp(_forward, _backward)


class Dropout(nn.Module):
    """Dropout at a rate; kept elements are divided by 1 - rate. Its key is from the RNG collection `dropout`."""

    rate: float

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Any:
        """Applies dropout to `x` if `train`."""
        # No key is drawn then, so `apply` needs no `dropout` RNG.
        if not train or self.rate == 0:
            return x
        return drop(x, key_words(self.make_rng("dropout")), self.rate)
