"""The kernels, interpreted, against the definition: values, gradients and dropout's decisions, in float32.

Encoders with them: test_cudnn_attention.py.
"""

import dataclasses
import functools

import kernel_checks
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import config

from electra_jax.config.errors import UserError
from electra_jax.modeling import fused_attention, pallas_attention

check = functools.partial(kernel_checks.check, pallas_attention)
PACKED = [[1] * 40 + [2] * 60 + [3] * 13 + [0] * 15, [1] * 128]


@pytest.mark.parametrize(("heads", "size"), [(2, 128), (3, 16)])
def test_a_head_in_128_lanes_and_three_in_fewer(heads, size):
    """Two heads in 128 lanes: the other tests."""
    check(PACKED, config(heads, size), 0.2)


@pytest.mark.parametrize(("length", "direction"), [(1, "both"), (130, "before"), (300, "after")])
def test_lengths_that_are_no_multiple_of_a_block(length, direction):
    """Above 128 positions, pairs of keys share a hash; above 256, so do the keys of two pairs of blocks."""
    check([[1] * (length // 2) + [2] * (length - length // 2)], config(2, 64), 0.3, direction)


def test_long_sequences_take_keys_in_blocks():
    check([[1] * 700 + [2] * 330], config(2, 64), 0.2)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize(("length", "window"), [(600, 130), (128, 600)])
def test_local_windows(length, window, is_local):
    """A window reaches half of it to each side; a layer may be of either kind at run time."""
    check([[1] * 70 + [2] * (length - 80) + [0] * 10], config(2, 64), reach=window // 2, is_local=is_local)


@settings(max_examples=10)
@given(st.lists(st.integers(0, 3), min_size=20, max_size=20))
def test_any_ids_in_any_order(sequence_ids):
    check([sequence_ids], config(2, 64))


@pytest.mark.parametrize("mesh", [(8, 1, 1), (2, 2, 2)])
def test_results_do_not_depend_on_the_mesh(mesh):
    """Devices compute their own examples and heads, and dropout counts both over the whole batch."""
    check(np.ones((8, 16)), config(4, 64), 0.3, compute=kernel_checks.on_mesh(mesh))


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
