"""ModernBERT's encoder against its definition, written out in NumPy."""

import dataclasses

import numpy as np
import pytest
import reference

from electra_jax.modeling.attention import Visible

CONFIG = reference.small("modernbert", layers=4)  # the first and the last see everything


def numpy_norm(x, p):
    return reference.norm(x, 1e-5) * p["scale"]


def numpy_rope(x_BHLK, theta):
    """Entries i and i + K / 2 as one complex number, turned by position x theta^(-2i / K)."""
    half = x_BHLK.shape[-1] // 2
    turn = np.arange(x_BHLK.shape[-2])[:, None] * theta ** (-np.arange(half) / half)
    turned = (x_BHLK[..., :half] + 1j * x_BHLK[..., half:]) * np.exp(1j * turn)
    return np.concatenate([turned.real, turned.imag], -1)


def numpy_layer(p, x, mask, number, activation=reference.gelu):
    """Pre-norm: x += attention(norm(x)); x += ffn(norm(x)). The first layer's attention has no norm."""
    everywhere = number % 3 == 0
    distance = np.abs(np.subtract.outer(np.arange(x.shape[1]), np.arange(x.shape[1])))
    mask = mask & (everywhere | (distance <= 2))
    theta = 160_000.0 if everywhere else 10_000.0
    normed = x if number == 0 else numpy_norm(x, p["attention_norm"])
    q, k, v = (np.einsum("bld,dhk->bhlk", normed, p["attention"]["qkv"]["kernel"][:, i]) for i in range(3))
    attended = reference.attend(numpy_rope(q, theta), numpy_rope(k, theta), v, mask)
    x = x + np.einsum("bhlk,hkd->bld", attended, p["attention"]["out"]["kernel"])
    h, gate = (numpy_norm(x, p["ffn_norm"]) @ p["ffn_in"]["kernel"][:, i] for i in range(2))
    return x + (activation(h) * gate) @ p["ffn_out"]["kernel"]


def numpy_encoder(config, params, visible=reference.VISIBLE, activation=reference.gelu):
    params = reference.in_float64(params)
    x = numpy_norm(reference.inputs() @ params["project"]["kernel"], params["embedding_norm"])
    for i in range(config.layers):
        x = numpy_layer(reference.layer_of(params, i), x, reference.mask(visible), i, activation)
    return numpy_norm(x, params["final_norm"])


def test_dropout_is_on_the_embeddings_and_inside_the_ffn():
    assert reference.dropped(CONFIG) == {(2, 12, 16): 1, (2, 12, 24): 1}


@pytest.mark.parametrize("direction", ["both", "before", "after"])
def test_encoder_computes_the_definition(direction):
    visible, params = Visible(reference.SEQUENCES, direction), reference.random_params(CONFIG)
    found = reference.encode(CONFIG, params, reference.inputs(), visible)
    np.testing.assert_allclose(found, numpy_encoder(CONFIG, params, visible), atol=5e-5)


def test_the_activation_is_the_configs():
    config = dataclasses.replace(CONFIG, layers=1, own=dataclasses.replace(CONFIG.own, activation="relu2"))
    params = reference.random_params(config)
    expected = numpy_encoder(config, params, activation=lambda h: np.maximum(h, 0) ** 2)
    np.testing.assert_allclose(reference.encode(config, params, reference.inputs()), expected, atol=5e-5)


def test_with_zero_outputs_layers_start_as_identity():
    config = dataclasses.replace(CONFIG, own=dataclasses.replace(CONFIG.own, zero_outputs=True))
    params = reference.fresh_params(config)
    expected = numpy_encoder(dataclasses.replace(config, layers=0), params)
    np.testing.assert_allclose(reference.encode(config, params, reference.inputs()), expected, atol=1e-5)
    kernels = params["layers"]["attention"]["qkv"]["kernel"], params["layers"]["ffn_in"]["kernel"]
    assert all(np.std(kernel) > 0.1 for kernel in kernels)
