"""DeBERTa's encoder against its definition, written out in NumPy."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

from electra_jax.modeling import deberta, electra
from electra_jax.modeling.attention import Visible

CONFIG = reference.small("deberta", layers=2)
encode = functools.partial(reference.encode, CONFIG)
DISTANCE = np.subtract.outer(np.arange(12), np.arange(12))


def numpy_norm(x, p):
    return reference.norm(x, 1e-7) * p["scale"] + p["bias"]


def numpy_bucket(distance):
    """Of 4 rows to each side, up to a distance of 8: 0, 1 and 2 have rows of their own, then ceil of a logarithm."""
    if abs(distance) <= 2:
        return 4 + distance
    row = math.ceil(math.log(abs(distance) / 2) / math.log(7 / 2) * 1) + 2
    return min(max(4 + int(math.copysign(row, distance)), 0), 7)


def numpy_layer(p, x, mask, relative):
    """Post-LN: x = norm(x + attention(x)); x = norm(x + ffn(x))."""
    kernel, bias = p["attention"]["qkv"]["kernel"], p["attention"]["qkv"]["bias"]
    q, k, v = (np.einsum("bld,dhk->bhlk", x, kernel[:, i]) + bias[i][:, None] for i in range(3))
    q_row, k_row = (np.einsum("rd,dhk->hrk", relative, kernel[:, i]) + bias[i][:, None] for i in range(2))
    rows = np.vectorize(numpy_bucket)(DISTANCE)
    scores = np.einsum("bhik,bhjk->bhij", q, k)
    scores += np.einsum("bhik,hijk->bhij", q, k_row[:, rows])
    scores += np.einsum("bhjk,hijk->bhij", k, q_row[:, rows])
    scores = np.where(mask, scores / math.sqrt(3 * q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    attended = weights / weights.sum(-1, keepdims=True) @ v
    out = p["attention"]["out"]
    x = numpy_norm(x + np.einsum("bhlk,hkd->bld", attended, out["kernel"]) + out["bias"], p["attention_norm"])
    h = reference.gelu(x @ p["ffn_in"]["kernel"] + p["ffn_in"]["bias"])
    return numpy_norm(x + h @ p["ffn_out"]["kernel"] + p["ffn_out"]["bias"], p["ffn_norm"])


@pytest.mark.parametrize(("block", "direction"), [(64, "both"), (64, "before"), (5, "both"), (5, "after")])
def test_encoder_computes_the_definition(direction, block, monkeypatch):
    """In one block, and in three of which the last is not full."""
    monkeypatch.setattr(deberta, "_BLOCK", block)
    visible, random = Visible(reference.SEQUENCES, direction), reference.random_params(CONFIG)
    params = reference.in_float64(random)
    x = numpy_norm(reference.inputs() @ params["project"]["kernel"], params["embedding_norm"])
    relative = numpy_norm(params["relative"], params["relative_norm"])
    for i in range(CONFIG.layers):
        x = numpy_layer(reference.layer_of(params, i), x, reference.mask(visible), relative)
    found = jax.jit(lambda p: deberta.DebertaEncoder(CONFIG).apply({"params": p}, reference.inputs(), visible, False))(
        random
    )
    np.testing.assert_allclose(found, x, atol=5e-5)


def test_dropout_is_on_embeddings_relative_embeddings_weights_and_what_is_added():
    assert reference.dropped(CONFIG) == {(2, 12, 16): 3, (8, 16): 1, (2, 2, 12, 12): 1}


def test_bfloat16_is_near_float32():
    half = dataclasses.replace(CONFIG, dtype=jnp.bfloat16)
    params, x = reference.random_params(CONFIG), reference.inputs()
    found = np.asarray(reference.encode(half, params, x), np.float32)
    assert np.abs(found - encode(params, x)).mean() < 0.03


def test_buckets_are_literal():
    """As `make_log_bucket_position` of transformers gives them; see tests/parity for all distances."""
    found = deberta.bucket(np.arange(-9, 10), 4, 8).tolist()
    assert found == [0, 0, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7, 7]
    assert deberta.bucket(np.asarray([-9999, -128, 0, 128, 129, 511, 512, 9999]), 256, 512).tolist() == (
        [0, 128, 256, 384, 385, 511, 511, 511]
    )


@given(st.integers(2, 40), st.integers(1, 60), st.integers(0, 300))
def test_buckets_grow_with_distance_and_mirror_each_other(buckets, more, distance):
    furthest = buckets // 2 + 1 + more
    here, further, mirrored = deberta.bucket(np.asarray([distance, distance + 1, -distance]), buckets, furthest)
    assert here <= further <= min(2 * buckets - 1, here + 1 + buckets)
    assert mirrored == max(2 * buckets - here, 0) or here == 2 * buckets - 1


@pytest.mark.parametrize("length", [1, 64, 65, 130])
def test_pairs_are_those_of_the_blocks(length):
    assert deberta.pairs(length) == deberta._blocks(length, 1).size * deberta.block_size(length)


def test_only_rows_in_use_are_computed():
    assert deberta.rows_used(CONFIG, 1) == (4, 4)
    assert deberta.rows_used(CONFIG, 3) == (2, 6)
    assert deberta.rows_used(CONFIG, 99) == (0, 7)


def test_gradient_reaches_every_parameter_but_rows_that_no_distance_has():
    x, params = reference.inputs()[:, :3], reference.random_params(CONFIG)
    visible = Visible(np.ones((2, 3), np.int32))
    weights = np.random.default_rng(0).standard_normal((2, 3, 16)).astype(np.float32)

    def loss(params):
        return jnp.sum(deberta.DebertaEncoder(CONFIG).apply({"params": params}, x, visible, False) * weights)

    found = jax.jit(jax.grad(loss))(params)
    assert (np.abs(found["relative"]).max(axis=1) > 0).tolist() == [False, False, True, True, True, True, True, False]
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(found))


def test_the_head_adds_the_first_state_of_each_sequence():
    head, states = electra.DiscriminatorHead(CONFIG), np.random.default_rng(0).standard_normal((2, 12, 16))
    given = states.astype(np.float32), reference.SEQUENCES
    random = reference.random_like(jax.eval_shape(head.init, jax.random.key(0), *given)["params"])
    params = reference.in_float64(random)
    first = np.asarray([[0] * 6 + [6] * 5 + [11], [0] * 12])
    x = numpy_norm(states + np.take_along_axis(states, first[..., None], axis=1), params["norm"])
    x = reference.gelu(x @ params["dense"]["kernel"] + params["dense"]["bias"])
    expected = x @ params["classifier"]["kernel"] + params["classifier"]["bias"]
    np.testing.assert_allclose(jax.jit(head.apply)({"params": random}, *given), expected[..., 0], atol=2e-5)
