"""Self-attention with attention dropout as Pallas kernels for NVIDIA GPUs, which write neither scores nor weights.

They are for networks that drop attention weights; without dropout, cuDNN's attention is used. cuDNN has dropout too,
but with a counter inside the compiled program, so that a resumed run would drop other weights. Here the decisions are
those of `dropout.keep_weights`, as on every other device.

A program has a block of positions of one head. In the forward pass these are queries, and it goes over the keys with a
running maximum and sum (FlashAttention-2, arXiv 2307.08691). In the backward pass they are keys first and then queries,
so that one program computes a block of all three gradients, and writes it where the projection reads it. Both parts
recompute the weights. Pallas compiles the kernels by Triton; JAX 0.12 warns that a later version will not.

Shape letters: B examples, L positions, H heads, K the size of a head.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from electra_jax.modeling import dropout
from electra_jax.modeling.pallas_tiles import Form

Array = jax.Array
# Maximum number of positions of a program, and of an iteration of its loop. Among powers of 2 these give programs of
# the fewest instructions per weight, compiled for an H100 and heads of 64; larger ones run out of registers.
_FORWARD, _BACKWARD = (128, 64), (64, 64)
_LOWEST = -0.7 * float(np.finfo(np.float32).max)  # differences of two are finite


def _dot(a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Multiplies two matrices over one axis of each, with float32 sums."""
    axes = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(a, b, axes, preferred_element_type=jnp.float32)


class _Program:
    """The shared parts of both passes: the positions of a program, the visible ones, and dropout of weights."""

    def __init__(self, form: Form, scalars: Any, ids: Any, size: int, own: int, step: int) -> None:
        """Starts a program.

        Args:
          form: the form of the kernel.
          scalars: as in `forward`.
          ids: the sequence ids [L] of its example.
          size: K.
          own: the number of positions of the program.
          step: the number of positions of the other side in an iteration.
        """
        self.form, self.ids, self.own, self.step = form, ids, own, step
        self.first = pl.program_id(0) * own
        self.scale = size**-0.5 * math.log2(math.e)  # weights are powers of 2, which the device computes
        if form.rate:
            words = scalars.shape[0] - 3
            first_example, first_head, heads = (scalars[words + i] for i in range(3))
            example, head = (pl.program_id(axis).astype(jnp.uint32) for axis in (2, 1))
            # The index of the head in the whole batch, so that decisions do not depend on the mesh.
            number = (first_example + example) * heads + first_head + head
            self.key = dropout.row_hash([scalars[i] for i in range(words)], number)

    def turns(self, looks: str, body: Any, carry: Any) -> Any:
        """Loops over the positions of the other side that the block sees, `step` at a time.

        Args:
          looks: the side that the block looks to: `both`, `before` or `after`.
          body: (the first of the `step` positions, carry) -> carry.
          carry: the carry of the first call.
        """
        # Exact: `own` is a multiple of `step`, see `_call`.
        lower = self.first // self.step if looks == "after" else 0
        upper = (self.first + self.own) // self.step if looks == "before" else self.ids.shape[0] // self.step
        return jax.lax.fori_loop(lower, upper, lambda i, carry: body(i * self.step, carry), carry)

    def weights(self, q: Array, k: Array, queries: Any, keys: Any) -> Array:
        """Computes base-2 logarithms of the unnormalized weights, [queries, keys], given the first position of both."""
        places = [pl.ds(first, len(x)) for first, x in ((queries, q), (keys, k))]
        seen = self.ids[places[0]][:, None] == self.ids[places[1]][None, :]
        if self.form.direction != "both":
            ahead = (keys + jnp.arange(len(k)))[None, :] - (queries + jnp.arange(len(q)))[:, None]
            seen &= ahead <= 0 if self.form.direction == "before" else ahead >= 0
        return jnp.where(seen, _dot(q, k, (1, 1)) * self.scale, _LOWEST)

    def kept(self, shape: tuple[int, ...], queries: Any, keys: Any) -> Array:
        """Decides which weights [queries, keys] are kept, given the first of both; keys are in one block of `PAIR`."""
        pair = np.uint32(dropout.PAIR)
        first = keys.astype(jnp.uint32)
        start = first // (2 * pair) * pair + first % pair
        rows = dropout.row_hash([self.key], start + jnp.arange(shape[1]).astype(jnp.uint32))
        columns = dropout.column_hash(queries.astype(jnp.uint32) + jnp.arange(shape[0]).astype(jnp.uint32))
        bits = dropout.mix(columns[:, None] ^ rows[None, :])
        lower = (first // pair + np.uint32(1)) % np.uint32(2) * np.uint32(16)  # what decides becomes the upper half
        kept: Array = (bits << lower) >= np.uint32(int(dropout.weights_threshold(self.form.rate)) << 16)
        return kept


def _attend(scalars: Any, ids: Any, qkv: Any, out: Any, lse: Any, *, form: Form, own: int, step: int) -> None:
    size = qkv.shape[-1]
    program = _Program(form, scalars, ids, size, own, step)
    q = qkv[pl.ds(program.first, own), 0]

    def turn(first: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        highest, total, sums = carry
        k, v = (qkv[pl.ds(first, step), part] for part in (1, 2))
        scores = program.weights(q, k, program.first, first)
        new = jnp.maximum(highest, jnp.max(scores, axis=1))
        # Before the first visible key both are 2^0; `shrink` is 0 when that key comes, and clears the sums.
        weights, shrink = jnp.exp2(scores - new[:, None]), jnp.exp2(highest - new)
        # Before dropout, which follows the softmax.
        total = total * shrink + jnp.sum(weights, axis=1)
        if form.rate:
            weights = jnp.where(program.kept(weights.shape, program.first, first), weights, 0.0)
        # Cast to bfloat16 for the tensor cores; sums stay float32.
        return new, total, sums * shrink[:, None] + _dot(weights.astype(v.dtype), v, (1, 0))

    nothing = jnp.full(own, _LOWEST), jnp.zeros(own), jnp.zeros((own, size))
    highest, total, sums = program.turns(form.direction, turn, nothing)
    out[...] = (sums / (total * (1 - form.rate))[:, None]).astype(out.dtype)
    lse[...] = highest + jnp.log2(total)


def _differentiate(
    scalars: Any, ids: Any, qkv: Any, d_out: Any, lse: Any, mean: Any, d_qkv: Any, *, form: Form, own: int, step: int
) -> None:
    size, dtype, divisor = qkv.shape[-1], qkv.dtype, 1 - form.rate
    program = _Program(form, scalars, ids, size, own, step)
    mine = pl.ds(program.first, own)

    def gradients(queries: Any, keys: Any, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        """Returns the gradient of the sums [queries, K], the weights after dropout, and the gradient of the scores."""
        places = pl.ds(queries, len(q))
        d_sums = d_out[places]
        weights = jnp.exp2(program.weights(q, k, queries, keys) - lse[places][:, None])
        # `d_out` stays in its dtype for the product, so the result is divided.
        d_weights, dropped = _dot(d_sums, v, (1, 1)) / divisor, weights
        if form.rate:
            kept = program.kept(weights.shape, queries, keys)
            d_weights, dropped = jnp.where(kept, d_weights, 0.0), jnp.where(kept, weights, 0.0)
        d_scores = weights * (d_weights - mean[places][:, None])
        return d_sums, dropped.astype(dtype), d_scores.astype(dtype)

    q, k, v = (qkv[mine, part] for part in range(3))

    def over_queries(first: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        d_k, d_v = carry
        other = qkv[pl.ds(first, step), 0]
        d_sums, dropped, d_scores = gradients(first, program.first, other, k, v)
        return d_k + _dot(d_scores, other, (0, 0)), d_v + _dot(dropped, d_sums, (0, 0))

    def over_keys(first: Array, d_q: Array) -> Array:
        other, values = (qkv[pl.ds(first, step), part] for part in (1, 2))
        return d_q + _dot(gradients(program.first, first, q, other, values)[2], other, (1, 0))

    nothing = jnp.zeros((own, size))
    # A key is seen by queries on the other side.
    seen_by = {"both": "both", "before": "after", "after": "before"}[form.direction]
    d_k, d_v = program.turns(seen_by, over_queries, (nothing, nothing))
    d_q = program.turns(form.direction, over_keys, nothing)
    for part, gradient in enumerate((d_q * size**-0.5, d_k * size**-0.5, d_v / divisor)):
        d_qkv[:, part] = gradient.astype(dtype)


def _call(
    kernel: Any, name: str, form: Form, most: tuple[int, int], arrays: list[Array], outs: list[jax.ShapeDtypeStruct]
) -> list[Array]:
    """Runs a kernel for each block of positions, head and example.

    Args:
      kernel: a kernel of this module.
      name: its name in profiles.
      form: the form of the kernel.
      most: the maximum number of positions of a program, and of an iteration of its loop.
      arrays: `scalars`, sequence ids, then others with the axes of `outs`. A program gets its head and example of them.
      outs: [B, H, L], [B, L, H, K] or [B, L, 3, H, K]. A program gets its block of them.
    """
    examples, length = arrays[1].shape
    # Powers of two that divide the length, so that no block needs a mask for its end.
    own, step = (math.gcd(length, number) for number in most)

    def spec(array: Any, positions: int) -> pl.BlockSpec:
        rank, block = array.ndim, (lambda i: i) if positions == own else (lambda i: 0)
        if rank == 1:
            return pl.BlockSpec(array.shape, lambda i, h, b: (0,))
        if rank == 2:
            return pl.BlockSpec((None, length), lambda i, h, b: (b, 0))
        if rank == 3:
            return pl.BlockSpec((None, None, positions), lambda i, h, b: (b, h, block(i)))
        # The axis of query, key and value, if there is one: a program gets all three.
        parts = array.shape[2:-2]
        return pl.BlockSpec(
            (None, positions, *parts, None, array.shape[-1]), lambda i, h, b: (b, block(i), *[0] * len(parts), h, 0)
        )

    called: list[Array] = pl.pallas_call(
        functools.partial(kernel, form=form, own=own, step=step),
        grid=(length // own, form.heads, examples),
        in_specs=[spec(array, length) for array in arrays],
        out_specs=[spec(out, own) for out in outs],
        out_shape=outs,
        interpret=form.interpret,
        name=name,
        compiler_params=plgpu.CompilerParams(num_warps=8 if outs[0].shape[-1] > 64 else 4, num_stages=2),
    )(*arrays)
    return called


def _by_head(form: Form, x: Array, parts: tuple[int, ...] = ()) -> Array:
    return x.reshape(*x.shape[:2], *parts, form.heads, -1)


def forward(form: Form, qkv: Array, sequence_ids: Array, scalars: Array) -> tuple[Array, Array]:
    """Computes attention to the visible positions; arguments and results as in `pallas_attention.forward`.

    `cudnn_attention.problem` says where the kernels can be used; `form.reach` must be None. Logarithms are [B, H, L]
    and of base 2.
    """
    qkv = _by_head(form, qkv, (3,))
    examples, length, _, heads, size = qkv.shape
    outs = [
        jax.ShapeDtypeStruct((examples, length, heads, size), qkv.dtype),
        jax.ShapeDtypeStruct((examples, heads, length), jnp.float32),
    ]
    out, lse = _call(_attend, "attention", form, _FORWARD, [scalars, sequence_ids, qkv], outs)
    return out.reshape(examples, length, -1), lse


def backward(
    form: Form, qkv: Array, sequence_ids: Array, scalars: Array, out: Array, lse: Array, d_out: Array
) -> Array:
    """Computes the gradient of `qkv`, [B, L, 3 D], given that of `out`."""
    # By XLA and once: in the kernel, every block of keys would compute it again.
    products = _by_head(form, out).astype(jnp.float32) * _by_head(form, d_out).astype(jnp.float32)
    mean = jnp.sum(products, axis=-1).swapaxes(1, 2)  # of the gradients of a query's weights, under the weights
    parts = _by_head(form, qkv, (3,))
    arrays = [scalars, sequence_ids, parts, _by_head(form, d_out), lse, mean]
    outs = [jax.ShapeDtypeStruct(parts.shape, parts.dtype)]
    return _call(_differentiate, "attention_backward", form, _BACKWARD, arrays, outs)[0].reshape(qkv.shape)
