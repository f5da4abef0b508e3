"""What the tests of all encoders share: small encoders to run, and the parts of a transformer written out in NumPy."""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rounding
from jax.extend.core import ClosedJaxpr, Jaxpr

from electra_jax.modeling.attention import Visible
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.deberta import DebertaSettings
from electra_jax.modeling.model_config import ARCHITECTURES
from electra_jax.modeling.modernbert import ModernBertSettings

_EMBEDDING = 12
_OWN = {"modernbert": ModernBertSettings(local_window=4, global_every=3), "deberta": DebertaSettings(4, 8)}
SEQUENCES = np.asarray([[1] * 6 + [2] * 5 + [0], [1] * 12], np.int32)
VISIBLE = Visible(SEQUENCES)


def small(kind: str, layers: int) -> EncoderConfig:
    """Of `modernbert` the first layer and every third from there see everything; `deberta` has 4 buckets a side."""
    return EncoderConfig(
        ARCHITECTURES[kind],
        layers=layers,
        width=16,
        ffn=24,
        heads=2,
        init_stddev=0.3,
        dropout=0.0,
        dtype=jnp.float32,
        own=_OWN.get(kind),
    )


def inputs() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((*SEQUENCES.shape, _EMBEDDING)).astype(np.float32)


def mask(visible: Visible, reach: int | None = None) -> np.ndarray:
    """[B, 1, L, L]; of local attention with the positions that are seen to each side."""
    sequences = np.asarray(visible.sequence_ids)
    query, key = np.indices((sequences.shape[1],) * 2)
    side = {"both": True, "before": key <= query, "after": key >= query}[visible.direction]
    near = True if reach is None else abs(key - query) <= reach
    return (sequences[:, :, None] == sequences[:, None, :])[:, None] & side & near


def _init(config: EncoderConfig):
    return functools.partial(config.architecture.encoder(config).init, train=False)


@functools.cache
def shapes(config: EncoderConfig):
    return jax.eval_shape(_init(config), jax.random.key(0), inputs(), VISIBLE)["params"]


@functools.cache
def fresh_params(config: EncoderConfig):
    """Compiling this takes seconds."""
    return jax.device_get(jax.jit(_init(config))(jax.random.key(0), inputs(), VISIBLE)["params"])


def random_params(config: EncoderConfig):
    return random_like(shapes(config))


def random_like(shapes):
    """No parameter at 0 or 1, so that each of them counts."""
    rng = np.random.default_rng(1)

    def draw(path, p):
        return (0.4 * rng.standard_normal(p.shape) + (path[-1].key == "scale")).astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


@functools.cache
def _compiled(config: EncoderConfig):
    return jax.jit(functools.partial(config.architecture.encoder(config).apply, train=False))


def encode(config: EncoderConfig, params, x: np.ndarray, visible: Visible = VISIBLE) -> np.ndarray:
    """By the encoder under test."""
    return np.asarray(_compiled(config)({"params": params}, x.astype(np.float32), visible))


def dropped(config: EncoderConfig) -> dict[tuple[int, ...], int]:
    """The shapes that dropout decides for, and how often in the program; a scanned layer is in it once."""
    module = config.architecture.encoder(dataclasses.replace(config, dropout=0.5))
    rngs = {"dropout": jax.random.key(0)}
    run = functools.partial(module.apply, train=True, rngs=rngs)
    program = jax.make_jaxpr(run)({"params": shapes(config)}, inputs(), VISIBLE)
    return dict(collections.Counter(_drawn(program.jaxpr)))


def _drawn(jaxpr: Jaxpr) -> Iterator[tuple[int, ...]]:
    for equation in jaxpr.eqns:
        # Tracing a scan leaves equations behind that return what they would keep, and that nothing uses.
        is_rule = equation.primitive.name == "custom_vjp_call" and len(equation.outvars) == 1
        if is_rule and equation.params["call_jaxpr"].jaxpr.debug_info.func_name == "drop":
            yield equation.outvars[0].aval.shape
        for part in jax.tree.leaves(list(equation.params.values())):
            if isinstance(part, Jaxpr | ClosedJaxpr):
                yield from _drawn(part.jaxpr if isinstance(part, ClosedJaxpr) else part)


def in_float64(params):
    return jax.tree.map(lambda p: np.asarray(p, np.float64), params)


def layer_of(params, number: int):
    return jax.tree.map(lambda p: p[number], params["layers"])


def norm(x: np.ndarray, epsilon: float) -> np.ndarray:
    """Layer norm without scale and bias."""
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def attend(
    q_BHLK: np.ndarray, k_BHLK: np.ndarray, v_BHLK: np.ndarray, mask_B1LL: np.ndarray, bias: Any = 0, drop: Any = 1
) -> np.ndarray:
    """softmax(q k^T / sqrt(K) + bias) v, over what the mask shows; `drop` multiplies the weights."""
    return _weights(q_BHLK, k_BHLK, mask_B1LL, bias) * drop @ v_BHLK


def _weights(q: np.ndarray, k: np.ndarray, mask: np.ndarray, bias: Any) -> np.ndarray:
    scores = np.where(mask, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]) + bias, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def attention_gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray, bias: Any, drop: Any, d_out: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Of the sum of `attend` x `d_out`, with respect to queries, keys, values and the bias."""
    weights, root = _weights(q, k, mask, bias), math.sqrt(q.shape[-1])
    d_weights = d_out @ v.swapaxes(-1, -2) * drop
    d_scores = weights * (d_weights - (d_weights * weights).sum(-1, keepdims=True))
    d_v = (weights * drop).swapaxes(-1, -2) @ d_out
    return d_scores @ k / root, d_scores.swapaxes(-1, -2) @ q / root, d_v, d_scores


def check_attention(
    found: Any, qkv_BL3HK: np.ndarray, d_out_BLHK: np.ndarray, mask_B1LL: np.ndarray, drop: Any = 1
) -> None:
    """That `found`, the result and the gradient of its sum with `d_out`, is what float32 makes of the definition."""

    def outputs(given: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        qkv, d_out = in_float64(given)
        q, k, v = qkv.transpose(2, 0, 3, 1, 4)
        gradients = attention_gradients(q, k, v, mask_B1LL, 0, drop, d_out.swapaxes(1, 2))[:3]
        out = attend(q, k, v, mask_B1LL, drop=drop).swapaxes(1, 2)
        return out, np.stack(gradients).transpose(1, 3, 0, 2, 4)

    given = qkv_BL3HK, d_out_BLHK
    bounds = rounding.bounds(outputs, given, longest=max(qkv_BL3HK.shape[1], qkv_BL3HK.shape[-1]), draws=1)
    for value, expected, bound in zip(found, outputs(given), bounds, strict=True):
        np.testing.assert_allclose(value, expected, rtol=0, atol=bound)
