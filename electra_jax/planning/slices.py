"""TPU slices for ahead-of-time compilation, on a machine without TPUs."""

import importlib.util
import os
import platform
import sys
from typing import Any

import jax

from electra_jax.config.errors import UserError, first_line


def slice_of(topology: str, slices: int = 1) -> list[Any]:
    """Returns the devices of TPU slices, for compilation.

    Args:
      topology: one slice as KIND:SHAPE.
      slices: number of such slices.

    Raises:
      UserError: libtpu is not installed, or such a slice does not exist.
    """
    if importlib.util.find_spec("libtpu") is None:
        if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
            raise UserError(
                f"the TPU compiler, libtpu, does not run on {sys.platform} on {platform.machine()}: expected Linux on "
                "x86; run the plan on any such machine"
            )
        raise UserError("the TPU compiler, libtpu, is not installed: run pip install 'electra_jax[tpu]'")
    # Otherwise libtpu looks for a TPU in this machine, and reports on standard error that there is none.
    quiet = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v3-8"}
    quiet |= {"TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3"}
    several = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # several plans may run at a time
    for name, value in {**quiet, **several}.items():
        os.environ.setdefault(name, value)
    from jax.experimental import topologies

    # JAX runs the two cores of a v4 chip as one device; for later chips that is the default.
    options: dict[str, Any] = {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}
    options |= {"num_slices": slices} if slices > 1 else {}
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--topology={topology} is invalid ({first_line(error)}): expected a kind and its chips along each "
            "dimension, in whole hosts of 2 x 2, for example v3:4x4, v4:2x2x2, v5e:4x4, v5p:2x2x1 or v6e:4x4"
        ) from error
