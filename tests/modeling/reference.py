"""What the tests of both encoders share: small encoders to run, and the parts of a transformer written out in NumPy."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from electra_jax.modeling import modernbert, transformer
from electra_jax.modeling.config import EncoderConfig

_ENCODERS = {"bert": transformer.BertEncoder, "modernbert": modernbert.ModernBertEncoder}
_EMBEDDING = 12
SEQUENCES = np.asarray([[1] * 6 + [2] * 5 + [0], [1] * 12], np.int32)


def small(kind: str, layers: int) -> EncoderConfig:
    """Of `modernbert` the first layer and every third from there see everything."""
    return EncoderConfig(
        kind=kind,
        layers=layers,
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


def inputs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*SEQUENCES.shape, _EMBEDDING)).astype(np.float32)


def same_sequence(sequences: np.ndarray = SEQUENCES) -> np.ndarray:
    """[B, 1, L, L]."""
    return (sequences[:, :, None] == sequences[:, None, :])[:, None]


def any_mask() -> np.ndarray:
    """[B, 1, L, L], of no symmetry and another one in each row; every position sees itself."""
    drawn = np.random.default_rng(3).random((len(SEQUENCES), 1, 12, 12)) < 0.5
    return drawn | np.eye(12, dtype=bool)


@functools.cache
def fresh_params(config: EncoderConfig):
    init = functools.partial(_ENCODERS[config.kind](config).init, train=False)
    return jax.jit(init)(jax.random.key(0), inputs(), same_sequence())["params"]


def random_params(config: EncoderConfig):
    """No parameter at 0 or 1, so that each of them counts."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda p: p + 0.3 * rng.standard_normal(p.shape).astype(np.float32), fresh_params(config))


@functools.cache
def _compiled(config: EncoderConfig):
    return jax.jit(functools.partial(_ENCODERS[config.kind](config).apply, train=False))


def encode(config: EncoderConfig, params, x: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """By the encoder under test; without a mask every position sees its own sequence of `SEQUENCES`."""
    mask = same_sequence() if mask is None else mask
    return np.asarray(_compiled(config)({"params": params}, x.astype(np.float32), mask))


def in_float64(params):
    return jax.tree.map(lambda p: np.asarray(p, np.float64), params)


def layer_of(params, number: int):
    return jax.tree.map(lambda p: p[number], params["layers"])


def norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    """Layer norm without scale and bias."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def attend(q_BHLK: np.ndarray, k_BHLK: np.ndarray, v_BHLK: np.ndarray, mask_B1LL: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(K)) v, over what the mask shows."""
    scores = np.where(mask_B1LL, q_BHLK @ k_BHLK.swapaxes(-1, -2) / math.sqrt(q_BHLK.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v_BHLK
