"""Draws from a categorical distribution over the vocabulary, one uniform number a draw.

A Gumbel for each entry is the usual way; here the cumulative distribution is inverted in two levels, first over blocks
of the vocabulary, then inside the block that was hit. Exact up to float32 rounding, and 100 times fewer random numbers.
"""

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.data.tokenizer import Special
from electra_jax.modeling.config import VOCAB_MULTIPLE

Array = jax.Array


def categorical(uniform: Array, logits_NV: Array, block: int = VOCAB_MULTIPLE) -> Array:
    """One draw for each row: the inverse of the cumulative distribution.

    Args:
      uniform: [...] float32 in [0, 1), one number for each draw.
      logits_NV: [..., V] float32, V a multiple of `block`; unnormalised log-probabilities.
      block: entries a block.

    Returns:
      Ids [...] int32. An entry whose probability rounds to 0 is never drawn.
    """
    rows, size = logits_NV.shape[:-1], logits_NV.shape[-1]
    if size % block:
        raise ValueError(f"{size} entries are no multiple of the block of {block}")
    highest = jnp.max(logits_NV, axis=-1, keepdims=True)
    mass = jnp.exp(logits_NV - highest).reshape(*rows, size // block, block)
    hit, rest = _invert(jnp.sum(mass, axis=-1), uniform)
    within = jnp.take_along_axis(mass, hit[..., None, None], axis=-2)[..., 0, :]
    inside, _ = _invert(within, rest)
    return hit * block + inside


def _invert(mass: Array, uniform: Array) -> tuple[Array, Array]:
    """The entry of `mass` [..., n] on which `uniform` [...] in [0, 1) falls, and how far into that entry, in [0, 1).

    Only entries of positive mass qualify: rounding in the cumulative sum cannot make an empty one come out.
    """
    ends = jnp.cumsum(mass, axis=-1)
    total = jnp.max(jnp.where(mass > 0, ends, 0.0), axis=-1)
    target = (uniform * total)[..., None]
    index = jnp.argmax((ends > target) & (mass > 0), axis=-1).astype(jnp.int32)
    end = jnp.take_along_axis(ends, index[..., None], axis=-1)
    size = jnp.take_along_axis(mass, index[..., None], axis=-1)
    into = 1.0 - (end - target) / size
    return index, jnp.clip(into[..., 0], 0.0, 1.0 - 2.0**-24)


def log_frequencies(counts: np.ndarray, padded_size: int, special: Special) -> np.ndarray:
    """Log-probabilities [padded_size] float32 of drawing a token as often as `counts` [V] say; special ones never."""
    frequency = np.zeros(padded_size)
    frequency[: len(counts)] = counts
    frequency[list(special)] = 0
    with np.errstate(divide="ignore"):
        logits = np.log(frequency / frequency.sum())
    return np.maximum(logits, np.finfo(np.float32).min).astype(np.float32)
