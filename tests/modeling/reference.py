"""What the tests of all encoders share: small encoders to run, and the parts of a transformer written out in NumPy."""

import collections
import dataclasses
import functools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from electra_jax.modeling.attention import Visible
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.electra import ENCODERS

_EMBEDDING = 12
SEQUENCES = np.asarray([[1] * 6 + [2] * 5 + [0], [1] * 12], np.int32)
VISIBLE = Visible(SEQUENCES)


def small(kind: str, layers: int) -> EncoderConfig:
    """Of `modernbert` the first layer and every third from there see everything; `deberta` has 4 buckets a side."""
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
        position_buckets=4,
        max_relative_positions=8,
    )


def inputs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((*SEQUENCES.shape, _EMBEDDING)).astype(np.float32)


def mask(visible: Visible) -> np.ndarray:
    """[B, 1, L, L]."""
    sequences = np.asarray(visible.sequence_ids)
    query, key = np.indices((sequences.shape[1],) * 2)
    side = {"both": True, "before": key <= query, "after": key >= query}[visible.direction]
    return (sequences[:, :, None] == sequences[:, None, :])[:, None] & side


@functools.cache
def fresh_params(config: EncoderConfig):
    init = functools.partial(ENCODERS[config.kind](config).init, train=False)
    return jax.device_get(jax.jit(init)(jax.random.key(0), inputs(), VISIBLE)["params"])


def random_params(config: EncoderConfig):
    """No parameter at 0 or 1, so that each of them counts."""
    rng = np.random.default_rng(1)
    return jax.tree.map(lambda p: p + 0.3 * rng.standard_normal(p.shape).astype(np.float32), fresh_params(config))


@functools.cache
def _compiled(config: EncoderConfig):
    return jax.jit(functools.partial(ENCODERS[config.kind](config).apply, train=False))


def encode(config: EncoderConfig, params, x: np.ndarray, visible: Visible = VISIBLE) -> np.ndarray:
    """By the encoder under test."""
    return np.asarray(_compiled(config)({"params": params}, x.astype(np.float32), visible))


def dropped(config: EncoderConfig) -> dict[tuple[int, ...], int]:
    """The shapes that dropout decides for, and how often in the program; a scanned layer is in it once."""
    module = ENCODERS[config.kind](dataclasses.replace(config, dropout=0.5))
    rngs = {"dropout": jax.random.key(0)}
    run = functools.partial(module.apply, train=True, rngs=rngs)
    program = jax.make_jaxpr(run)({"params": fresh_params(config)}, inputs(), VISIBLE)
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
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)


def gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


def attend(q_BHLK: np.ndarray, k_BHLK: np.ndarray, v_BHLK: np.ndarray, mask_B1LL: np.ndarray) -> np.ndarray:
    """softmax(q k^T / sqrt(K)) v, over what the mask shows."""
    scores = np.where(mask_B1LL, q_BHLK @ k_BHLK.swapaxes(-1, -2) / math.sqrt(q_BHLK.shape[-1]), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v_BHLK
