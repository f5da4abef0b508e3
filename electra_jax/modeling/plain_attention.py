"""Attention by matrix products and a softmax, over whole sequences or, for local attention, in blocks.

A block is S = `block_size` queries with the keys that they reach, R on each side. The N blocks of a sequence are one
batched product, so scores are [B, H, N, S, S + 2 R] instead of [B, H, L, L].
"""

import functools
import math
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from electra_jax.modeling import dropout, fused_attention

Array = jax.Array
_SMALLEST = 16  # queries in a block; on CPU, products of smaller matrices cost more time than they save


def block_size(length: int, reach: int) -> int | None:
    """Returns S, the queries in a block of local attention; None if blocks would compute over half of all pairs."""
    # At least R, so that a block reaches into its neighbors only: see `_with_neighbors`.
    size = max(_SMALLEST, reach)
    return size if 2 * _pairs(length, reach, size) <= length**2 else None


def pairs(length: int, reach: int | None) -> int:
    """Counts the pairs of query and key whose scores are computed per example and head; `reach` None: all pairs."""
    size = None if reach is None else block_size(length, reach)
    return length**2 if size is None or reach is None else _pairs(length, reach, size)


def _pairs(length: int, reach: int, size: int) -> int:
    return math.ceil(length / size) * size * (size + 2 * reach)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def attend(q: Array, k: Array, v: Array, mask: Array, words: Array, rate: float, bias: Array | None = None) -> Array:
    """Computes attention with a float32 softmax, [..., Q, K] in the dtype of `q`.

    The derivative keeps the weights and the result, so that nothing of the softmax is recomputed. It is for reverse
    mode only: `jax.jvp` raises a TypeError.

    Args:
      q, k, v: queries [..., Q, K], keys and values [..., S, K].
      mask: bool, broadcastable to [..., Q, S]: whether a query sees a key.
      words: the words of the dropout key; ignored if `rate` is 0.
      rate: the dropout rate of the weights, which must be [B, H, Q, S] if it is not 0.
      bias: [..., Q, S] in the dtype of `q`, added to the scores; None: nothing.
    """
    out: Array = _forward(q, k, v, mask, words, rate, bias)[0]
    return out


def _forward(q: Array, k: Array, v: Array, mask: Array, words: Array, rate: float, bias: Array | None = None) -> Any:
    # Kept for the backward pass before dropout, which is recomputed.
    weights = _weights(q, k, mask, bias)
    out = checkpoint_name(_sum(_drop(weights, words, rate), v), "attended")
    has_bias = None if bias is None else ()  # in the structure of the residuals, which is static
    return out, (q, k, v, weights, out, words, has_bias)


def _backward(rate: float, kept: Any, d_out: Array) -> Any:
    q, k, v, weights, out, words, has_bias = kept
    *d_qkv, d_scores = _gradient(q, k, v, weights, out, words, d_out, rate)
    return *d_qkv, None, None, None if has_bias is None else d_scores


attend.defvjp(_forward, _backward)


def _weights(q: Array, k: Array, mask: Array, bias: Array | None = None) -> Array:
    # Sums in float32 for the softmax; the weights are kept in the compute dtype.
    scores = jnp.einsum("...qk,...sk->...qs", _scaled(q), k, preferred_element_type=jnp.float32)
    if bias is not None:
        # XLA for GPUs would add it inside the product, and for that write it in float32 first.
        scores = jax.lax.optimization_barrier(scores) if fused_attention.on_nvidia_gpu() else scores
        scores += bias.astype(jnp.float32)
    return jax.nn.softmax(jnp.where(mask, scores, np.finfo(np.float32).min)).astype(q.dtype)


def _sum(weights: Array, v: Array) -> Array:
    # Not `nn.dot_product_attention`: with its float32 softmax, bfloat16 values would be summed in float32 too.
    return jnp.einsum("...qs,...sk->...qk", weights, v)


def _gradient(
    q: Array, k: Array, v: Array, weights: Array, out: Array, words: Array, d_out: Array, rate: float
) -> tuple[Array, Array, Array, Array]:
    """Computes the gradients of queries, keys, values and scores.

    The sum over keys in the derivative of the softmax equals the sum over K of `d_out` x `out`.
    """
    d_weights = _drop(jnp.einsum("...qk,...sk->...qs", d_out, v, preferred_element_type=jnp.float32), words, rate)
    # [..., Q, K] -> [..., Q, 1]: a sum over a head's size, not over all keys.
    mean = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1, keepdims=True)
    d_scores = (weights.astype(jnp.float32) * (d_weights - mean)).astype(q.dtype)
    d_q = _scaled(jnp.einsum("...qs,...sk->...qk", d_scores, k))
    d_k = jnp.einsum("...qs,...qk->...sk", d_scores, _scaled(q))
    d_v = jnp.einsum("...qs,...qk->...sk", _drop(weights, words, rate), d_out)
    return d_q, d_k, d_v, d_scores


def _scaled(q: Array) -> Array:
    # Queries and not scores, which are larger in all but short sequences.
    return cast(Array, q * q.shape[-1] ** -0.5)


def _drop(weights: Array, words: Array, rate: float) -> Array:
    return dropout.drop(weights, words, rate, dropout.keep_weights) if rate else weights


def mask(sequence_ids_BL: Array, direction: str, reach: int | None = None) -> Array:
    """Makes the attention mask, [B, 1, L, L] bool: True where a query (first L) sees a key (second L).

    Args:
      sequence_ids_BL: the sequence ids, as in `attention.Visible`.
      direction: the side that a query sees, as in `attention.Visible`.
      reach: the number of positions that it sees on each side; None: all.
    """
    same = (sequence_ids_BL[:, :, None] == sequence_ids_BL[:, None, :])[:, None]
    position = jnp.arange(sequence_ids_BL.shape[1])  # not of NumPy: [L, L] would be a constant of the program
    seen = _seen(position[None, :] - position[:, None], direction, reach)
    return same if seen is None else same & seen[None, None]


def _seen(ahead: Any, direction: str, reach: int | None) -> Any:
    """Returns whether a query sees a key that is `ahead` positions ahead of it; None if all keys are seen."""
    seen = {"both": None, "before": ahead <= 0, "after": ahead >= 0}[direction]
    if reach is None:
        return seen
    near = abs(ahead) <= reach
    return near if seen is None else near & seen


class _Blocks(NamedTuple):
    """Split of arrays into the blocks of local attention.

    Attributes:
      length: L, the sequence length.
      reach: R, the number of positions that a query sees on each side.
    """

    length: int
    reach: int

    @property
    def size(self) -> int:
        size = block_size(self.length, self.reach)
        assert size is not None
        return size

    def cut(self, x: Array) -> Array:
        """Splits [B, H, L, K] into blocks [B, H, N, S, K], with zeros beyond the last position."""
        x = jnp.pad(x, ((0, 0), (0, 0), (0, -self.length % self.size), (0, 0)))
        return x.reshape(*x.shape[:2], -1, self.size, x.shape[-1])

    def cut_all(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Splits queries into [B, H, N, S, K], and the keys and values that they reach into [B, H, N, S + 2 R, K]."""
        k, v = (_with_neighbors(self.cut(x), self.reach, 3) for x in (k, v))
        return self.cut(q), k, v

    def join(self, x: Array) -> Array:
        """Reverses `cut`."""
        return x.reshape(*x.shape[:2], -1, x.shape[-1])[:, :, : self.length]

    def mask(self, sequence_ids_BL: Array, direction: str) -> Array:
        """Makes the mask of blocks, [B, 1, N, S, S + 2 R]; positions beyond the last are a sequence of their own."""
        # -1 is the id of no sequence. Positions beyond the end see each other, so that no softmax is over nothing.
        ids_BL = jnp.pad(sequence_ids_BL, ((0, 0), (0, -self.length % self.size)), constant_values=-1)
        ids_BNS = ids_BL.reshape(len(ids_BL), -1, self.size)
        same = ids_BNS[..., :, None] == _with_neighbors(ids_BNS, self.reach, 2, outside=-1)[..., None, :]
        # In NumPy, because [S, S + 2 R] is a small constant, unlike [L, L] in `mask`.
        ahead = np.arange(-self.reach, self.size + self.reach)[None, :] - np.arange(self.size)[:, None]
        seen = _seen(ahead, direction, self.reach)
        assert seen is not None
        return cast(Array, (same & seen[None, None])[:, None])


def _with_neighbors(x: Array, reach: int, axis: int, outside: int = 0) -> Array:
    """Extends each block by the last `reach` positions of the previous block and the first `reach` of the next.

    Args:
      x: blocks along the axis before `axis`, their positions along `axis`.
      reach: at most the size of a block.
      axis: the axis of positions.
      outside: the value for positions beyond the ends.
    """
    none = jnp.full_like(jax.lax.slice_in_dim(x, 0, 1, axis=axis - 1), outside)
    before = jnp.concatenate([none, jax.lax.slice_in_dim(x, 0, -1, axis=axis - 1)], axis=axis - 1)
    after = jnp.concatenate([jax.lax.slice_in_dim(x, 1, None, axis=axis - 1), none], axis=axis - 1)
    before = jax.lax.slice_in_dim(before, x.shape[axis] - reach, None, axis=axis)
    after = jax.lax.slice_in_dim(after, 0, reach, axis=axis)
    return jnp.concatenate([before, x, after], axis=axis)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def attend_local_or_global(
    reach: int, direction: str, is_local: Array, q: Array, k: Array, v: Array, sequence_ids_BL: Array
) -> Array:
    """Computes attention of a layer that is local or global, [B, H, L, K]; which one is known at run time only.

    `lax.cond` computes one of them. Its own derivative would keep arrays of both, so the custom derivative keeps only
    the arguments and the result, and recomputes the weights. If `is_local` is a constant, as in unrolled layers, XLA
    removes the other branch and uses the weights of the forward pass.

    Args:
      reach: the number of positions that a query of a local layer sees on each side; `block_size` must not be None.
      direction: as in `attention.Visible`, and so are `sequence_ids_BL`.
      is_local: bool scalar.
      q, k, v: [B, H, L, K].
    """
    blocks = _Blocks(q.shape[2], reach)

    def local(q: Array, k: Array, v: Array) -> Array:
        q, k, v = blocks.cut_all(q, k, v)
        return blocks.join(_sum(_weights(q, k, blocks.mask(sequence_ids_BL, direction)), v))

    def everywhere(q: Array, k: Array, v: Array) -> Array:
        return _sum(_weights(q, k, mask(sequence_ids_BL, direction)), v)

    return cast(Array, jax.lax.cond(is_local, local, everywhere, q, k, v))


def _either_forward(reach: int, direction: str, *args: Array) -> Any:
    out = checkpoint_name(attend_local_or_global(reach, direction, *args), "attended")
    return out, (*args, out)


def _either_backward(reach: int, direction: str, kept: Any, d_out: Array) -> Any:
    is_local, q, k, v, sequence_ids_BL, out = kept
    blocks, words = _Blocks(q.shape[2], reach), jnp.zeros(0, jnp.uint32)

    def local(q: Array, k: Array, v: Array, out: Array, d_out: Array) -> Any:
        # Its transpose adds the gradients of the keys that several blocks see.
        (q, k, v), join_gradients = jax.vjp(blocks.cut_all, q, k, v)
        weights = _weights(q, k, blocks.mask(sequence_ids_BL, direction))
        return join_gradients(_gradient(q, k, v, weights, blocks.cut(out), words, blocks.cut(d_out), 0.0)[:3])

    def everywhere(q: Array, k: Array, v: Array, out: Array, d_out: Array) -> Any:
        return _gradient(q, k, v, _weights(q, k, mask(sequence_ids_BL, direction)), out, words, d_out, 0.0)[:3]

    return None, *jax.lax.cond(is_local, local, everywhere, q, k, v, out, d_out), None


attend_local_or_global.defvjp(_either_forward, _either_backward)
