"""BERT's encoder against its definition, written out in NumPy."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.modeling import bert
from electra_jax.modeling.config import EncoderConfig

CONFIG = EncoderConfig(
    kind="bert",
    layers=3,
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
SEQUENCES = np.asarray([[1, 1, 1, 1, 2, 2, 2, 0], [1, 1, 1, 1, 1, 1, 1, 1]], np.int32)


def inputs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*SEQUENCES.shape, EMBEDDING)).astype(np.float32)


@functools.cache
def fresh_params(config: EncoderConfig = CONFIG):
    init = functools.partial(bert.Encoder(config).init, train=False)
    return jax.jit(init)(jax.random.key(0), inputs(), SEQUENCES)["params"]


def random_params():
    """No parameter at 0 or 1, so that each of them counts."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda p: p + 0.3 * rng.standard_normal(p.shape).astype(np.float32), fresh_params())


@functools.cache
def compiled(config: EncoderConfig):
    return jax.jit(functools.partial(bert.Encoder(config).apply, train=False))


def encode(params, x, sequences=SEQUENCES, config=CONFIG) -> np.ndarray:
    return np.asarray(compiled(config)({"params": params}, x.astype(np.float32), sequences))


def numpy_norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * p["scale"] + p["bias"]


def numpy_layer(p, x, mask):
    """Post-LN: x = norm(x + attention(x)); x = norm(x + ffn(x))."""
    a = p["attention"]
    q, k, v = (np.einsum("bld,dhk->bhlk", x, a["qkv"]["kernel"][:, i]) for i in range(3))
    q, k, v = (m + a["qkv"]["bias"][i][None, :, None] for i, m in enumerate((q, k, v)))
    scores = np.where(mask[:, None], q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x = x + np.einsum("bhlk,hkd->bld", weights @ v, a["out"]["kernel"]) + a["out"]["bias"]
    x = numpy_norm(x, p["attention_norm"])
    h = x @ p["ffn_in"]["kernel"] + p["ffn_in"]["bias"]
    h = h * (1 + np.vectorize(math.erf)(h / math.sqrt(2))) / 2
    return numpy_norm(x + h @ p["ffn_out"]["kernel"] + p["ffn_out"]["bias"], p["ffn_norm"])


def test_encoder_computes_the_definition():
    params = jax.tree.map(lambda p: np.asarray(p, np.float64), random_params())
    x = inputs() @ params["project"]["kernel"] + params["project"]["bias"]
    mask = SEQUENCES[:, :, None] == SEQUENCES[:, None, :]
    for i in range(CONFIG.layers):
        layer = jax.tree.map(lambda p, i=i: p[i], params["layers"])
        x = numpy_layer(layer, x, mask)
    np.testing.assert_allclose(encode(random_params(), inputs()), x, atol=2e-5)


def test_embeddings_as_wide_as_the_encoder_are_not_projected():
    x = np.zeros((1, 4, CONFIG.width), np.float32)
    init = functools.partial(bert.Encoder(CONFIG).init, train=False)
    params = jax.eval_shape(init, jax.random.key(0), x, np.ones((1, 4), np.int32))["params"]
    assert set(params) == {"layers"}
    assert set(fresh_params()) == {"layers", "project"}


def test_scanned_and_unrolled_layers_are_the_same():
    unrolled = dataclasses.replace(CONFIG, unroll=True)
    jax.tree.map(np.testing.assert_array_equal, fresh_params(CONFIG), fresh_params(unrolled))
    params = random_params()
    np.testing.assert_allclose(encode(params, inputs()), encode(params, inputs(), config=unrolled), atol=1e-5)


def test_layers_start_from_different_weights():
    kernel = fresh_params()["layers"]["ffn_in"]["kernel"]
    assert not np.any(kernel[0] == kernel[1])


def test_a_sequence_does_not_see_padding_or_its_neighbours():
    params, x = random_params(), inputs()
    whole = encode(params, x)
    others = np.where((SEQUENCES == 2)[..., None], x, inputs(seed=2))
    np.testing.assert_allclose(encode(params, others)[0, 4:7], whole[0, 4:7], atol=1e-5)
    alone = encode(params, np.roll(x, -4, axis=1), np.asarray([[1] * 3 + [0] * 5] * 2, np.int32))
    np.testing.assert_allclose(alone[0, :3], whole[0, 4:7], atol=1e-5)
    assert np.abs(encode(params, others)[0, :4] - whole[0, :4]).min() > 0
