"""ModernBERT's encoder against its definition, written out in NumPy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from electra_jax.modeling import modernbert
from electra_jax.modeling.attention import Visible

CONFIG = reference.small("modernbert", layers=4)  # the first and the last see everything
encode = functools.partial(reference.encode, CONFIG)


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


def test_dropout_is_on_the_embeddings_and_inside_the_ffn():
    assert reference.dropped(CONFIG) == {(2, 12, 16): 1, (2, 12, 24): 1}


@pytest.mark.parametrize("direction", ["both", "before", "after"])
def test_encoder_computes_the_definition(direction):
    visible = Visible(reference.SEQUENCES, direction)
    random = reference.random_params(CONFIG)
    params = reference.in_float64(random)
    x = numpy_norm(reference.inputs() @ params["project"]["kernel"], params["embedding_norm"])
    for i in range(CONFIG.layers):
        x = numpy_layer(reference.layer_of(params, i), x, reference.mask(visible), i)
    expected = numpy_norm(x, params["final_norm"])
    np.testing.assert_allclose(encode(random, reference.inputs(), visible), expected, atol=5e-5)


def test_the_activation_is_the_configs():
    config = dataclasses.replace(CONFIG, layers=1, own=dataclasses.replace(CONFIG.own, activation="relu2"))
    random = reference.random_params(config)
    params = reference.in_float64(random)
    x = numpy_norm(reference.inputs() @ params["project"]["kernel"], params["embedding_norm"])
    layer = reference.layer_of(params, 0)
    x = numpy_layer(layer, x, reference.mask(reference.VISIBLE), 0, lambda h: np.maximum(h, 0) ** 2)
    expected = numpy_norm(x, params["final_norm"])
    np.testing.assert_allclose(reference.encode(config, random, reference.inputs()), expected, atol=5e-5)


def test_with_zero_outputs_layers_start_as_identity():
    config = dataclasses.replace(CONFIG, own=dataclasses.replace(CONFIG.own, zero_outputs=True))
    params = reference.fresh_params(config)
    x = numpy_norm(reference.inputs() @ params["project"]["kernel"], params["embedding_norm"])
    expected = numpy_norm(x, params["final_norm"])
    np.testing.assert_allclose(reference.encode(config, params, reference.inputs()), expected, atol=1e-5)
    kernels = params["layers"]["attention"]["qkv"]["kernel"], params["layers"]["ffn_in"]["kernel"]
    assert all(np.std(kernel) > 0.1 for kernel in kernels)


def test_nothing_has_a_bias():
    paths, _ = jax.tree_util.tree_flatten_with_path(reference.shapes(CONFIG))
    assert {path[-1].key for path, _ in paths} == {"kernel", "scale"}


def test_a_sequence_does_not_see_padding_or_its_neighbors():
    params, x = reference.random_params(CONFIG), reference.inputs()
    whole = encode(params, x)
    others = np.where((reference.SEQUENCES == 2)[..., None], x, reference.inputs(seed=2))
    np.testing.assert_allclose(encode(params, others)[0, 6:11], whole[0, 6:11], atol=2e-5)
    assert np.abs(encode(params, others)[0, :6] - whole[0, :6]).min() > 0


def test_a_packed_sequence_is_encoded_as_if_alone():
    """Its positions begin at 6, not 0: only their differences count."""
    params, x = reference.random_params(CONFIG), reference.inputs()
    alone = encode(params, np.roll(x, -6, axis=1), Visible(np.asarray([[1] * 5 + [0] * 7] * 2)))
    np.testing.assert_allclose(alone[0, :5], encode(params, x)[0, 6:11], atol=5e-5)


def test_local_layers_see_half_their_window_to_each_side():
    """Changes position 5 and looks where the output of one layer changes."""
    layer = modernbert.ModernBertLayer(CONFIG, train=False)
    x = 0.1 * jax.random.normal(jax.random.key(0), (1, 12, CONFIG.width))  # no attention weight rounds away
    visible = Visible(jnp.ones((1, 12), jnp.int32))
    angles = jnp.stack([modernbert.rotary(12, CONFIG.head_size, theta) for theta in (1e4, 1.6e5)])
    params = jax.jit(layer.init)(jax.random.key(1), x, 0, visible, angles)
    run = jax.jit(lambda x, number: layer.apply(params, x, number, visible, angles)[0])
    for number, seen in ((0, range(12)), (1, range(3, 8)), (2, range(3, 8)), (3, range(12))):
        changed = np.any(np.asarray(run(x.at[0, 5].add(1.0), number) != run(x, number)), axis=(0, 2))
        assert np.flatnonzero(changed).tolist() == list(seen), number


def test_rotary_scores_depend_on_relative_position_only():
    angles = jnp.asarray(modernbert.rotary(32, 8, 100.0))
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
    turned = [modernbert.rotate(jnp.tile(x, (1, 1, 32, 1)), angles, 2)[0, 0] for x in (query, key)]
    scores = np.asarray(turned[0] @ turned[1].T)
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-5)
    assert np.ptp(scores[0]) > 1  # and on that they do depend


def test_rotation_turns_halves_by_literal_angles():
    quarter = np.pi / 2
    angles = jnp.asarray([[0, 0, 0, 0], [quarter, 0, quarter, 0]], jnp.float32)
    x = jnp.tile(jnp.asarray([1.0, 2.0, 3.0, 4.0])[None, None, None], (1, 1, 2, 1))
    turned = modernbert.rotate(x, angles, 2)[0, 0]
    np.testing.assert_allclose(turned, [[1, 2, 3, 4], [-3, 2, 1, 4]], atol=1e-6)


def test_rotary_angles_are_literal():
    np.testing.assert_allclose(
        modernbert.rotary(3, 4, 100.0), [[0, 0, 0, 0], [1, 0.1, 1, 0.1], [2, 0.2, 2, 0.2]], rtol=1e-6
    )
