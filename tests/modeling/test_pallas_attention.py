"""The kernels, interpreted, against the plain form: values, gradients and dropout's decisions, in float32."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from electra_jax.config.errors import UserError
from electra_jax.modeling import attention, dropout, fused_attention
from electra_jax.modeling.attention import Visible
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.electra import ENCODERS
from electra_jax.runtime.sharding import AXES

WORDS = dropout.key_words(jax.random.key(5))


@functools.cache
def config(heads: int, size: int, window: int = 0) -> EncoderConfig:
    return dataclasses.replace(reference.small("bert", 1), width=heads * size, heads=heads, local_window=window)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def run(form, c, rate, direction, qkv, sequence_ids, is_local, weight):
    """The result of one form, and the gradient of its sum with `weight`."""
    compute = {"plain": attention._plain, "fused": attention._fused}[form]

    def total(qkv):
        out = compute(c, qkv, Visible(sequence_ids, direction), None, is_local, rate, WORDS)
        return jnp.sum(out * weight), out

    return jax.grad(total, has_aux=True)(qkv)


def check(sequence_ids, c: EncoderConfig, rate: float = 0.0, direction: str = "both", is_local: bool | None = None):
    """Both forms agree to rounding; with dropout only if every decision is the same."""
    sequence_ids = np.asarray(sequence_ids, np.int32)
    rng = np.random.default_rng(0)
    shape = (*sequence_ids.shape, c.heads, c.head_size)
    qkv = rng.standard_normal((*shape[:2], 3, *shape[2:])).astype(np.float32)
    given = qkv, sequence_ids, None if is_local is None else jnp.asarray(is_local), rng.standard_normal(shape)
    with jax.default_matmul_precision("highest"):
        plain, fused = (run(form, c, rate, direction, *given) for form in ("plain", "fused"))
    for expected, found in zip(plain, fused, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


PACKED = [[1] * 40 + [2] * 60 + [3] * 13 + [0] * 15, [1] * 128]


@pytest.mark.parametrize(("rate", "direction"), [(0.0, "both"), (0.3, "before"), (0.3, "after")])
def test_two_heads_in_128_lanes(rate, direction):
    check(PACKED, config(2, 64), rate, direction)


@pytest.mark.parametrize(("heads", "size"), [(4, 64), (2, 128), (3, 16)])
def test_heads_of_all_sizes(heads, size):
    check(PACKED, config(heads, size), 0.2)


@pytest.mark.parametrize("length", [1, 130, 300])
def test_lengths_that_are_no_multiple_of_a_block(length):
    """Above 128 positions, pairs of keys share a hash; above 256, so do the keys of two pairs of blocks."""
    check([[1] * (length // 2) + [2] * (length - length // 2)], config(2, 64), 0.3)


def test_long_sequences_take_keys_in_blocks():
    check([[1] * 700 + [2] * 400], config(2, 64), 0.2)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(("length", "window"), [(600, 128), (300, 130), (128, 600)])
def test_local_windows(length, window, is_local):
    """A window reaches half of it to each side; a layer may be of either kind at run time."""
    check([[1] * 70 + [2] * (length - 80) + [0] * 10], config(2, 64, window), is_local=is_local)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=20, max_size=20), min_size=1, max_size=1),
    st.sampled_from(["both", "before", "after"]),
)
def test_any_ids_in_any_order(sequence_ids, direction):
    check(sequence_ids, config(2, 64), 0.0, direction)


@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2)])
def test_results_do_not_depend_on_the_mesh(mesh):
    """Devices compute their own examples and heads, and dropout counts both over the whole batch."""
    c = config(4, 64)
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((8, 16, 3, 4, 64)).astype(np.float32)
    given = qkv, np.ones((8, 16), np.int32), None, rng.standard_normal((8, 16, 4, 64)).astype(np.float32)
    devices = jax.make_mesh(mesh, AXES, axis_types=(jax.sharding.AxisType.Auto,) * 3)

    def on_mesh(*args):
        with jax.sharding.use_abstract_mesh(devices.abstract_mesh):
            return run.__wrapped__("fused", c, 0.3, "both", *args)

    rows = jax.sharding.NamedSharding(devices, jax.sharding.PartitionSpec(("data", "fsdp")))
    split = jax.jit(on_mesh, in_shardings=(rows, rows, None, rows))(*given)
    for expected, found in zip(run("plain", c, 0.3, "both", *given), split, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * np.abs(expected).max())


@pytest.mark.parametrize("kind", [pytest.param("bert", marks=pytest.mark.slow), "modernbert"])
def test_an_encoder_computes_the_same_in_both_forms(kind):
    """Scanned, with dropout, the weights computed again for the backward pass."""
    base = dataclasses.replace(reference.small(kind, 4), dropout=0.2, remat="dots")
    params, x = reference.random_params(reference.small(kind, 4)), reference.inputs()

    def loss(form, params):
        module = ENCODERS[kind](dataclasses.replace(base, attention=form))
        out = module.apply({"params": params}, x, reference.VISIBLE, True, rngs={"dropout": jax.random.key(1)})
        return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape)))

    plain, fused = (jax.jit(jax.value_and_grad(functools.partial(loss, form)))(params) for form in ("plain", "fused"))
    assert float(fused[0]) == pytest.approx(float(plain[0]), rel=1e-4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max()), fused[1], plain[1])


def choose(setting: str, kind: str, length: int, heads: int = 12) -> str:
    network = dataclasses.replace(config(heads, 64), attention=setting, dropout=0.1)
    return fused_attention.choose(network, kind, length, heads)


@pytest.mark.parametrize(
    ("setting", "kind", "length", "expected"),
    [
        ("auto", "cpu", 512, "plain"),
        ("auto", "TPU v3", 512, "fused"),
        ("auto", "TPU v3", 4096, "plain"),
        ("auto", "TPU v4", 4096, "fused"),
        ("plain", "TPU v4", 512, "plain"),
        ("fused", "TPU v5 lite", 8192, "fused"),
    ],
)
def test_auto_takes_the_kernels_where_they_fit(setting, kind, length, expected):
    assert choose(setting, kind, length) == expected


def test_lanes_that_cannot_be_read_apart_count():
    """A width of 320 has no groups of 128 lanes: a program reads all of it, three registers wide."""
    assert choose("auto", "TPU v3", 341, heads=5) == "fused"
    assert choose("auto", "TPU v3", 342, heads=5) == "plain"


def test_the_limit_is_that_of_the_heads_on_a_device():
    network = config(10, 64)
    assert fused_attention.choose(network, "TPU v3", 342, 5) == "plain"
    assert fused_attention.choose(network, "TPU v3", 342, 10) == "fused"


def test_fused_where_it_cannot_be_says_why():
    with pytest.raises(
        UserError, match=r"attention=fused needs TPUs .* or NVIDIA GPUs: .*, not cpu; use auto or plain"
    ):
        choose("fused", "cpu", 512)
    with pytest.raises(UserError, match="takes sequences of up to 2048 tokens at width 768 on TPU v3, not 4096"):
        choose("fused", "TPU v3", 4096)
