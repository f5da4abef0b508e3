"""Plain attention, its derivatives and its blocks against one softmax over all positions, in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import rounding
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.modeling import attention, dropout, modernbert, plain_attention
from electra_jax.modeling.attention import Visible
from electra_jax.modeling.modernbert import ModernBertSettings

WORDS = dropout.key_words(jax.random.key(5))
SIZE = 4


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def run(window, direction, rate, sequence_ids, is_local, qkv, weight):
    """The result [B, L, H, K], and the gradient of its sum with `weight`."""
    c = dataclasses.replace(reference.small("modernbert", 1), width=2 * SIZE)

    def total(qkv):
        out = attention._plain(c, qkv, Visible(sequence_ids, direction, window // 2, is_local), None, rate, WORDS)
        return jnp.sum(out * weight), out

    gradients, out = jax.grad(total, has_aux=True)(qkv)
    return out, gradients


def check(sequence_ids, window: int = 8, direction: str = "both", is_local: bool | None = None, rate: float = 0.0):
    sequence_ids = np.asarray(sequence_ids, np.int32)
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((*sequence_ids.shape, 3, 2, SIZE)).astype(np.float32)
    weight = rng.standard_normal((*sequence_ids.shape, 2, SIZE)).astype(np.float32)
    found = run(window, direction, rate, sequence_ids, None if is_local is None else jnp.asarray(is_local), qkv, weight)
    mask = reference.mask(Visible(sequence_ids, direction), window // 2 if is_local else None)
    reference.check_attention(found, qkv, weight, mask, drop(mask, rate))


def drop(mask, rate: float):
    """What dropout multiplies the weights of two heads by."""
    shape = len(mask), 2, *mask.shape[2:]
    return np.asarray(dropout.keep_weights(WORDS, shape, rate)) / (1 - rate) if rate else 1


def packed(length: int) -> list[list[int]]:
    third = length // 3
    return [[1] * third + [2] * third + [3] * (length - 2 * third - 5) + [0] * 5, [1] * length]


@pytest.mark.parametrize(("rate", "direction"), [(0.0, "both"), (0.3, "before"), (0.3, "after")])
def test_the_derivative_is_that_of_the_definition(rate, direction):
    check(packed(20), direction=direction, rate=rate)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_bias_is_added_to_the_scores_and_has_their_gradient(rate):
    rng = np.random.default_rng(0)
    given = *rng.standard_normal((4, 2, 2, 6, SIZE)), rng.standard_normal((2, 2, 6, 6))
    *given, weight, bias = (x.astype(np.float32) for x in given)
    mask = reference.mask(Visible(np.asarray([[1] * 4 + [2] * 2, [1] * 6])))

    @jax.jit
    def found(q, k, v, bias):
        def total(*given):
            return jnp.sum(plain_attention.attend(*given[:3], mask, WORDS, rate, given[3]) * weight)

        return jax.value_and_grad(total, range(4))(q, k, v, bias)

    def expected(given):
        given = *reference.in_float64(given), drop(mask, rate)
        return np.sum(reference.attend(*given[:3], mask, *given[3:]) * weight), reference.attention_gradients(
            *given[:3], mask, *given[3:], weight
        )

    given = *given, bias
    # The sum over all results is the longest.
    bounds = rounding.bounds(expected, given, longest=weight.size)
    jax.tree.map(
        lambda a, b, bound: np.testing.assert_allclose(a, b, rtol=0, atol=bound), found(*given), expected(given), bounds
    )


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(
    ("length", "window", "direction"),
    [
        (64, 8, "both"),
        (70, 2, "before"),
        (101, 7, "after"),
        (160, 34, "both"),
        (160, 34, "before"),
        (160, 34, "after"),
        (20, 8, "after"),
    ],
)
def test_local_layers_see_their_window(length, window, direction, is_local):
    """In blocks where they save something, which is everywhere but in the last; a layer may be of either kind."""
    has_blocks = plain_attention.block_size(length, window // 2) is not None
    assert has_blocks == (length != 20)
    check(packed(length), window, direction, is_local)


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, 3), min_size=50, max_size=50),
    st.sampled_from([(1, "both"), (2, "before"), (5, "after"), (16, "both")]),
)
def test_any_ids_in_any_order(sequence_ids, form):
    check([sequence_ids], *form, is_local=True)


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


@functools.cache
def layers(unroll: bool, remat: str):
    """The gradient of three layers, of which the last two are local, and the compiled program's text."""
    own = ModernBertSettings(local_window=4, global_every=100)
    c = dataclasses.replace(reference.small("modernbert", 3), unroll=unroll, remat=remat, own=own)
    ids = jnp.ones((1, 128), jnp.int32)
    module = modernbert.ModernBertEncoder(c)
    x = np.random.default_rng(0).standard_normal((1, 128, 12)).astype(np.float32)
    params = reference.random_params(reference.small("modernbert", 3))

    def loss(params, x):
        return jnp.sum(jnp.sin(module.apply({"params": params}, x, Visible(ids), False)))

    compiled = jax.jit(jax.value_and_grad(loss)).lower(params, x).compile()
    return compiled(params, x), compiled.as_text()


@pytest.mark.parametrize("remat", ["none", "dots", "full"])
def test_scanned_unrolled_and_recomputed_layers_are_the_same(remat):
    expected, found = (jax.tree.leaves(layers(*how)[0]) for how in ((True, "none"), (False, remat)))
    for a, b in zip(expected, found, strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=2e-5 * np.abs(a).max())


def test_unrolled_layers_have_no_branches():
    """XLA knows which are local: [L, L] is in the program no more often than with one layer that sees everything."""
    text = layers(True, "none")[1]
    assert "conditional(" not in text
    assert "[1,2,8,16,20]" in text


def test_scanned_layers_keep_no_weights():
    """No branch returns an array [L, L], so none is kept for each layer."""
    text = layers(False, "none")[1]
    branches = [line for line in text.splitlines() if " conditional(" in line]
    assert len(branches) == 2  # forward and backward
    assert not any("128,128]" in line.split(" conditional(")[0] for line in branches)
    assert "[3,1,2,128,128]" not in text
