"""All random draws of a batch, except dropout: masked positions, their input ids, and uniforms for sampling fakes.

They are drawn for the whole batch at once, so that the masks do not depend on gradient accumulation.
"""

from typing import NamedTuple, cast

import jax
import jax.numpy as jnp

from electra_jax.data.tokenizer import Special
from electra_jax.modeling.batch import Batch

Array = jax.Array


class Masked(NamedTuple):
    """A masked batch.

    Attributes:
      batch: the original batch.
      candidates: [B, L] float32, 1 where the token is not special.
      input_ids: [B, L] int32, with [MASK] at the chosen positions (or a random token, or the original).
      positions: [B, M] int32, distinct within a row.
      targets: [B, M] int32, the original ids at `positions`.
      weights: [B, M] float32, 1 for a chosen position, 0 for a filler.
      uniform: [B, M] float32 in [0, 1), for `electra.sample`.
      hide: [B, M] float32 in [0, 1), for objectives that choose among the masked positions.
    """

    batch: Batch
    candidates: Array
    input_ids: Array
    positions: Array
    targets: Array
    weights: Array
    uniform: Array
    hide: Array

    @property
    def original(self) -> Array:
        """The original ids, [B, L] int32."""
        return cast(Array, self.batch.input_ids)

    @property
    def real(self) -> Array:
        """1 where there is no padding, [B, L] float32."""
        return cast(Array, (self.batch.sequence_ids > 0).astype(jnp.float32))

    @property
    def chosen(self) -> Array:
        """1 at the chosen positions, [B, L] float32."""
        nothing = jnp.zeros(self.original.shape, jnp.float32)
        return scatter(nothing, self.positions, jnp.ones_like(self.weights), self.weights > 0)


class Counts(NamedTuple):
    """Denominators of the losses: numbers of positions in the whole batch, float32, at least 1."""

    masked: Array
    real: Array
    candidates: Array


def max_masked(length: int, mask_prob: float) -> int:
    """Computes M, the maximum number of masked positions in a sequence: 19 of 128 or 79 of 512 at .15.

    google-research/electra, configure_pretraining.py: int((mask_prob + .005) * max_seq_length). Here it is clipped to
    [1, `length`].
    """
    return min(length, max(1, int((mask_prob + 0.005) * length)))


def is_maskable(input_ids_BL: Array, special: Special) -> Array:
    """Returns True where the token is not special, [B, L] bool; [UNK] may be masked."""
    never = jnp.array([special.pad, special.cls, special.sep, special.mask])
    return jnp.isin(input_ids_BL, never, invert=True)


def random_tokens(key: Array, shape: tuple[int, ...], vocab_size: int, special: Special) -> Array:
    """Draws uniform ids of `shape`, int32, without special tokens."""
    ids = jax.random.randint(key, shape, 0, vocab_size - len(special), jnp.int32)
    # In ascending order: an id that is shifted past one special token may meet the next.
    for taken in sorted(special):  # shift ids to skip this one
        ids = jnp.where(ids >= taken, ids + 1, ids)
    return ids


def words(starts_BL: Array, maskable_BL: Array) -> Array:
    """Computes the index within the row of each position's word, [B, L] int32; each special token is a word."""
    # A token after a special one begins a word. What rolls around to position 0 is overwritten below.
    begins = starts_BL | ~maskable_BL | ~jnp.roll(maskable_BL, 1, axis=1)
    return jnp.cumsum(begins.at[:, 0].set(False), axis=1, dtype=jnp.int32)


def choose(
    key: Array,
    maskable_BL: Array,
    real_BL: Array,
    mask_prob: float | Array,
    most: int,
    words_BL: Array | None = None,
) -> tuple[Array, Array]:
    """Draws positions uniformly without replacement, where `maskable_BL` is True.

    Their number is clip(round(mask_prob * length without padding), 1, M). The reference draws with replacement; its
    author calls the duplicates a bug and proposes top-k instead.

    With `words_BL`, the index of each position's word, whole words are drawn as long as they fit into that number. If
    the first word alone is longer, as in scripts without spaces, a part of it is taken, from a random position on.

    M is `most`.

    Returns:
      Positions [B, M] int32 and weights [B, M] float32. All M positions of a row are distinct; those of weight 0 are
      fillers.
    """
    length_B = jnp.sum(real_BL, axis=1, dtype=jnp.float32)
    # At least 1 and rounded, as in google-research/electra, pretrain/pretrain_helpers.py.
    count_B = jnp.clip(jnp.round(mask_prob * length_B), 1, most).astype(jnp.int32)
    drawn = jax.random.uniform(key, maskable_BL.shape)
    if words_BL is not None:
        drawn = jnp.take_along_axis(drawn, words_BL, axis=1)  # one number for each word keeps its positions together
    # Special tokens rank below every draw, so `top_k` takes them last; `score_BM >= 0` excludes these fillers.
    rank = jnp.where(maskable_BL, drawn, -1.0)
    if words_BL is not None:  # among equal ranks `top_k` takes the first; rotate, or it would always be a word's start
        begin = jax.random.randint(jax.random.fold_in(key, 1), (rank.shape[0], 1), 0, rank.shape[1])
        rotated = (jnp.arange(rank.shape[1])[None] + begin) % rank.shape[1]
        rank = jnp.take_along_axis(rank, rotated, axis=1)
    # Without replacement: the reference's draws with replacement hit 7% of the positions again.
    score_BM, positions_BM = jax.lax.top_k(rank, most)
    if words_BL is not None:
        positions_BM = jnp.take_along_axis(rotated, positions_BM, axis=1)
    chosen = (jnp.arange(most)[None] < count_B[:, None]) & (score_BM >= 0)
    if words_BL is not None:
        # Only the last word in the order of ranks can be cut; the first one may stay in part.
        chosen &= ~_cut_word(words_BL, maskable_BL, positions_BM, chosen)
    return positions_BM.astype(jnp.int32), chosen.astype(jnp.float32)


def _cut_word(words_BL: Array, maskable_BL: Array, positions_BM: Array, chosen_BM: Array) -> Array:
    """Returns True at chosen positions whose word was chosen only in part, except the first word, [B, M] bool."""
    rows = jnp.arange(words_BL.shape[0])[:, None]
    word_BM = jnp.take_along_axis(words_BL, positions_BM, axis=1)
    # [B, L] by the index of a word: its maskable pieces, then those that were not chosen.
    size_BL = jnp.zeros(words_BL.shape, jnp.int32).at[rows, words_BL].add(maskable_BL.astype(jnp.int32))
    left_BL = size_BL.at[rows, word_BM].add(-chosen_BM.astype(jnp.int32))
    partly = jnp.take_along_axis(left_BL, word_BM, axis=1) > 0
    return chosen_BM & partly & (word_BM != word_BM[:, :1])


def scatter(ids_BL: Array, positions_BM: Array, values_BM: Array, where_BM: Array) -> Array:
    """Returns `ids_BL` with `values_BM` at `positions_BM` where `where_BM` is True."""
    # Fillers write back what is there, so that shapes do not depend on their number.
    old = jnp.take_along_axis(ids_BL, positions_BM, axis=1)
    new = jnp.where(where_BM, values_BM, old)

    # vmap over rows, so that a sharded batch needs no communication.
    def scatter_row(ids_L: Array, positions_M: Array, values_M: Array) -> Array:
        # `choose` returns distinct positions; with duplicates the result would be undefined.
        return ids_L.at[positions_M].set(values_M, unique_indices=True)

    return jax.vmap(scatter_row)(ids_BL, positions_BM, new)


def mask(
    key: Array,
    batch: Batch,
    vocab_size: int,
    special: Special,
    mask_prob: float | Array,
    replace_prob: float,
    random_prob: float,
    most: int,
    word_starts: Array | None = None,
) -> Masked:
    """Draws the masks of a batch, and everything else that is random about it except dropout.

    Args:
      key: the step's masking key.
      batch: arrays [B, L].
      vocab_size: the number of token ids in use.
      special: ids of the special tokens.
      mask_prob: masking rate: fraction of the positions that are chosen.
      replace_prob: probability that a chosen position becomes [MASK]; .85 in the reference's code, .8 in BERT.
      random_prob: probability that a chosen position becomes a random token that is not special; 0 in the reference, .1
        in BERT. The remaining ones keep their token.
      most: M, as in `choose`.
      word_starts: [V] bool, the pieces that begin a word; if given, whole words are masked.
    """
    input_ids = batch.input_ids
    # The order of the keys is part of a run's results, as is each draw below.
    choose_key, replace_key, random_key, uniform_key = jax.random.split(key, 4)
    maskable = is_maskable(input_ids, special)
    whole = None if word_starts is None else words(word_starts[input_ids], maskable)
    positions, weights = choose(choose_key, maskable, batch.sequence_ids > 0, mask_prob, most, whole)
    targets = jnp.take_along_axis(input_ids, positions, axis=1)
    coin = jax.random.uniform(replace_key, positions.shape)
    random = random_tokens(random_key, positions.shape, vocab_size, special)
    # One draw decides: [MASK] below `replace_prob`, a random token below the sum, else unchanged.
    changed = (coin < replace_prob + random_prob) & (weights > 0)
    masked_ids = scatter(input_ids, positions, jnp.where(coin < replace_prob, special.mask, random), changed)
    uniform = jax.random.uniform(uniform_key, positions.shape)
    # Not a fifth key of the split above, which would change the other four.
    hide = jax.random.uniform(jax.random.fold_in(uniform_key, 1), positions.shape)
    candidates = maskable.astype(jnp.float32)
    return Masked(batch, candidates, masked_ids, positions, targets, weights, uniform, hide)


def count(masked: Masked) -> Counts:
    """Counts the positions of a whole batch; all micro-batches of a step share these counts."""
    # At least 1: a batch without a candidate would divide by 0.
    return Counts(*(jnp.maximum(jnp.sum(x), 1.0) for x in (masked.weights, masked.real, masked.candidates)))
