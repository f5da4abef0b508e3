"""The device mesh, and how the batch, the parameters and their moments are sharded over it.

The mesh has three axes. `data` is data parallelism: it shards the batch, and parameters and moments between steps. Each
device updates its own shard, and gathers the parameters once per step. `fsdp` (FSDP) shards the same arrays, but each
device gathers a layer's weights when it computes that layer. `tensor` is tensor parallelism: it shards attention heads,
feed-forward width and vocabulary.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
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
BATCH = ("data", "fsdp")  # the axes that shard the examples

# Suffix of a parameter's path, and the mesh axis of each dimension. The first rule with the right number of dimensions
# applies. The path of a moment ends in that of its parameter, so it is sharded in the same way. The first dimension of
# an encoder's parameters indexes the layers. Parameters without a rule are small, and not sharded over these two axes.
# `_split_over_data` adds the axis `data`.
RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("embeddings/word", ("tensor", "fsdp")),  # [V, E]
    ("attention/qkv/kernel", (None, "fsdp", None, "tensor", None)),  # [layers, D, 3, H, K]
    ("attention/qkv/bias", (None, None, "tensor", None)),
    ("attention/out/kernel", (None, "tensor", None, "fsdp")),  # [layers, H, K, D]
    ("ffn_in/kernel", (None, "fsdp", "tensor")),  # [layers, D, F]
    ("ffn_in/kernel", (None, "fsdp", None, "tensor")),  # [layers, D, 2, F], with a gate
    ("ffn_in/bias", (None, "tensor")),
    ("ffn_out/kernel", (None, "tensor", "fsdp")),  # [layers, F, D]
    ("relative", (None, "fsdp")),  # [2 x buckets, D], of DeBERTa
    ("(generator|mlm)_head/bias", ("tensor",)),  # [V]
    ("(dense|project)/kernel", ("fsdp", None)),
)
_LAYERS = "layers/"  # in the path of parameters whose first dimension indexes the layers
_VECTORS = ("bias", "scale")  # path suffixes of parameters that are too small to be worth a collective

_SIZE = Check(lambda value: value > 0 or value == -1, "more than 0, or -1")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Number of devices along each mesh axis; one may be -1: all remaining devices."""

    data: int = setting(
        -1, "Data parallelism: devices that shard the batch and the optimizer update.", _SIZE, resumable=True
    )
    fsdp: int = setting(
        1,
        "Fully sharded data parallelism (FSDP): devices that shard the batch and the parameters; a layer's "
        "parameters are gathered when it runs.",
        _SIZE,
        resumable=True,
    )
    tensor: int = setting(
        1,
        "Tensor parallelism: devices that shard attention heads, feed-forward width and vocabulary.",
        _SIZE,
        resumable=True,
    )


ONE_DEVICE = MeshConfig(data=1)


def make_mesh(
    settings: MeshConfig,
    batch_size: int,
    grad_accum_steps: int = 1,
    devices: Sequence[Any] | None = None,
    others: Sequence[int] = (),
) -> Mesh:
    """Makes the mesh with the axes `data`, `fsdp` and `tensor`.

    Several TPU slices lie along `data`: the slower network between them then carries only gradients and the parameters
    that are gathered once per step. So do machines with GPUs, if their number divides `data`.

    Args:
      settings: the size of each axis, `config.mesh`.
      batch_size: the global batch size, sharded over `data` and `fsdp`.
      grad_accum_steps: the number of micro-batches of gradient accumulation.
      devices: the devices; by default all of them.
      others: batch sizes of phases, which must be split evenly too.

    Raises:
      UserError: the sizes do not multiply to the number of devices, or the batch cannot be split evenly.
    """
    devices = jax.devices() if devices is None else devices
    sizes = _sizes(settings, len(devices))
    _check_batch_size("config.batch_size", batch_size, sizes[0] * sizes[1], grad_accum_steps)
    for each in others:
        _check_batch_size("config.phases: batch_size", each, sizes[0] * sizes[1], grad_accum_steps)
    slices = len({getattr(device, "slice_index", 0) or 0 for device in devices})
    if sizes[0] % slices and devices[0].platform == "gpu":
        grid = np.reshape(sorted(devices, key=lambda device: device.id), sizes)
    elif sizes[0] % slices:
        raise UserError(f"config.mesh.data={sizes[0]} is not divisible by {slices} slices; use a multiple of {slices}")
    elif slices > 1:
        per_slice = (sizes[0] // slices, *sizes[1:])
        grid = mesh_utils.create_hybrid_device_mesh(per_slice, (slices, 1, 1), devices, allow_split_physical_axes=True)
    else:
        # A mesh axis may split an axis of the slice, as 2 x 2 splits a row of 4 chips.
        grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
    # Auto: the step is written for one device, and XLA's partitioner splits it.
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def _check_batch_size(name: str, batch_size: int, devices: int, grad_accum_steps: int) -> None:
    parts = devices * grad_accum_steps
    if batch_size % parts:
        below = batch_size // parts * parts
        nearest = " or ".join(str(size) for size in (below, below + parts) if size)
        steps = f" x {grad_accum_steps} accumulation steps" if grad_accum_steps > 1 else ""
        raise UserError(f"{name}={batch_size} is not divisible by {devices} devices{steps}; use {nearest}")


def check_divisible(heads: int, ffn: int, mesh: Mesh) -> None:
    """Raises UserError unless the axis `tensor` divides the encoder's number of heads and feed-forward width."""
    tensor = mesh.shape["tensor"]
    for name, size in {"heads": heads, "ffn": ffn}.items():
        if size % tensor:
            raise UserError(
                f"config.model.{name}={size} is not divisible by config.mesh.tensor={tensor}; use a divisor of {size}"
            )


def _sizes(settings: MeshConfig, devices: int) -> tuple[int, ...]:
    sizes = [getattr(settings, axis) for axis in AXES]
    given = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and devices % given == 0:
        sizes[sizes.index(-1)] = devices // given
    # A product alone would not do: two sizes of -1 cancel, so they and another size may give the number of devices.
    if -1 in sizes or math.prod(sizes) != devices:
        asked = " x ".join(f"config.mesh.{axis}={getattr(settings, axis)}" for axis in AXES)
        raise UserError(f"{asked} does not match {devices} devices: expected sizes with product {devices}, or one -1")
    return tuple(sizes)


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of an array that every device has whole."""
    return NamedSharding(mesh, P())


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: over the first dimension, the examples."""
    return NamedSharding(mesh, P(BATCH))


def with_shardings(mesh: Mesh, state: Any) -> Any:
    """Converts `state` to a tree of ShapeDtypeStructs with the shardings that it has between steps.

    A dimension that its axis does not divide is not sharded: a generator may have fewer heads than its encoder.

    Args:
      mesh: from `make_mesh`.
      state: a tree of arrays or ShapeDtypeStructs.
    """

    def abstract(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        name = _name(path)
        axes = _split_over_data(mesh, name, leaf.shape, _split_by_rule(mesh, name, leaf.shape))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, _spec(axes)))

    return jax.tree_util.tree_map_with_path(abstract, state)


def gather_over_data(mesh: Mesh, params: Tree, dtype: Any) -> Tree:
    """Gathers stored parameters along `data`, as the networks read them; to be called inside `jit`.

    Kernels are cast to `dtype` before they are gathered, which in bfloat16 halves the communication. The modules would
    cast them anyway before any use; table lookups and vectors stay in float32.
    """

    def gather(path: Any, leaf: jax.Array) -> jax.Array:
        name = _name(path)
        axes = _split_by_rule(mesh, name, leaf.shape)
        stored = _split_over_data(mesh, name, leaf.shape, axes)
        # Not sharded along `data`, so there is nothing to gather.
        if stored == axes:
            return leaf
        if name.endswith("kernel"):
            # The constraint keeps XLA from gathering before it casts.
            leaf = jax.lax.with_sharding_constraint(leaf.astype(dtype), NamedSharding(mesh, _spec(stored)))
        return cast(jax.Array, jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, _spec(axes))))

    return cast(Tree, jax.tree_util.tree_map_with_path(gather, params))


Axes = tuple[tuple[str, ...], ...]  # for each dimension, the mesh axes that shard it, the outermost first


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _spec(axes: Axes) -> P:
    if not any(axes):
        return P()
    return P(*(names[0] if len(names) == 1 else names or None for names in axes))


def _split_by_rule(mesh: Mesh, name: str, shape: tuple[int, ...]) -> Axes:
    """Returns the axes that `RULES` gives to an array whose path is `name`."""
    for pattern, axes in RULES:
        if len(axes) == len(shape) and re.search(f"(^|/|_)({pattern})$", name):
            return tuple(
                (axis,) if axis is not None and size % mesh.shape[axis] == 0 else ()
                for axis, size in zip(axes, shape, strict=True)
            )
    return ((),) * len(shape)


def _split_over_data(mesh: Mesh, name: str, shape: tuple[int, ...], axes: Axes) -> Axes:
    """Adds `data` to the first dimension that it can shard further, if there is one.

    It is the first because TPUs store the last two dimensions in tiles, and the last one should be whole. The dimension
    of layers is not sharded: the loop over layers writes one layer's gradient at a time.
    """
    first = int(_LAYERS in name)
    if mesh.shape["data"] == 1 or len(shape) < first + 2 or name.endswith(_VECTORS):
        return axes
    for place in range(first, len(shape)):
        if shape[place] % math.prod(mesh.shape[axis] for axis in (*axes[place], "data")) == 0:
            return (*axes[:place], (*axes[place], "data"), *axes[place + 1 :])
    return axes


def shardings(tree: Any) -> Any:
    """Returns the tree of shardings of a tree of arrays, or of what `with_shardings` returns."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)


def put_tree(tree: Any, shardings: Any) -> Any:
    """Puts a tree of NumPy arrays, the same in all processes, on the devices."""
    return jax.tree.map(
        lambda value, to: jax.make_array_from_callback(value.shape, to, lambda index: value[index]), tree, shardings
    )


@functools.cache  # called in every step
def local_rows(mesh: Mesh, batch_size: int) -> np.ndarray:
    """Returns the indices of the examples of a global batch that are on devices of this process, in order."""
    indices = batch_sharding(mesh).addressable_devices_indices_map((batch_size,))
    # Devices along `tensor` have the same examples.
    return np.unique(np.concatenate([np.arange(batch_size)[index] for index in indices.values() if index is not None]))


def put_batch(batch: Tree, mesh: Mesh, batch_size: int) -> Tree:
    """Puts a global batch on the devices of all processes.

    Args:
      batch: a tree of arrays [rows, ...]: the `local_rows` of the batch, which this process has read.
      mesh: from `make_mesh`.
      batch_size: the global batch size.
    """
    sharding = batch_sharding(mesh)

    def put(rows: np.ndarray) -> jax.Array:
        shape = (batch_size, *rows.shape[1:])
        return cast(jax.Array, jax.make_array_from_process_local_data(sharding, rows, shape))

    # With several processes JAX takes its own transfer of the rows for an implicit one, which the train loop forbids.
    with jax.transfer_guard("allow"):
        return cast(Tree, jax.tree.map(put, batch))
