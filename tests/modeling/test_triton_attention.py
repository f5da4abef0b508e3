"""The kernels for NVIDIA GPUs, interpreted, against the definition: values, gradients and dropout's decisions.

Where they are chosen: test_cudnn_attention.py. `tests/planning/test_targets.py` compiles them.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import kernel_checks
import numpy as np
import pytest
import reference
from flax import linen as nn
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import config

from electra_jax.modeling import attention, triton_attention
from electra_jax.modeling.attention import Visible
from electra_jax.runtime.sharding import AXES

check = functools.partial(kernel_checks.check, triton_attention)


@pytest.mark.parametrize(("length", "direction"), [(96, "both"), (320, "before"), (384, "after")])
def test_lengths_and_directions(length, direction):
    """Above 128 positions, pairs of keys share a hash; above 256, so do the keys of two pairs of blocks."""
    third = length // 3
    check([[1] * third + [2] * (length - third - 9) + [0] * 9, [1] * length], config(2, 16), 0.3, direction)


@settings(max_examples=10)
@given(st.lists(st.integers(0, 3), min_size=32, max_size=32))
def test_any_ids_in_any_order(sequence_ids):
    check([sequence_ids], config(2, 16), 0.1)


def test_results_do_not_depend_on_the_mesh():
    """Devices compute their own examples and heads, and dropout counts both over the whole batch."""
    check(np.ones((8, 32)), config(4, 16), 0.3, compute=kernel_checks.on_mesh((2, 2, 2)))


def test_a_train_step_on_a_gpu_has_them():
    """Pallas translates both for a GPU, which this machine need not have."""
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=None, platform="cuda")
    mesh = jax.sharding.AbstractMesh((1, 1, 1), AXES, (jax.sharding.AxisType.Auto,) * 3, abstract_device=device)
    c = dataclasses.replace(reference.small("bert", 1), width=32, dropout=0.1, dtype=jnp.dtype("bfloat16"))
    layer = attention.SelfAttention(c, True, nn.initializers.zeros, nn.initializers.zeros, train=True)
    x_BLD, ids = jax.ShapeDtypeStruct((2, 32, c.width), c.dtype), jnp.ones((2, 32), jnp.int32)
    params = jax.eval_shape(layer.init, jax.random.key(0), x_BLD, Visible(ids))

    def loss(params, x_BLD):
        return jnp.sum(layer.apply(params, x_BLD, Visible(ids), rngs={"dropout": jax.random.key(1)}))

    with jax.sharding.use_abstract_mesh(mesh):
        text = jax.jit(jax.grad(loss)).trace(params, x_BLD).lower(lowering_platforms=("cuda",)).as_text()
    assert all(f'name = "{name}"' in text for name in ("attention", "attention_backward"))
