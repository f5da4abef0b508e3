"""The mesh, and what lies where on it: the batch is split over the devices, the state is on all of them."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from electra_jax.errors import UserError


def make_mesh(batch_size: int, accumulate: int = 1) -> Mesh:
    """All devices along one axis, `data`.

    Raises:
      UserError: the batch cannot be split evenly over the devices, in `accumulate` parts.
    """
    devices = jax.device_count()
    shares = devices * accumulate
    if batch_size % shares:
        below = batch_size // shares * shares
        nearest = " or ".join(str(n) for n in (below, below + shares) if n)
        turns = f", {accumulate} times" if accumulate > 1 else ""
        raise UserError(f"config.batch_size={batch_size} cannot be split over {devices} devices{turns}; use {nearest}")
    return jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P())


def by_example(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P("data"))


def put(batch: dict[str, np.ndarray], mesh: Mesh) -> dict[str, Any]:
    """A batch of the host on the devices, a part of its examples on each."""
    return jax.device_put(batch, by_example(mesh))
