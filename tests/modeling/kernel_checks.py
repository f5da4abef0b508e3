"""Pallas' kernels for TPUs and GPUs, interpreted, against the definition of attention, in float32."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from electra_jax.modeling import attention, dropout, fused_attention
from electra_jax.modeling.attention import Visible
from electra_jax.modeling.config import EncoderConfig
from electra_jax.runtime.sharding import AXES

WORDS = dropout.key_words(jax.random.key(5))


@functools.cache
def config(heads: int, size: int) -> EncoderConfig:
    return dataclasses.replace(reference.small("bert", 1), width=heads * size, heads=heads)


def gradient(kernels, c: EncoderConfig, rate: float, sides: tuple[str, int], qkv, sequence_ids, is_local, weight):
    """The result, and the gradient of its sum with `weight`, by a module of kernels.

    `sides` are the direction and the reach of `Visible`.
    """

    def total(qkv):
        out = attention._fused(c, qkv, Visible(sequence_ids, *sides, is_local), None, rate, WORDS)
        return jnp.sum(out * weight), out

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused_attention, "_kernels", lambda form: kernels)
        gradients, out = jax.grad(total, has_aux=True)(qkv)
    return out, gradients


run = functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))(gradient)


def on_mesh(shape: tuple[int, ...]):
    """`run`, with the examples on the devices of a mesh."""
    devices = jax.make_mesh(shape, AXES, axis_types=(jax.sharding.AxisType.Auto,) * 3)
    rows = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec(("data", "fsdp")))

    def compute(kernels, c, rate, sides, qkv, sequence_ids, is_local, weight):
        def split(*arrays):
            with jax.sharding.use_abstract_mesh(devices.abstract_mesh):
                return gradient(kernels, c, rate, sides, *arrays[:2], is_local, arrays[2])

        return jax.jit(split, in_shardings=rows)(qkv, sequence_ids, weight)

    return compute


def check(
    kernels,
    sequence_ids,
    c: EncoderConfig,
    rate: float = 0.0,
    direction: str = "both",
    reach: int = 0,
    is_local: bool | None = None,
    compute=run,
):
    """With dropout only if every decision is that of `keep_weights`."""
    sequence_ids = np.asarray(sequence_ids, np.int32)
    rng = np.random.default_rng(0)
    shape = (*sequence_ids.shape, c.heads, c.head_size)
    qkv = rng.standard_normal((*shape[:2], 3, *shape[2:])).astype(np.float32)
    weight = rng.standard_normal(shape).astype(np.float32)
    local = None if is_local is None else jnp.asarray(is_local)
    with jax.default_matmul_precision("highest"):
        found = compute(kernels, c, rate, (direction, reach), qkv, sequence_ids, local, weight)
    mask = reference.mask(Visible(sequence_ids, direction), reach if is_local else None)
    reference.check_attention(found, qkv, weight, mask, _drop(shape, rate))


def _drop(shape: tuple[int, ...], rate: float):
    """What dropout multiplies the weights by."""
    rows, length, heads, _ = shape
    return np.asarray(_keep_weights(WORDS, (rows, heads, length, length), rate)) / (1 - rate) if rate else 1


_keep_weights = functools.partial(jax.jit, static_argnums=(1, 2))(dropout.keep_weights)
