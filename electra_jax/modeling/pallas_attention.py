"""Self-attention as Pallas kernels for TPU: neither scores nor weights are ever written to memory.

A program computes a block of queries of one example for one group of heads: two heads of 64 fill the 128 lanes of a
register. Queries, keys and values are read where the projection left them, in an array [B, L, 3 D]. Scores are arranged
[keys, queries], 128 queries at a time, in float32. Keys come in spans: all of them where they fit, blocks with a
running maximum and sum for long sequences, and for local attention those blocks that the window reaches.

The backward pass recomputes the weights from the logarithm of their sum (log-sum-exp), which the forward pass returns.
Dropout's decisions are those of `dropout.keep_weights`.

Shape letters: B examples, L positions, D width, G groups of heads, W the lanes of a group, P the heads in a group.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from electra_jax.modeling import dropout
from electra_jax.modeling.pallas_tiles import LANES, Form, Tiles, pairs, tiles_of

Array = jax.Array
_PADDING = -1  # the sequence id of positions that only pad an array
_LOWEST = float(np.finfo(np.float32).min)


def _dot(form: Form, a: Array, b: Array, contract: tuple[int, int]) -> Array:
    """Multiplies two matrices over one axis of each, with float32 sums."""
    # Mosaic for TPU v2 and v3 refuses bfloat16; their matrix units round float32 to it.
    dtype = jnp.bfloat16 if form.native else jnp.float32
    axes = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(a.astype(dtype), b.astype(dtype), axes, preferred_element_type=jnp.float32)


def _of_head(t: Tiles, x: Array, head: int) -> Array:
    """Keeps the lanes of one head in [rows, W], and zeroes the others."""
    if t.per == 1:
        return x
    lane = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1)
    return jnp.where((lane >= head * t.size) & (lane < (head + 1) * t.size), x, jnp.zeros_like(x))


def _rows_of(t: Tiles, x: Array, head: int) -> Array:
    """Returns the rows of one head in [W, columns]."""
    return x if t.per == 1 else x[head * t.size : (head + 1) * t.size]


def _unsigned(position: Any) -> Any:
    """Converts to uint32; a JAX constant would be captured as an argument, which a kernel cannot have."""
    return np.uint32(position) if isinstance(position, int) else position.astype(jnp.uint32)


class _Program:
    """The shared parts of forward and backward kernels: visible positions, and dropout of weights."""

    def __init__(
        self, form: Form, tiles: Tiles, scalars: Any, query_ids: Any, key_ids: Any, hashes: Any = None
    ) -> None:
        """Starts a program.

        Args:
          form, tiles: the form and the tiles of the kernel.
          scalars: the words of the key, then the first example, the first head, and the total number of heads.
          query_ids, key_ids: sequence ids.
          hashes: if all keys are one span, memory for the rows' hashes [P, hash_rows, 128], which all chunks share.
        """
        self.form, self.tiles, self.query_ids, self.key_ids = form, tiles, query_ids, key_ids
        example, group, self.block = pl.program_id(0), pl.program_id(1), pl.program_id(2)
        if form.rate:
            words = scalars.shape[0] - 3
            first_example, first_head, heads = (scalars[words + i] for i in range(3))
            # The index of the head in the whole batch, so that decisions do not depend on the mesh.
            number = (first_example + example.astype(jnp.uint32)) * heads + first_head
            number += group.astype(jnp.uint32) * np.uint32(tiles.per)
            key = [scalars[i] for i in range(words)]
            self.keys = [dropout.row_hash(key, number + np.uint32(head)) for head in range(tiles.per)]
            self.hashes = hashes
            if hashes is not None:
                for head in range(tiles.per):
                    hashes[head] = self.row_hash(head, 0)

    def each_chunk(self, body: Callable[[Any, Any], None]) -> None:
        """Calls `body` for each chunk of 128 queries, with their slice of the block and the position of the first."""

        def turn(i: Array, nothing: int) -> int:
            start = pl.multiple_of(i * LANES, LANES)
            # The hints let Mosaic see that slices begin at whole registers.
            body(pl.ds(start, LANES), pl.multiple_of(self.block * self.tiles.queries + start, LANES))
            return nothing

        jax.lax.fori_loop(0, self.tiles.queries // LANES, turn, 0)

    def each_span(self, first: Array, body: Callable[[Any, Any], Any], carry: Any) -> Any:
        """Calls `body` with the first position of each span of keys that the queries from `first` may see."""
        t = self.tiles
        if t.span == t.length:
            return body(0, carry)
        if self.form.reach is not None:
            side = (t.span - LANES) // 2
            # At the ends of a row the window is moved inside: spans have one static size.
            start = jnp.clip(first - side, 0, t.length - t.span)
            return body(pl.multiple_of(start, LANES), carry)
        return jax.lax.fori_loop(
            0, t.length // t.span, lambda i, carry: body(pl.multiple_of(i * t.span, t.span), carry), carry
        )

    def seen(self, here: Any, first: Array, start: Any) -> Array:
        """Computes whether each query sees each key of the span, [span, 128] bool."""
        t = self.tiles
        seen: Array = self.key_ids[0, pl.ds(start, t.span), :] == self.query_ids[0, :, here]
        if self.form.direction == "both" and self.form.reach is None:
            return seen
        key = jax.lax.broadcasted_iota(jnp.int32, seen.shape, 0) + start
        query = jax.lax.broadcasted_iota(jnp.int32, seen.shape, 1) + first
        if self.form.reach is not None:
            seen &= jnp.abs(key - query) <= self.form.reach
        if self.form.direction != "both":
            seen &= (key <= query) if self.form.direction == "before" else (key >= query)
        return seen

    def row_hash(self, head: int, start: Any) -> Array:
        """Computes the hashes of the span's rows, [hash_rows, 128] uint32, the same in all lanes."""
        # Half, because a row of hashes decides about two keys.
        row = jax.lax.broadcasted_iota(jnp.uint32, (self.tiles.hash_rows, LANES), 0) + (
            _unsigned(start) >> np.uint32(1)
        )
        return dropout.row_hash([self.keys[head]], row)

    def kept(self, head: int, first: Array, start: Any) -> Array:
        """Computes `dropout.keep_weights` of a head, [span, 128] bool."""
        t = self.tiles
        rows = self.row_hash(head, start) if self.hashes is None else self.hashes[head]
        column = jax.lax.broadcasted_iota(jnp.uint32, (8, LANES), 1) + _unsigned(first)
        bits = dropout.mix(rows ^ dropout.column_hash(column)[:1])
        limit = np.int32(dropout.weights_threshold(self.form.rate))
        # Halves fit into signed numbers, whose comparison every generation has.
        halves = (
            (bits & np.uint32(0xFFFF)).astype(jnp.int32) >= limit,
            (bits >> np.uint32(16)).astype(jnp.int32) >= limit,
        )
        # 128 keys by the lower halves, the next 128 by the upper ones: `dropout.PAIR`.
        blocks = [half[i : i + LANES] for i in range(0, t.hash_rows, LANES) for half in halves]
        return jnp.concatenate(blocks, axis=0)[: t.span] if len(blocks) > 1 else blocks[0]


def _forward(
    scalars: Any, query_ids: Any, key_ids: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, lse_ref: Any,
    *hashes: Any, form: Form, t: Tiles,
) -> None:  # fmt: skip
    program = _Program(form, t, scalars, query_ids, key_ids, *hashes)

    def chunk(here: Any, first: Array) -> None:
        q = q_ref[0, here, :].astype(jnp.float32) * t.size**-0.5

        def span(start: Any, carry: list[tuple[Array, Array, Array]]) -> list[tuple[Array, Array, Array]]:
            k, v = (ref[0, pl.ds(start, t.span), :] for ref in (k_ref, v_ref))
            seen = program.seen(here, first, start)
            after = []
            for head, (highest, total, out) in enumerate(carry):
                # In spans before the first seen key, weights are exp(0), until `before` scales their sums to 0; with
                # -inf as the lowest score they would be NaN. There is a seen key: every position sees itself.
                scores = jnp.where(seen, _dot(form, k, _of_head(t, q, head), (1, 1)), _LOWEST)
                now = jnp.maximum(highest, jnp.max(scores, axis=0, keepdims=True))
                weights, before = jnp.exp(scores - now), jnp.exp(highest - now)
                # Before dropout, which follows the softmax.
                total = total * before + jnp.sum(weights, axis=0, keepdims=True)
                if form.rate:
                    weights = jnp.where(program.kept(head, first, start), weights, 0.0)
                out = out * before + _rows_of(t, _dot(form, v, weights, (0, 0)), head)
                after.append((now, total, out))
            return after

        one = jnp.zeros((1, LANES), jnp.float32)
        nothing = [(one + _LOWEST, one, jnp.zeros((t.size, LANES), jnp.float32)) for _ in range(t.per)]
        done = program.each_span(first, span, nothing)
        for head, (highest, total, _) in enumerate(done):
            # The logarithm of the whole sum, for the backward pass, whose spans then need no maximum.
            lse_ref[0, 0, head : head + 1, here] = highest + jnp.log(total)
        outs = [out * (1 / ((1 - form.rate) * total)) for _, total, out in done]
        out_ref[0, here, :] = jnp.concatenate(outs, axis=0).T.astype(out_ref.dtype)

    program.each_chunk(chunk)


def _backward(
    scalars: Any, query_ids: Any, key_ids: Any, q_ref: Any, k_ref: Any, v_ref: Any, out_ref: Any, lse_ref: Any,
    d_out_ref: Any, d_q_ref: Any, d_k_ref: Any, d_v_ref: Any, d_k: Any, d_v: Any, *hashes: Any, form: Form, t: Tiles,
) -> None:  # fmt: skip
    program = _Program(form, t, scalars, query_ids, key_ids, *hashes)

    @pl.when(program.block == 0)
    def _() -> None:
        # Scratch memory lives through all blocks of queries of a group: it is cleared once.
        d_k[...] = jnp.zeros_like(d_k)
        d_v[...] = jnp.zeros_like(d_v)

    def chunk(here: Any, first: Array) -> None:
        q = q_ref[0, here, :].astype(jnp.float32) * t.size**-0.5
        d_out = d_out_ref[0, here, :].astype(jnp.float32)
        # Before `d_out` is scaled, because `out` has the factor 1 / (1 - rate) already: [W, 128].
        products = (d_out * out_ref[0, here, :].astype(jnp.float32)).T
        d_out = d_out * (1 / (1 - form.rate))

        def span(start: Any, carry: list[Array]) -> list[Array]:
            places = pl.ds(start, t.span)
            k, v = (ref[0, places, :] for ref in (k_ref, v_ref))
            seen = program.seen(here, first, start)
            after = []
            for head, d_q in enumerate(carry):
                q_head, d_out_head = _of_head(t, q, head), _of_head(t, d_out, head)
                scores = jnp.where(seen, _dot(form, k, q_head, (1, 1)), _LOWEST)
                weights = jnp.exp(scores - lse_ref[0, 0, head : head + 1, here])
                d_weights, dropped = _dot(form, v, d_out_head, (1, 1)), weights
                if form.rate:
                    kept = program.kept(head, first, start)
                    d_weights, dropped = jnp.where(kept, d_weights, 0.0), jnp.where(kept, weights, 0.0)
                mean = jnp.sum(_rows_of(t, products, head), axis=0, keepdims=True)  # of d_weights under the weights
                d_scores = weights * (d_weights - mean)
                d_v[places, :] += _dot(form, dropped, d_out_head, (1, 0))
                # With the scaled `q`; the gradient of `q` is scaled after the loop.
                d_k[places, :] += _dot(form, d_scores, q_head, (1, 0))
                after.append(d_q + _rows_of(t, _dot(form, k, d_scores, (0, 0)), head))
            return after

        nothing = [jnp.zeros((t.size, LANES), jnp.float32)] * t.per
        d_q = jnp.concatenate(program.each_span(first, span, nothing), axis=0)
        d_q_ref[0, here, :] = (d_q.T * t.size**-0.5).astype(d_q_ref.dtype)

    program.each_chunk(chunk)

    @pl.when(program.block == t.length // t.queries - 1)
    def _() -> None:
        d_k_ref[0] = d_k[...].astype(d_k_ref.dtype)
        d_v_ref[0] = d_v[...].astype(d_v_ref.dtype)


class _Call:
    """The padded arrays of a kernel call, and the blocks in which a grid of programs reads them."""

    def __init__(self, form: Form, qkv: Array, sequence_ids: Array) -> None:
        """Takes queries, keys and values [B, L, 3 D] and sequence ids [B, L]."""
        examples, self.length, width = qkv.shape
        self.form, self.t = form, tiles_of(form, self.length, width // 3)
        t = self.t
        # Blocks of queries come last, so that those of a group run one after another.
        self.grid = (examples, t.groups, t.length // t.queries)
        qkv, ids = self.pad(qkv), self.pad(sequence_ids, _PADDING)
        self.block = pl.BlockSpec((1, t.queries, t.group), lambda b, g, i: (b, i, g))
        self.whole = pl.BlockSpec((1, t.length, t.group), lambda b, g, i: (b, 0, g))
        self.lse = pl.BlockSpec((1, 1, t.per, t.queries), lambda b, g, i: (b, g, 0, i))
        # Ids of queries lie in the lanes and those of keys in the sublanes, as in scores [keys, queries].
        self.ids = [
            pl.BlockSpec((1, 1, t.queries), lambda b, g, i: (b, 0, i)),
            pl.BlockSpec((1, t.length, 1), lambda b, g, i: (b, 0, 0)),
        ]
        if t.aligned:
            n = t.groups
            # One array, read at three offsets: the parts are not copied.
            self.arrays = [qkv] * 3
            self.parts = [
                pl.BlockSpec((1, t.queries, t.group), lambda b, g, i: (b, i, g)),
                pl.BlockSpec((1, t.length, t.group), lambda b, g, i: (b, 0, n + g)),
                pl.BlockSpec((1, t.length, t.group), lambda b, g, i: (b, 0, 2 * n + g)),
            ]
        else:
            # Blocks cannot begin within a register, so the parts are copied.
            self.arrays = jnp.split(qkv, 3, axis=-1)
            self.parts = [self.block, self.whole, self.whole]
        self.arrays = [ids[:, None, :], ids[:, :, None], *self.arrays]

    def pad(self, x: Array, value: int = 0) -> Array:
        more = self.t.length - x.shape[1]
        return jnp.pad(x, ((0, 0), (0, more)) + ((0, 0),) * (x.ndim - 2), constant_values=value) if more else x

    def __call__(
        self, kernel: Any, name: str, scalars: Array, more: list[tuple[Any, Array]], outs: list[tuple[Any, Any]],
        products: int, scratch: list[Any] | None = None,
    ) -> list[Array]:  # fmt: skip
        t, form = self.t, self.form
        # In order over the blocks of queries: gradients of keys and values are summed over them, one after another.
        order: Any = ("parallel", "parallel", "arbitrary")
        # With several spans, `kept` computes the hashes of each: the memory would hold those of one.
        one_span = form.rate and t.span == t.length
        hashes = [pltpu.VMEM((t.per, t.hash_rows, LANES), jnp.uint32)] if one_span else []
        called: list[Array] = pl.pallas_call(
            functools.partial(kernel, form=form, t=t),
            grid=self.grid,
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), *self.ids, *self.parts, *(spec for spec, _ in more)],
            out_specs=[spec for spec, _ in outs],
            out_shape=[shape for _, shape in outs],
            scratch_shapes=[*(scratch or []), *hashes],
            interpret=form.interpret,
            # `planning.kernels` tells these apart by name: local and global layers, passes with and without dropout.
            name=name + ("" if form.reach is None else "_local") + ("_dropout" if form.rate else ""),
            cost_estimate=self._cost(products, [*self.arrays[2:5], *(x for _, x in more), *(x for _, x in outs)]),
            compiler_params=pltpu.CompilerParams(dimension_semantics=order, vmem_limit_bytes=form.vmem),
        )(scalars, *self.arrays, *(array for _, array in more))
        return called

    def _cost(self, products: int, arrays: list[Any]) -> pl.CostEstimate:
        examples, t = self.grid[0], self.t
        weights = examples * self.form.heads * pairs(self.form, self.length, t.width)
        moved = sum(math.prod(x.shape) * x.dtype.itemsize for x in arrays)
        return pl.CostEstimate(flops=products * 2 * weights * t.size, transcendentals=weights, bytes_accessed=moved)


def forward(form: Form, qkv: Array, sequence_ids: Array, scalars: Array) -> tuple[Array, Array]:
    """Computes attention to the visible positions.

    Args:
      form: the form of the kernel.
      qkv: queries, keys and values, [B, L, 3 D].
      sequence_ids: as in `attention.Visible`, [B, L].
      scalars: uint32: the words of a dropout key, the indices of the first example and the first head in the arrays,
        and the total number of heads.

    Returns:
      The weighted sums of values [B, L, D], and the logarithms of the sums of the weights (log-sum-exp), for
      `backward`.
    """
    call = _Call(form, qkv, sequence_ids)
    t, examples = call.t, qkv.shape[0]
    out, lse = call(
        _forward,
        "attention",
        scalars,
        [],
        [
            (call.block, jax.ShapeDtypeStruct((examples, t.length, t.width), qkv.dtype)),
            (call.lse, jax.ShapeDtypeStruct((examples, t.groups, t.per, t.length), jnp.float32)),
        ],
        # Matrix products per pair: scores and weighted sum.
        2,
    )
    return out[:, : call.length], lse


def backward(
    form: Form, qkv: Array, sequence_ids: Array, scalars: Array, out: Array, lse: Array, d_out: Array
) -> Array:
    """Computes the gradient of `qkv`, [B, L, 3 D], given that of `out`."""
    call = _Call(form, qkv, sequence_ids)
    t = call.t
    shape = jax.ShapeDtypeStruct((qkv.shape[0], t.length, t.width), qkv.dtype)
    gradients = call(
        _backward,
        "attention_backward",
        scalars,
        [(call.block, call.pad(out)), (call.lse, lse), (call.block, call.pad(d_out))],
        [(call.block, shape), (call.whole, shape), (call.whole, shape)],
        # Scores, and the gradients of weights, values, keys and queries.
        5,
        [pltpu.VMEM((t.length, t.group), jnp.float32)] * 2,
    )
    return jnp.concatenate(gradients, axis=-1)[:, : call.length]
