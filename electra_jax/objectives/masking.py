"""Which positions are masked, anew in every step, and what stands there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from electra_jax.data.tokenizer import CLS, MASK, PAD, SEP

Array = jax.Array


class Masked(NamedTuple):
    """A masked batch.

    Attributes:
      input_ids: [B, L], the chosen positions replaced by [MASK] (or, some of them, left as they were).
      positions: [B, M] int32, distinct within a row.
      targets: [B, M] int32, the original ids there.
      weights: [B, M] float32, 1 for a chosen position, 0 for a filler.
    """

    input_ids: Array
    positions: Array
    targets: Array
    weights: Array


def max_masked(length: int, mask_prob: float) -> int:
    """M: the most positions masked in one sequence, 19 of 128 or 79 of 512 at .15.

    google-research/electra, configure_pretraining.py: int((mask_prob + .005) * max_seq_length).
    """
    return max(1, int((mask_prob + 0.005) * length))


def choose(key: Array, input_ids_BL: Array, mask_prob: float) -> tuple[Array, Array]:
    """Draws positions uniformly, without replacement, among those that hold no special token.

    The count is clip(round(mask_prob * length without padding), 1, M). (The reference draws with replacement; its
    author calls the duplicates a bug and proposes what is done here.)

    Returns:
      Positions [B, M] int32 and weights [B, M] float32. All M positions of a row are distinct; those of weight 0 are
      fillers.
    """
    special = (input_ids_BL == PAD) | (input_ids_BL == CLS) | (input_ids_BL == SEP) | (input_ids_BL == MASK)
    most = max_masked(input_ids_BL.shape[1], mask_prob)
    length_B = jnp.sum(input_ids_BL != PAD, axis=1, dtype=jnp.float32)
    count_B = jnp.clip(jnp.round(mask_prob * length_B), 1, most).astype(jnp.int32)
    rank = jnp.where(special, -1.0, jax.random.uniform(key, input_ids_BL.shape))
    score_BM, positions_BM = jax.lax.top_k(rank, most)
    chosen = (jnp.arange(most)[None] < count_B[:, None]) & (score_BM >= 0)
    return positions_BM.astype(jnp.int32), chosen.astype(jnp.float32)


def put(ids_BL: Array, positions_BM: Array, values_BM: Array, where_BM: Array) -> Array:
    """`ids_BL` with `values_BM` at `positions_BM` where `where_BM` holds."""
    rows = jnp.arange(ids_BL.shape[0])[:, None]
    old = jnp.take_along_axis(ids_BL, positions_BM, axis=1)
    return ids_BL.at[rows, positions_BM].set(jnp.where(where_BM, values_BM, old), unique_indices=True)


def mask(key: Array, input_ids_BL: Array, mask_prob: float, replace_prob: float) -> Masked:
    """Chooses positions and puts [MASK] on each with probability `replace_prob` (.85 in the reference's code)."""
    choose_key, replace_key = jax.random.split(key)
    positions, weights = choose(choose_key, input_ids_BL, mask_prob)
    targets = jnp.take_along_axis(input_ids_BL, positions, axis=1)
    replaced = (jax.random.uniform(replace_key, positions.shape) < replace_prob) & (weights > 0)
    masked_ids = put(input_ids_BL, positions, jnp.full_like(targets, MASK), replaced)
    return Masked(masked_ids, positions, targets, weights)
