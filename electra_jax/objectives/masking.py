"""What is random about a batch in a step, dropout aside: which positions are masked, what stands there, and the numbers
that fakes will be drawn with. All of it is drawn for the whole batch at once, so that a loss over parts of a batch sees
the same as a loss over the whole.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from electra_jax.data.tokenizer import CLS, MASK, PAD, SEP, SPECIAL_TOKENS
from electra_jax.modeling.electra import Batch

Array = jax.Array


class Masked(NamedTuple):
    """A masked batch.

    Attributes:
      batch: as it was, `input_ids`, `token_type_ids` and `sequence_ids`, each [B, L] int32.
      input_ids: [B, L], the chosen positions replaced by [MASK] (or by a random token, or left as they were).
      positions: [B, M] int32, distinct within a row.
      targets: [B, M] int32, the original ids there.
      weights: [B, M] float32, 1 for a chosen position, 0 for a filler.
      uniform: [B, M] float32 in [0, 1), for `sampling.categorical`.
    """

    batch: Batch
    input_ids: Array
    positions: Array
    targets: Array
    weights: Array
    uniform: Array

    @property
    def original(self) -> Array:
        """[B, L] int32: the text."""
        return self.batch["input_ids"]

    @property
    def real(self) -> Array:
        """[B, L] float32: 1 where there is no padding."""
        return (self.original != PAD).astype(jnp.float32)

    @property
    def candidates(self) -> Array:
        """[B, L] float32: 1 where no special token is."""
        return (~is_special(self.original)).astype(jnp.float32)

    @property
    def chosen(self) -> Array:
        """[B, L] float32: 1 where a position was chosen."""
        nothing = jnp.zeros(self.original.shape, jnp.float32)
        return put(nothing, self.positions, jnp.ones_like(self.weights), self.weights > 0)


class Counts(NamedTuple):
    """How many positions of the whole batch a loss is a mean over, float32, at least 1."""

    masked: Array
    real: Array
    candidates: Array


def max_masked(length: int, mask_prob: float) -> int:
    """M: the most positions masked in one sequence, 19 of 128 or 79 of 512 at .15.

    google-research/electra, configure_pretraining.py: int((mask_prob + .005) * max_seq_length).
    """
    return max(1, int((mask_prob + 0.005) * length))


def is_special(input_ids_BL: Array) -> Array:
    """[B, L] bool: where a token stands that is never masked."""
    return (input_ids_BL == PAD) | (input_ids_BL == CLS) | (input_ids_BL == SEP) | (input_ids_BL == MASK)


def choose(key: Array, input_ids_BL: Array, mask_prob: float) -> tuple[Array, Array]:
    """Draws positions uniformly, without replacement, among those that hold no special token.

    The count is clip(round(mask_prob * length without padding), 1, M). (The reference draws with replacement; its
    author calls the duplicates a bug and proposes what is done here.)

    Returns:
      Positions [B, M] int32 and weights [B, M] float32. All M positions of a row are distinct; those of weight 0 are
      fillers.
    """
    special = is_special(input_ids_BL)
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


def mask(
    key: Array, batch: Batch, vocab_size: int, mask_prob: float, replace_prob: float, random_prob: float
) -> Masked:
    """Draws what is random about a batch.

    Args:
      key: of the step.
      batch: arrays [B, L].
      vocab_size: token ids in use.
      mask_prob: share of the positions that are chosen.
      replace_prob: of a chosen position to become [MASK]; .85 in the reference's code, .8 in BERT.
      random_prob: of a chosen position to become a random token that is not special; 0, and .1 in BERT. What remains
        stays as it was.
    """
    input_ids = batch["input_ids"]
    choose_key, replace_key, random_key, uniform_key = jax.random.split(key, 4)
    positions, weights = choose(choose_key, input_ids, mask_prob)
    targets = jnp.take_along_axis(input_ids, positions, axis=1)
    coin = jax.random.uniform(replace_key, positions.shape)
    random = jax.random.randint(random_key, positions.shape, len(SPECIAL_TOKENS), vocab_size, jnp.int32)
    changed = (coin < replace_prob + random_prob) & (weights > 0)
    masked_ids = put(input_ids, positions, jnp.where(coin < replace_prob, MASK, random), changed)
    uniform = jax.random.uniform(uniform_key, positions.shape)
    return Masked(batch, masked_ids, positions, targets, weights, uniform)


def count(masked: Masked) -> Counts:
    """Of a whole batch; the parts of an accumulated step share it."""
    return Counts(*(jnp.maximum(jnp.sum(x), 1.0) for x in (masked.weights, masked.real, masked.candidates)))
