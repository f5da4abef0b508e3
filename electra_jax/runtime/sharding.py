"""The mesh, and what lies where on it: which part of the batch, of a parameter and of its moments each device has.

Three axes. `data` splits the batch. `fsdp` splits the batch and, at rest, the parameters: each device gathers a layer's
weights when it computes that layer. `tensor` splits the computation itself: heads, inner width of the FFN, vocabulary.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from electra_jax.config.errors import UserError
from electra_jax.config.settings import Check, setting

Tree = TypeVar("Tree")
AXES = ("data", "fsdp", "tensor")
BATCH = ("data", "fsdp")  # the axes that split examples

# Parameters by the end of their path, and the axis of each dimension; the first line with as many dimensions holds.
# Moments have the paths of their parameters at their end, and so lie where these lie. The first dimension of a layer's
# parameters counts the layers. What is in no line is small, and everywhere.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("embeddings/word", ("tensor", "fsdp")),  # [V, E]
    ("attention/qkv/kernel", (None, "fsdp", None, "tensor", None)),  # [layers, D, 3, H, K]
    ("attention/qkv/bias", (None, None, "tensor", None)),
    ("attention/out/kernel", (None, "tensor", None, "fsdp")),  # [layers, H, K, D]
    ("ffn_in/kernel", (None, "fsdp", "tensor")),  # [layers, D, F]
    ("ffn_in/kernel", (None, "fsdp", None, "tensor")),  # [layers, D, 2, F], with a gate
    ("ffn_in/bias", (None, "tensor")),
    ("ffn_out/kernel", (None, "tensor", "fsdp")),  # [layers, F, D]
    ("(generator|mlm)_head/bias", ("tensor",)),  # [V]
    ("(dense|project)/kernel", ("fsdp", None)),
)


_SIZE = Check(lambda value: value > 0 or value == -1, "more than 0, or -1")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis of the mesh; -1 takes those that the other axes leave."""

    data: int = setting(-1, "Devices that split the batch.", _SIZE, resumable=True)
    fsdp: int = setting(1, "Devices that split the batch, and parameters and moments too.", _SIZE, resumable=True)
    tensor: int = setting(1, "Devices that split heads, inner widths and the vocabulary.", _SIZE, resumable=True)


ONE_DEVICE = MeshConfig(data=1)


def make_mesh(
    settings: MeshConfig, batch_size: int, grad_accum_steps: int = 1, devices: Sequence[Any] | None = None
) -> Mesh:
    """The devices along the axes `data`, `fsdp` and `tensor`.

    Several slices of TPUs, joined by the slower data-centre network, lie along `data`: over it goes a gradient a step.

    Args:
      settings: `config.mesh`, the size of each axis; -1, at most once, takes what is left.
      batch_size: to be split over `data` and `fsdp`.
      grad_accum_steps: parts of the batch that are computed one after another.
      devices: all there are, by default.

    Raises:
      UserError: the sizes do not multiply to the number of devices, or the batch cannot be split evenly.
    """
    devices = jax.devices() if devices is None else devices
    sizes = _sizes(settings, len(devices))
    shares = sizes[0] * sizes[1] * grad_accum_steps
    if batch_size % shares:
        below = batch_size // shares * shares
        nearest = " or ".join(str(n) for n in (below, below + shares) if n)
        turns = f", {grad_accum_steps} times" if grad_accum_steps > 1 else ""
        raise UserError(
            f"config.batch_size={batch_size} cannot be split over {sizes[0] * sizes[1]} devices{turns}; use {nearest}"
        )
    slices = len({getattr(device, "slice_index", 0) or 0 for device in devices})
    if slices == 1:
        return jax.make_mesh(sizes, AXES, axis_types=(AxisType.Auto,) * 3, devices=devices)
    if sizes[0] % slices:
        raise UserError(f"config.mesh.data={sizes[0]} cannot be split over {slices} slices; use a multiple of {slices}")
    within = (sizes[0] // slices, *sizes[1:])
    return Mesh(
        mesh_utils.create_hybrid_device_mesh(within, (slices, 1, 1), devices), AXES, axis_types=(AxisType.Auto,) * 3
    )


def check_divisible(heads: int, ffn: int, mesh: Mesh) -> None:
    """Raises UserError where an encoder of so many heads and such an inner width cannot be split along `tensor`."""
    tensor = mesh.shape["tensor"]
    for name, size in {"heads": heads, "ffn": ffn}.items():
        if size % tensor:
            raise UserError(
                f"config.mesh.tensor={tensor} does not divide config.model.{name}={size}; give one that does"
            )


def _sizes(settings: MeshConfig, devices: int) -> tuple[int, ...]:
    sizes = [getattr(settings, axis) for axis in AXES]
    given = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and devices % given == 0:
        sizes[sizes.index(-1)] = devices // given
    if math.prod(sizes) != devices:
        asked = " x ".join(f"config.mesh.{axis}={getattr(settings, axis)}" for axis in AXES)
        raise UserError(f"{asked} is no way to place {devices} devices; give sizes that multiply to it, or one -1")
    return tuple(sizes)


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """For [B, ...]."""
    return NamedSharding(mesh, P(BATCH))


def of_state(mesh: Mesh, state: Any) -> Any:
    """The shapes and types of `state`, arrays or their shapes, with where each lies by `RULES`.

    A dimension that an axis does not divide stays whole on it: a generator has fewer heads than its encoder.
    """

    def find(path: Any, leaf: Any) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        for pattern, axes in RULES:
            if len(axes) == leaf.ndim and re.search(f"(^|/|_)({pattern})$", name):
                fitting = (
                    axis if axis is None or size % mesh.shape[axis] == 0 else None
                    for axis, size in zip(axes, leaf.shape, strict=True)
                )
                return NamedSharding(mesh, P(*fitting))
        return replicated(mesh)

    return jax.tree_util.tree_map_with_path(
        lambda path, x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=find(path, x)), state
    )


def of(placed: Any) -> Any:
    """The tree of shardings of what `of_state` made, or of arrays."""
    return jax.tree.map(lambda x: x.sharding, placed)


def place(tree: Any, shardings: Any) -> Any:
    """A tree of numpy arrays that all processes have, on the devices."""
    return jax.tree.map(lambda value, there: _put(value.shape, there, lambda index: value[index]), tree, shardings)


@functools.cache  # asked for in every step
def rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """The examples of a batch that the devices of this process have, by their numbers."""
    places = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in places.values() if index is not None]))


def put(batch: Tree, mesh: Mesh, batch_size: int) -> Tree:
    """The `rows` of a batch, which this process has read, as a batch on the devices of all processes."""
    mine, there = rows(mesh, batch_size), batch_sharding(mesh)

    def split(value: np.ndarray) -> jax.Array:
        numbers = np.arange(batch_size)
        shape = (batch_size, *value.shape[1:])
        return _put(shape, there, lambda index: value[np.searchsorted(mine, numbers[index[0]])])

    return cast(Tree, jax.tree.map(split, batch))


def _put(shape: tuple[int, ...], there: NamedSharding, part: Callable[[Any], np.ndarray]) -> jax.Array:
    """An array of which each device of this process gets `part(its index)`."""
    places = there.addressable_devices_indices_map(shape)
    parts = [jax.device_put(part(index), device) for device, index in places.items()]
    return jax.make_array_from_single_device_arrays(shape, there, parts)
