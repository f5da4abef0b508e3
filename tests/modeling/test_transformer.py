"""BERT's encoder against its definition in NumPy, and the parts that both encoders use."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from electra_jax.modeling import bert, fused_attention, transformer
from electra_jax.modeling.attention import Visible

CONFIG = reference.small("bert", layers=3)
H100 = "NVIDIA H100 80GB HBM3"
encode = functools.partial(reference.encode, CONFIG)


def numpy_norm(x, p):
    return reference.norm(x, 1e-12) * p["scale"] + p["bias"]


def numpy_layer(p, x, mask):
    """Post-LN: x = norm(x + attention(x)); x = norm(x + ffn(x))."""
    qkv, out = p["attention"]["qkv"], p["attention"]["out"]
    q, k, v = (np.einsum("bld,dhk->bhlk", x, qkv["kernel"][:, i]) + qkv["bias"][i][None, :, None] for i in range(3))
    x = x + np.einsum("bhlk,hkd->bld", reference.attend(q, k, v, mask), out["kernel"]) + out["bias"]
    x = numpy_norm(x, p["attention_norm"])
    h = reference.gelu(x @ p["ffn_in"]["kernel"] + p["ffn_in"]["bias"])
    return numpy_norm(x + h @ p["ffn_out"]["kernel"] + p["ffn_out"]["bias"], p["ffn_norm"])


def numpy_encoder(params, given, visible):
    params = reference.in_float64(params)
    x = given.astype(np.float64) @ params["project"]["kernel"] + params["project"]["bias"]
    for i in range(CONFIG.layers):
        x = numpy_layer(reference.layer_of(params, i), x, reference.mask(visible))
    return x


@pytest.mark.parametrize("direction", ["both", "before", "after"])
def test_encoder_computes_the_definition(direction):
    visible, params = Visible(reference.SEQUENCES, direction), reference.random_params(CONFIG)
    expected = numpy_encoder(params, reference.inputs(), visible)
    np.testing.assert_allclose(encode(params, reference.inputs(), visible), expected, atol=2e-5)


def test_the_epsilon_of_every_norm_of_the_encoder():
    """Everything is a millionth: variances are near epsilon, and 1% of it changes the states by .1% to .5%."""
    tiny = jax.tree.map(lambda p: np.float32(1e-6) * p, reference.random_params(CONFIG))
    given = np.float32(1e-6) * reference.inputs()
    expected = numpy_encoder(tiny, given, reference.VISIBLE)
    np.testing.assert_allclose(encode(tiny, given), expected, atol=2e-5 * np.abs(expected).max(), rtol=0)


def test_embeddings_as_wide_as_the_encoder_are_not_projected():
    x = np.zeros((1, 4, CONFIG.width), np.float32)
    init = functools.partial(bert.BertEncoder(CONFIG).init, train=False)
    params = jax.eval_shape(init, jax.random.key(0), x, Visible(np.ones((1, 4), np.int32)))["params"]
    assert set(params) == {"layers"}
    assert set(reference.shapes(CONFIG)) == {"layers", "project"}


def test_scanned_and_unrolled_layers_start_the_same():
    """What they compute: test_plain_attention.py, of ModernBERT; one function stacks the layers of all encoders."""
    scanned, unrolled = (reference.fresh_params(dataclasses.replace(CONFIG, unroll=unroll)) for unroll in (False, True))
    jax.tree.map(np.testing.assert_array_equal, scanned, unrolled)


@pytest.mark.parametrize(
    ("choice", "kind", "remat", "most"),
    [
        ("auto", "cpu", "none", 16),
        ("auto", "TPU v4", "dots", 16),
        ("auto", H100, "none", 24),
        ("auto", H100, "dots", 24),
        ("auto", H100, "full", 16),
        ("true", H100, "full", 99),
        ("false", H100, "none", 0),
    ],
)
def test_layers_are_unrolled_where_they_are_not_too_many(choice, kind, remat, most):
    networks = [dataclasses.replace(CONFIG, layers=each, remat=remat) for each in range(1, 100)]
    assert [c.layers for c in networks if transformer.is_unrolled(choice, c, kind)] == list(range(1, most + 1))


def test_debertas_plain_attention_leaves_no_memory_to_unroll_more_layers():
    c = reference.small("deberta", layers=17)
    assert not transformer.is_unrolled("auto", c, H100)


@pytest.mark.parametrize(("kind", "unroll", "kept"), [("cpu", True, 1), (H100, False, 1), (H100, True, 2)])
def test_remat_dots_keeps_activations_of_unrolled_layers_on_nvidia_gpus(monkeypatch, kind, unroll, kept):
    monkeypatch.setattr(fused_attention, "device_kind", lambda mesh: kind)
    c = dataclasses.replace(CONFIG, remat="dots", unroll=unroll)
    x, encoder = reference.inputs().astype(np.float32), bert.BertEncoder(c)

    def backward(params):
        return jax.vjp(lambda params: encoder.apply({"params": params}, x, reference.VISIBLE, False), params)[1]

    shapes = [array.shape for array in jax.tree.leaves(jax.eval_shape(backward, reference.shapes(c)))]
    assert shapes.count((c.layers, *x.shape[:2], c.ffn)) == kept


def test_dropout_is_on_attention_and_on_both_sublayers():
    assert reference.dropped(CONFIG) == {(2, 2, 12, 12): 1, (2, 12, 16): 2}
    assert reference.dropped(dataclasses.replace(CONFIG, attention_dropout=0.0)) == {(2, 12, 16): 2}


def test_layers_start_from_different_weights():
    kernel = reference.fresh_params(CONFIG)["layers"]["ffn_in"]["kernel"]
    assert not np.any(kernel[0] == kernel[1])


def test_truncated_normal_is_cut_at_two_sigma():
    draws = np.asarray(transformer.truncated_normal(0.02)(jax.random.key(0), (200, 1000)))
    assert 0.0399 < np.abs(draws).max() <= 0.04
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    narrowed = math.sqrt(1 - 4 * density / math.erf(math.sqrt(2)))  # the variance of a normal cut at two sigma
    assert draws.std() == pytest.approx(0.02 * narrowed, rel=0.01)
    assert draws.mean() == pytest.approx(0, abs=2e-4)


def test_positions_count_from_each_sequences_start():
    ids = jnp.asarray([[1, 1, 2, 2, 2, 0, 0], [1, 2, 3, 3, 4, 4, 4], [0, 0, 0, 1, 1, 1, 1]])
    positions = transformer.sequence_positions(ids)
    np.testing.assert_array_equal(positions, [[0, 1, 0, 1, 2, 0, 1], [0, 0, 0, 1, 0, 1, 2], [0, 1, 2, 0, 1, 2, 3]])
    assert positions.dtype == jnp.int32
