"""The checksum of an array: its definition, what it notices, and that no mesh changes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from electra_jax.runtime import checksums
from electra_jax.runtime.checksums import array_checksums, summarize

SHAPE = (3, 5)
BITS = st.lists(st.integers(0, 2**32 - 1), min_size=15, max_size=15)


@pytest.fixture(params=[0, 2**17], ids=["on the devices", "on the host"], scope="module", autouse=True)
def where(request):
    """Which arrays the host sums."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "_SMALL", request.param)
        yield


def checksum(array) -> str:
    return array_checksums({"x": jnp.asarray(array)})["x"]


def floats(bits: list[int]) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32).reshape(SHAPE)


def mix(x: int) -> int:
    """MurmurHash3's fmix32."""
    x = ((x ^ x >> 16) * 0x85EBCA6B) % 2**32
    x = ((x ^ x >> 13) * 0xC2B2AE35) % 2**32
    return x ^ x >> 16


def defined(bits: list[int]) -> str:
    """The checksum of elements with these bits, by its definition."""
    key = 0x9E3779B9
    first = [mix(word ^ mix(number ^ key)) for number, word in enumerate(bits)]
    return f"{sum(first) % 2**32:08x}{sum(mix(a ^ key) for a in first) % 2**32:08x}"


@given(BITS)
@settings(max_examples=50)
def test_it_is_what_its_definition_says(bits):
    assert checksum(floats(bits)) == defined(bits)


@given(BITS, st.integers(0, 14), st.integers(0, 31))
@settings(max_examples=100)
def test_any_flipped_bit_changes_it(bits, element, bit):
    flipped = [word ^ (1 << bit if number == element else 0) for number, word in enumerate(bits)]
    assert checksum(floats(flipped))[:8] != checksum(floats(bits))[:8]


@given(BITS, st.integers(0, 14), st.integers(0, 14))
@settings(max_examples=100)
def test_the_order_of_elements_matters(bits, i, j):
    exchanged = list(bits)
    exchanged[i], exchanged[j] = bits[j], bits[i]
    assert (checksum(floats(exchanged)) == checksum(floats(bits))) == (bits[i] == bits[j])


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bfloat16, jnp.float16, jnp.int8, jnp.uint8, jnp.bool_])
def test_elements_of_every_size(dtype):
    array = jnp.asarray([0, 1, 1, 0], dtype)
    bits = [int.from_bytes(element.tobytes(), "little") for element in np.asarray(array)]
    assert checksum(array) == defined(bits)


def test_bits_count_and_not_values():
    plus, minus = np.float32(0.0), np.float32(-0.0)
    quiet, other = (np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert checksum(plus) != checksum(minus)
    assert checksum(quiet) != checksum(other)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(("value", "finite"), [(1e38, True), (jnp.nan, False), (jnp.inf, False), (-jnp.inf, False)])
def test_one_element_that_is_not_finite_is_found(dtype, value, finite):
    mesh = jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
    array = jnp.zeros((16, 3), dtype).at[11, 1].set(value)
    sharded = jax.device_put(array, NamedSharding(mesh, P("a")))
    found = summarize({"x": sharded, "y": jnp.arange(3)})
    assert (found["x"].finite, found["y"].finite) == (finite, True)


def test_any_bits_of_bfloat16_are_summed_without_a_warning():
    """NumPy warns of those of a signalling NaN."""
    assert not summarize({"x": jnp.asarray(np.arange(2**16, dtype=np.uint16).view(jnp.bfloat16))})["x"].finite


@pytest.mark.parametrize(
    "spec", [P(), P("a"), P(None, "a"), P("b", None, "a"), P(("a", "b"), "c"), P("c", "a", "b")], ids=str
)
def test_no_mesh_changes_it(spec):
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Auto,) * 3)
    values = np.random.default_rng(0).standard_normal((4, 6, 8), np.float32)
    sharded = jax.device_put(values, NamedSharding(mesh, spec))
    assert checksum(sharded) == defined(values.reshape(-1).view(np.uint32).tolist())
