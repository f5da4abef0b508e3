"""ModernBERT's encoder against its definition, written out in NumPy."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.modeling import layers, modernbert
from electra_jax.modeling.config import EncoderConfig

CONFIG = EncoderConfig(
    kind="modernbert",
    layers=4,  # the first and the last see everything
    width=16,
    ffn=24,
    heads=2,
    init_stddev=0.3,
    dropout=0.0,
    dtype=jnp.float32,
    unroll=False,
    local_window=4,
    global_every=3,
)
EMBEDDING = 12
SEQUENCES = np.asarray([[1] * 6 + [2] * 5 + [0], [1] * 12], np.int32)


def inputs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*SEQUENCES.shape, EMBEDDING)).astype(np.float32)


@functools.cache
def fresh_params(config: EncoderConfig = CONFIG):
    init = functools.partial(modernbert.Encoder(config).init, train=False)
    return jax.jit(init)(jax.random.key(0), inputs(), SEQUENCES)["params"]


def random_params():
    """No norm at 1, so that each parameter counts."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda p: p + 0.3 * rng.standard_normal(p.shape).astype(np.float32), fresh_params())


@functools.cache
def compiled(config: EncoderConfig):
    return jax.jit(functools.partial(modernbert.Encoder(config).apply, train=False))


def encode(params, x, sequences=SEQUENCES, config=CONFIG) -> np.ndarray:
    return np.asarray(compiled(config)({"params": params}, x.astype(np.float32), sequences))


def numpy_norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["scale"]


def numpy_rope(x_BHLK, theta):
    """Entries i and i + K / 2 as one complex number, turned by position x theta^(-2i / K)."""
    half = x_BHLK.shape[-1] // 2
    turn = np.arange(x_BHLK.shape[-2])[:, None] * theta ** (-np.arange(half) / half)
    turned = (x_BHLK[..., :half] + 1j * x_BHLK[..., half:]) * np.exp(1j * turn)
    return np.concatenate([turned.real, turned.imag], -1)


def numpy_layer(p, x, mask, number):
    """Pre-norm: x += attention(norm(x)); x += ffn(norm(x)). The first layer's attention has no norm."""
    everywhere = number % 3 == 0
    distance = np.abs(np.subtract.outer(np.arange(x.shape[1]), np.arange(x.shape[1])))
    mask = mask & (everywhere | (distance <= 2))
    theta = 160_000.0 if everywhere else 10_000.0
    normed = x if number == 0 else numpy_norm(x, p["attention_norm"])
    q, k, v = (np.einsum("bld,dhk->bhlk", normed, p["attention"]["qkv"]["kernel"][:, i]) for i in range(3))
    scores = numpy_rope(q, theta) @ numpy_rope(k, theta).swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    scores = np.where(mask[:, None], scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("bhlk,hkd->bld", weights @ v, p["attention"]["out"]["kernel"])
    h, gate = np.split(numpy_norm(x, p["ffn_norm"]) @ p["ffn_in"]["kernel"], 2, axis=-1)
    h = h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2
    return x + (h * gate) @ p["ffn_out"]["kernel"]


def test_encoder_computes_the_definition():
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), random_params())
    x = numpy_norm(inputs() @ params["project"]["kernel"], params["embedding_norm"])
    mask = SEQUENCES[:, :, None] == SEQUENCES[:, None, :]
    for i in range(CONFIG.layers):
        layer = jax.tree.map(lambda p, i=i: p[i], params["layers"])
        x = numpy_layer(layer, x, mask, i)
    np.testing.assert_allclose(encode(random_params(), inputs()), numpy_norm(x, params["final_norm"]), atol=5e-5)


def test_nothing_has_a_bias():
    paths, _ = jax.tree_util.tree_flatten_with_path(random_params())
    assert {path[-1].key for path, _ in paths} == {"kernel", "scale"}


def test_scanned_and_unrolled_layers_are_the_same():
    unrolled = dataclasses.replace(CONFIG, unroll=True)
    jax.tree.map(np.testing.assert_array_equal, fresh_params(CONFIG), fresh_params(unrolled))
    params = random_params()
    np.testing.assert_allclose(encode(params, inputs()), encode(params, inputs(), config=unrolled), atol=2e-5)


def test_a_sequence_does_not_see_padding_or_its_neighbours():
    params, x = random_params(), inputs()
    whole = encode(params, x)
    others = np.where((SEQUENCES == 2)[..., None], x, inputs(seed=2))
    np.testing.assert_allclose(encode(params, others)[0, 6:11], whole[0, 6:11], atol=2e-5)
    assert np.abs(encode(params, others)[0, :6] - whole[0, :6]).min() > 0


def test_a_packed_sequence_is_encoded_as_if_alone():
    """Its positions begin at 6, not 0: only their differences count."""
    params, x = random_params(), inputs()
    alone = encode(params, np.roll(x, -6, axis=1), np.asarray([[1] * 5 + [0] * 7] * 2, np.int32))
    np.testing.assert_allclose(alone[0, :5], encode(params, x)[0, 6:11], atol=5e-5)


def test_local_layers_see_half_their_window_to_each_side():
    """Changes position 5 and looks where the output of one layer changes."""
    layer = modernbert.Layer(CONFIG, train=False)
    x = 0.1 * jax.random.normal(jax.random.key(0), (1, 12, CONFIG.width))  # no attention weight rounds away
    mask = layers.same_sequence(jnp.ones((1, 12), jnp.int32))
    angles = jnp.stack([modernbert.rotary(12, CONFIG.head_size, theta) for theta in (1e4, 1.6e5)])
    params = jax.jit(layer.init)(jax.random.key(1), x, 0, mask, angles)
    run = jax.jit(lambda x, number: layer.apply(params, x, number, mask, angles)[0])
    for number, seen in ((0, range(12)), (1, range(3, 8)), (2, range(3, 8)), (3, range(12))):
        changed = np.any(np.asarray(run(x.at[0, 5].add(1.0), number) != run(x, number)), axis=(0, 2))
        assert np.flatnonzero(changed).tolist() == list(seen), number


def test_rotary_scores_depend_on_relative_position_only():
    angles = jnp.asarray(modernbert.rotary(32, 8, 100.0))
    query, key = jax.random.normal(jax.random.key(0), (2, 1, 1, 1, 8))
    turned = [modernbert.rotate(jnp.tile(x, (1, 32, 1, 1)), angles)[0, :, 0] for x in (query, key)]
    scores = np.asarray(turned[0] @ turned[1].T)
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-5)
    assert np.ptp(scores[0]) > 1  # and on that they do depend


def test_rotation_turns_halves_by_literal_angles():
    quarter = np.pi / 2
    angles = jnp.asarray([[0, 0, 0, 0], [quarter, 0, quarter, 0]], jnp.float32)
    x = jnp.tile(jnp.asarray([1.0, 2.0, 3.0, 4.0])[None, None, None], (1, 2, 1, 1))
    turned = modernbert.rotate(x, angles)[0, :, 0]
    np.testing.assert_allclose(turned, [[1, 2, 3, 4], [-3, 2, 1, 4]], atol=1e-6)


def test_rotary_angles_are_literal():
    np.testing.assert_allclose(
        modernbert.rotary(3, 4, 100.0), [[0, 0, 0, 0], [1, 0.1, 1, 0.1], [2, 0.2, 2, 0.2]], rtol=1e-6
    )
