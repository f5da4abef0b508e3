"""Plain attention, its own derivatives and its blocks against one softmax over all positions, differentiated by JAX."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.modeling import attention, dropout, modernbert, plain_attention
from electra_jax.modeling.attention import Visible

WORDS = dropout.key_words(jax.random.key(5))
SIZE = 4


def definition(q, k, v, mask, rate):
    scores = jnp.where(mask, jnp.einsum("bhqk,bhsk->bhqs", q, k) / SIZE**0.5, -1e30)
    weights = jax.nn.softmax(scores)
    if rate:
        weights = jnp.where(dropout.keep_weights(WORDS, weights.shape, rate), weights / (1 - rate), 0.0)
    return jnp.einsum("bhqs,bhsk->bhqk", weights, v)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def run(form, window, direction, rate, sequence_ids, is_local, qkv, weight):
    """The result [B, H, L, K], and the gradient of its sum with `weight`."""
    length = sequence_ids.shape[1]
    visible, reach = Visible(sequence_ids, direction), window // 2
    position = jnp.arange(length)
    near = jnp.abs(position[:, None] - position[None, :]) <= reach

    def total(qkv):
        if form == "definition":
            mask = visible.mask() if is_local is None else visible.mask() & (near | ~is_local)[None, None]
            out = definition(*jnp.moveaxis(qkv, 2, 0).swapaxes(2, 3), mask, rate).swapaxes(1, 2)
        else:
            c = dataclasses.replace(reference.small("modernbert", 1), width=2 * SIZE, local_window=window)
            out = attention._plain(c, qkv, visible, None, is_local, rate, WORDS)
        return jnp.sum(out * weight), out

    return jax.grad(total, has_aux=True)(qkv)


def check(sequence_ids, window: int = 8, direction: str = "both", is_local: bool | None = None, rate: float = 0.0):
    sequence_ids = np.asarray(sequence_ids, np.int32)
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((*sequence_ids.shape, 3, 2, SIZE)).astype(np.float32)
    weight = rng.standard_normal((*sequence_ids.shape, 2, SIZE)).astype(np.float32)
    rest = sequence_ids, None if is_local is None else jnp.asarray(is_local), qkv, weight
    expected, found = (run(form, window, direction, rate, *rest) for form in ("definition", "plain"))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=2e-6 * np.abs(a).max())


def packed(length: int) -> list[list[int]]:
    third = length // 3
    return [[1] * third + [2] * third + [3] * (length - 2 * third - 5) + [0] * 5, [1] * length]


@pytest.mark.parametrize(("rate", "direction"), [(0.0, "both"), (0.3, "before"), (0.3, "after")])
def test_the_derivative_is_that_of_the_definition(rate, direction):
    check(packed(20), direction=direction, rate=rate)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_bias_is_added_to_the_scores_and_has_their_gradient(rate):
    rng = np.random.default_rng(0)
    q, k, v, weight = rng.standard_normal((4, 2, 2, 6, SIZE)).astype(np.float32)
    bias = rng.standard_normal((2, 2, 6, 6)).astype(np.float32)
    mask = Visible(np.asarray([[1] * 4 + [2] * 2, [1] * 6], np.int32)).mask()

    def expected(q, k, v, bias):
        scores = jnp.where(mask, jnp.einsum("bhqk,bhsk->bhqs", q, k) / SIZE**0.5 + bias, -1e30)
        weights = jax.nn.softmax(scores)
        if rate:
            weights = jnp.where(dropout.keep_weights(WORDS, weights.shape, rate), weights / (1 - rate), 0.0)
        return jnp.sum(jnp.einsum("bhqs,bhsk->bhqk", weights, v) * weight)

    def found(q, k, v, bias):
        return jnp.sum(plain_attention.attend(q, k, v, mask, WORDS, rate, bias) * weight)

    values, gradients = zip(*(jax.value_and_grad(f, range(4))(q, k, v, bias) for f in (expected, found)), strict=True)
    np.testing.assert_allclose(*values, rtol=1e-5)
    for a, b in zip(*gradients, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=1e-5)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("direction", ["both", "before", "after"])
@pytest.mark.parametrize(("length", "window"), [(64, 8), (70, 2), (101, 7), (160, 34), (20, 8)])
def test_local_layers_see_their_window(length, window, direction, is_local):
    """In blocks where they save something, which is everywhere but in the last; a layer may be of either kind."""
    has_blocks = plain_attention.block_size(length, window // 2) is not None
    assert has_blocks == (length != 20)
    check(packed(length), window, direction, is_local)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=50, max_size=50),
    st.sampled_from([1, 2, 5, 16]),
    st.sampled_from(["both", "before", "after"]),
)
def test_any_ids_in_any_order(sequence_ids, window, direction):
    check([sequence_ids], window, direction, is_local=True)


def test_blocks_hold_at_least_what_a_query_reaches_to_one_side():
    """And at most half of all pairs are computed in them: 4 blocks of 16 x 24, 16 of 64 x 192."""
    assert plain_attention.block_size(64, 4) == 16
    assert plain_attention.pairs(64, 4) == 64 * 24
    assert plain_attention.pairs(70, 4) == 80 * 24
    assert plain_attention.block_size(1024, 64) == 64
    assert plain_attention.pairs(1024, 64) == 1024 * 192
    assert plain_attention.block_size(384, 64) == 64
    assert plain_attention.block_size(383, 64) is None
    assert plain_attention.pairs(383, 64) == 383**2 == plain_attention.pairs(383, None)


def grad_of_layers(unroll: bool, remat: str, length: int = 128):
    """The compiled gradient of four layers, of which the last three are local."""
    c = dataclasses.replace(reference.small("modernbert", 4), unroll=unroll, remat=remat, global_every=100)
    ids = jnp.ones((1, length), jnp.int32)
    module = modernbert.ModernBertEncoder(c)
    x = jax.random.normal(jax.random.key(0), (1, length, 12))
    params = reference.random_params(reference.small("modernbert", 4))

    def loss(params, x):
        return jnp.sum(jnp.sin(module.apply({"params": params}, x, Visible(ids), False)))

    return jax.jit(jax.value_and_grad(loss)), params, x


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_scanned_unrolled_and_recomputed_layers_are_the_same(remat):
    expected, found = (
        jax.tree.leaves(run(params, x))
        for run, params, x in (grad_of_layers(True, "none"), grad_of_layers(False, remat))
    )
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=2e-5 * np.abs(a).max())


def test_unrolled_layers_have_no_branches():
    """XLA knows which are local: [L, L] is in the program no more often than with one layer that sees everything."""
    run, params, x = grad_of_layers(True, "none")
    text = run.lower(params, x).compile().as_text()
    assert "conditional(" not in text
    assert "[1,2,8,16,20]" in text


def test_scanned_layers_keep_no_weights():
    """No branch returns an array [L, L], so none is kept for each layer."""
    run, params, x = grad_of_layers(False, "none")
    text = run.lower(params, x).compile().as_text()
    branches = [line for line in text.splitlines() if " conditional(" in line]
    assert len(branches) == 2  # forward and backward
    assert not any("128,128]" in line.split(" conditional(")[0] for line in branches)
    assert "[4,1,2,128,128]" not in text
