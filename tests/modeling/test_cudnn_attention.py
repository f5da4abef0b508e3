"""Attention on NVIDIA GPUs: where kernels are chosen, and what cuDNN is asked for; encoders with any form of attention.

No test runs cuDNN itself: JAX's own form of the same call stands in. `tests/planning/test_targets.py` compiles it.
"""

import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.ad_checkpoint import checkpoint_name

from electra_jax.config.errors import UserError
from electra_jax.modeling import attention, cudnn_attention, fused_attention, modernbert, transformer
from electra_jax.modeling.attention import Visible
from electra_jax.modeling.config import EncoderConfig
from electra_jax.modeling.modernbert import ModernBert
from electra_jax.runtime.sharding import AXES

H100 = "NVIDIA H100 80GB HBM3"
IDS = np.asarray([[1] * 5 + [2] * 4 + [3] * 3, [1] * 9 + [0] * 3], np.int32)


def network(**changes) -> EncoderConfig:
    base = dataclasses.replace(reference.small("bert", 1), width=768, heads=12, dropout=0.1, attention_dropout=0.0)
    return dataclasses.replace(base, **{"dtype": jnp.dtype("bfloat16"), **changes})


def choose(setting: str = "auto", kind: str = H100, length: int = 512, **changes) -> str:
    c = network(attention=setting, **changes)
    return fused_attention.choose(c, kind, length, c.heads)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "fused"),
        ({"kind": "NVIDIA GeForce RTX 4090"}, "fused"),
        ({"kind": "Tesla T4"}, "plain"),
        ({"kind": "AMD Instinct MI300X"}, "plain"),
        ({"setting": "plain"}, "plain"),
        ({"setting": "fused"}, "fused"),
        ({"attention_dropout": None}, "fused"),
        ({"attention_dropout": None, "length": 48}, "plain"),
        ({"attention_dropout": 0.0, "length": 48}, "fused"),
        ({"attention_dropout": None, "width": 576}, "plain"),
        ({"attention_dropout": None, "dropout": 0.0, "length": 48}, "fused"),
        ({"dtype": jnp.dtype("float32")}, "plain"),
        ({"heads": 6}, "fused"),
        ({"heads": 3}, "plain"),
        ({"width": 154, "heads": 2}, "plain"),
        ({"length": 511}, "plain"),
        ({"architecture": ModernBert(), "attention_dropout": None, "length": 48}, "fused"),  # it drops no weights
    ],
)
def test_auto_takes_the_kernels_where_they_can_be_used(changes, expected):
    assert choose(**changes) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"attention_dropout": 0.2, "length": 500},
            r"drops attention weights \(at the rate 0\.2\) of heads of 16, 32, 64, 128 and lengths of a multiple of "
            "32, not of heads of 64 and 500 tokens: set config.model.attention_dropout=0; use auto or plain",
        ),
        ({"heads": 3}, "heads of a multiple of 8, at most 128: width 768 and 3 heads make heads of 256; use"),
        ({"length": 511}, "on GPUs needs sequences of an even length, not 511; use auto or plain"),
        ({"kind": "Tesla T4"}, r"needs TPUs \(.*\) or NVIDIA GPUs: expected one of them, not Tesla T4"),
        ({"dtype": jnp.dtype("float32")}, r"expected config\.model\.dtype=bfloat16, not float32; use auto or plain"),
    ],
)
def test_fused_where_it_cannot_be_says_why(changes, message):
    with pytest.raises(UserError, match=message):
        choose("fused", **changes)


@pytest.mark.parametrize(("capability", "expected"), [("7.5", "plain"), ("8.0", "fused"), ("10.0", "fused")])
def test_a_gpu_of_this_machine_says_what_it_can_do(monkeypatch, capability, expected):
    device = types.SimpleNamespace(device_kind="NVIDIA GPU", compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    assert choose(kind="NVIDIA GPU") == expected
    if expected == "plain":
        with pytest.raises(UserError, match=r"needs compute capability 8\.0 or more; NVIDIA GPU has 7\.5; use auto"):
            choose("fused", kind="NVIDIA GPU")


def test_without_a_mesh_fused_on_a_gpu_is_plain_where_it_cannot_be(monkeypatch):
    """A network of a run with attention=fused is loaded in float32 for inference."""
    monkeypatch.setattr(fused_attention, "device_kind", lambda mesh: H100)
    mesh = jax.sharding.get_abstract_mesh()
    found = [
        fused_attention.chosen(network(attention=setting, attention_dropout=rate), length, mesh)
        for setting, rate, length in (("fused", 0.0, 512), ("fused", 0.1, 500), ("auto", 0.0, 512))
    ]
    assert found == ["fused", "plain", "plain"]


########## The call ####################################################################################################


@pytest.fixture
def stand_in(monkeypatch):
    """JAX's plain implementation in place of cuDNN's, under the same name and arguments."""
    real = jax.nn.dot_product_attention

    def call(query, key, value, mask, implementation):
        assert implementation == "cudnn"
        assert (mask.shape[1], mask.dtype) == (1, bool)
        return real(query, key, value, mask=mask, implementation="xla")

    monkeypatch.setattr(jax.nn, "dot_product_attention", call)


@functools.partial(jax.jit, static_argnums=(0, 3))
def run(c: EncoderConfig, qkv, ids, sides, is_local, weight):
    """The result, and the gradient of its sum with fixed weights."""

    def total(qkv):
        out = attention._cudnn(c, qkv, Visible(ids, *sides, is_local), None)
        return jnp.sum(out * weight), out

    gradients, out = jax.grad(total, has_aux=True)(qkv)
    return out, gradients


def check(c: EncoderConfig, ids, direction: str = "both", reach: int = 0, is_local: bool | None = None, compute=run):
    rng = np.random.default_rng(0)
    qkv = rng.standard_normal((*ids.shape, 3, c.heads, c.head_size)).astype(np.float32)
    weight = rng.standard_normal((*ids.shape, c.heads, c.head_size)).astype(np.float32)
    local = None if is_local is None else jnp.asarray(is_local)
    with jax.default_matmul_precision("highest"):
        found = compute(c, qkv, ids, (direction, reach), local, weight)
    mask = reference.mask(Visible(ids, direction), reach if is_local else None)
    reference.check_attention(found, qkv, weight, mask)


@functools.cache
def tiny(heads: int = 2, remat: str = "none") -> EncoderConfig:
    return dataclasses.replace(reference.small("bert", 1), width=8 * heads, heads=heads, remat=remat)


@pytest.mark.parametrize(
    ("remat", "direction"), [("none", "both"), ("none", "before"), ("none", "after"), ("dots", "both")]
)
def test_packing_padding_and_direction(stand_in, direction, remat):
    check(tiny(remat=remat), IDS, direction)


def test_remat_dots_keeps_rotated_queries_and_keys(stand_in):
    c = tiny(remat="dots")
    angles = jnp.asarray(modernbert.rotary(IDS.shape[1], c.head_size, 10.0))

    def attend(x):
        qkv = checkpoint_name(2 * x, "qkv")
        return attention._cudnn(c, qkv, Visible(IDS), lambda part, axis: modernbert.rotate(part, angles, axis))

    remat = jax.checkpoint(attend, policy=transformer.remat_policy(c))
    qkv = jax.ShapeDtypeStruct((*IDS.shape, 3, c.heads, c.head_size), jnp.float32)
    kept = jax.tree.leaves(jax.eval_shape(lambda x: jax.vjp(remat, x)[1], qkv))
    rows = [array.shape[2:] for array in kept if array.shape[:2] == IDS.shape]
    assert [row for row in rows if row] == [(c.heads, c.head_size)] * 3


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("reach", [2, 3])
def test_local_layers(stand_in, is_local, reach):
    check(tiny(), IDS, reach=reach, is_local=is_local)


@pytest.mark.usefixtures("stand_in")
@settings(max_examples=10)
@given(st.lists(st.integers(0, 3), min_size=10, max_size=10))
def test_any_ids_in_any_order(ids):
    check(tiny(), np.asarray([ids], np.int32))


@pytest.mark.parametrize(("axes", "heads"), [((8, 1, 1), 2), ((2, 2, 2), 2), ((2, 2, 2), 1)])
def test_results_do_not_depend_on_the_mesh(stand_in, axes, heads):
    """Devices compute their own examples and heads; of a single head all of it."""
    mesh = jax.make_mesh(axes, AXES, axis_types=(jax.sharding.AxisType.Auto,) * 3)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp")))

    def on_mesh(c, qkv, ids, sides, is_local, weight):
        def split(*arrays):
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return run.__wrapped__(c, *arrays[:2], sides, is_local, arrays[2])

        return jax.jit(split, in_shardings=rows)(qkv, ids, weight)

    check(tiny(heads), np.tile(IDS, (4, 1)), compute=on_mesh)


@pytest.fixture
def gpu(monkeypatch, stand_in):
    """Networks with attention=fused take this form."""
    monkeypatch.setattr(cudnn_attention, "is_nvidia_gpu", lambda kind: True)
    monkeypatch.setattr(cudnn_attention, "problem", lambda *_: None)


def loss(c: EncoderConfig, form: str, params):
    module = c.architecture.encoder(dataclasses.replace(c, attention=form))
    rngs = {"dropout": jax.random.key(1)}
    out = module.apply({"params": params}, reference.inputs(), reference.VISIBLE, True, rngs=rngs)
    return jnp.sum(out * jnp.cos(jnp.arange(out.size).reshape(out.shape)))


@pytest.mark.parametrize(
    ("kind", "remat", "attention_dropout"),
    [
        ("modernbert", "dots", None),
        pytest.param("modernbert", "none", None, marks=pytest.mark.slow),
        pytest.param("bert", "none", 0.0, marks=pytest.mark.slow),
        pytest.param("bert", "dots", None, marks=pytest.mark.slow),
    ],
)
def test_an_encoder_computes_the_same_in_all_forms(request, kind, remat, attention_dropout):
    """Scanned, with dropout, which all forms draw alike; cuDNN's has none on the weights of attention."""
    c = dataclasses.replace(reference.small(kind, 4), dropout=0.2, attention_dropout=attention_dropout, remat=remat)
    params = reference.random_params(reference.small(kind, 4))

    def gradient(form):
        return jax.jit(jax.value_and_grad(functools.partial(loss, c, form)))(params)

    plain, *others = gradient("plain"), gradient("fused")  # by Pallas
    if not c.attention_rate:
        request.getfixturevalue("gpu")
        others.append(gradient("fused"))
    for value, gradients in others:
        assert float(value) == pytest.approx(float(plain[0]), rel=1e-4)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5 * np.abs(b).max()), gradients, plain[1])


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_no_layer_keeps_a_mask_for_the_backward_pass(gpu, kind):
    """Stacked by the scan, the masks of ModernBERT's layers would be as large as the weights that are not kept."""
    c, length = reference.small(kind, 4), reference.SEQUENCES.shape[1]
    pullback = jax.eval_shape(
        lambda params: jax.vjp(functools.partial(loss, c, "fused"), params)[1], reference.random_params(c)
    )
    stacked = [x.shape for x in jax.tree.leaves(pullback) if x.shape[:1] == (c.layers,)]
    assert stacked
    assert not [shape for shape in stacked if shape[-2:] == (length, length)]


def test_what_remat_keeps_of_the_kernel_is_what_jax_calls_it():
    from jax._src.cudnn import fused_attention_stablehlo as jax_cudnn

    assert cudnn_attention.is_forward(jax_cudnn._dot_product_attention_fwd_p_wrapper, 1, some=2)
    assert not cudnn_attention.is_forward(jax_cudnn._dot_product_attention_bwd_p_wrapper)
