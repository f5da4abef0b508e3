"""Checksums of arrays, the same on any mesh and for any number of processes.

A CRC of an array's bytes needs them in order and in one place, but a process has only the shards on its own devices,
and a checkpoint may be restored on another mesh than it was saved on. So the checksum is a sum over the elements, which
every device computes for its own shard. With w the bits of element i as an unsigned integer, i its row-major index, and
all arithmetic modulo 2**32:

    a(i) = mix(w ^ mix(i ^ KEY))    b(i) = mix(a(i) ^ KEY)    checksum = (sum of a, sum of b)

`mix` is a bijection of 32-bit numbers, so damage to a single element always changes the sum of a. Damage to several
elements leaves both sums unchanged with probability 2**-64, as for any 64-bit checksum (in arrays of more than 2**32
elements, the indices i repeat). The checksum detects accidents, not forgery.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

# The finalizer of MurmurHash3 (fmix32, A. Appleby), and 2**32 divided by the golden ratio.
_FACTORS = (np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35))
_KEY = np.uint32(0x9E3779B9)
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}  # by the bytes of an element
# Maximum number of elements of a shard that the host sums: compiling a program for its shape would take longer.
_SMALL = 2**17


class Summary(NamedTuple):
    """Checksum and finiteness of an array.

    Attributes:
      checksum: 16 hexadecimal digits.
      finite: whether no element is NaN or infinite.
    """

    checksum: str
    finite: bool


def summarize(arrays: Mapping[str, jax.Array]) -> dict[str, Summary]:
    """Computes the checksum of each array and whether it is finite; the result is the same in all processes.

    The devices compute both in one pass, without extra memory; the host does so for small arrays. The result is on the
    host, so this waits for the arrays. If several processes share an array, all of them must call this with the same
    names.

    Args:
      arrays: arrays of any shape and sharding, with elements of 1, 2 or 4 bytes.
    """
    sums = np.zeros((len(arrays), 3), np.uint32)
    parts = [list(_parts(array)) for array in arrays.values()]
    # The devices start on all the large ones before any result is awaited.
    large = [[_sums_on_device(*part) for part in of_array if part.values.size > _SMALL] for of_array in parts]
    small = jax.device_get([[part for part in of_array if part.values.size <= _SMALL] for of_array in parts])
    for row, (on_device, on_host) in enumerate(zip(large, small, strict=True)):
        for of_part in (*jax.device_get(on_device), *(_sums(np, *part) for part in on_host)):
            # The sums wrap around, which is the modulo of the definition.
            sums[row] += np.stack(of_part)
    shared = [row for row, array in enumerate(arrays.values()) if not array.is_fully_addressable]
    if shared:
        # One collective, and no other program runs meanwhile. A jitted sum of each sharded array hung over Gloo, where
        # the processes started its many collectives in different orders.
        everywhere = np.asarray(multihost_utils.process_allgather(sums[shared]))
        sums[shared] = everywhere.sum(axis=0, dtype=np.uint32)
    return {
        name: Summary(f"{first:08x}{second:08x}", not_finite == 0)
        for name, (first, second, not_finite) in zip(arrays, sums.tolist(), strict=True)
    }


def array_checksums(arrays: Mapping[str, jax.Array]) -> dict[str, str]:
    """Returns the checksums of `summarize`, by name."""
    return {name: summary.checksum for name, summary in summarize(arrays).items()}


class _Part(NamedTuple):
    """A shard: its elements, its first index along each axis, and the strides of the whole array."""

    values: Any
    starts: tuple[np.uint32, ...]
    strides: tuple[np.uint32, ...]


def _parts(array: jax.Array) -> Iterator[_Part]:
    """Yields the shards that this process sums; replicas of a shard are summed once."""
    # Modulo 2**32 as the index itself; NumPy refuses to convert a larger number.
    strides = [np.uint32(math.prod(array.shape[axis + 1 :]) % 2**32) for axis in range(array.ndim)]
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            starts = [np.uint32((along.start or 0) % 2**32) for along in shard.index]
            yield _Part(shard.data, tuple(starts), tuple(strides))


def _sums(xp: Any, x: Any, starts: Sequence[Any], strides: Sequence[Any]) -> tuple[Any, ...]:
    """Computes a checksum's two sums and the number of non-finite elements, with NumPy or `jax.numpy`."""
    # NumPy warns where scalars overflow, but not where arrays do.
    x = xp.atleast_1d(x)
    first = _mix(_bits(x) ^ _mix(_numbers(xp, x.shape, starts, strides) ^ _KEY))
    # NumPy warns of signalling NaNs in bfloat16.
    with np.errstate(invalid="ignore"):
        finite = xp.isfinite(x)
    operands = (first, _mix(first ^ _KEY), (~finite).astype(np.uint32))
    if xp is np:
        return tuple(np.sum(operand, dtype=np.uint32) for operand in operands)
    # One reduction for all three sums: separate ones take ten times as long on a CPU.
    zeros = (np.uint32(0),) * 3
    return tuple(jax.lax.reduce(operands, zeros, lambda a, b: tuple(map(jnp.add, a, b)), tuple(range(x.ndim))))


@jax.jit
def _sums_on_device(x: jax.Array, starts: Sequence[jax.Array], strides: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    return _sums(jnp, x, starts, strides)


def _mix(x: Any) -> Any:
    x = (x ^ (x >> np.uint32(16))) * _FACTORS[0]
    x = (x ^ (x >> np.uint32(13))) * _FACTORS[1]
    return x ^ (x >> np.uint32(16))


def _bits(x: Any) -> Any:
    if x.dtype == np.bool_:
        return x.astype(np.uint32)
    return x.view(_UNSIGNED[x.dtype.itemsize]).astype(np.uint32)


def _numbers(xp: Any, shape: tuple[int, ...], starts: Sequence[Any], strides: Sequence[Any]) -> Any:
    """Computes the row-major index in the whole array of each element of a shard, modulo 2**32."""
    numbers = xp.zeros(shape, np.uint32)
    for axis, (start, stride) in enumerate(zip(starts, strides, strict=True)):
        along = (xp.arange(shape[axis], dtype=np.uint32) + start) * stride
        numbers += along.reshape(*(1,) * axis, -1, *(1,) * (len(shape) - axis - 1))
    return numbers
