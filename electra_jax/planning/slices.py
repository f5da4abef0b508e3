"""TPU slices as their compiler knows them, on a machine that has none."""

import importlib.util
import os
import platform
import sys
from typing import Any

import jax

from electra_jax.config.errors import UserError, first_line


def slice_of(topology: str, slices: int = 1) -> list[Any]:
    """The devices of TPU slices that are not there.

    Raises:
      UserError: libtpu is not installed, or it knows no such slice.
    """
    if importlib.util.find_spec("libtpu") is None:
        if platform.machine() not in ("x86_64", "AMD64") or sys.platform != "linux":
            raise UserError(
                f"the TPU's compiler, libtpu, is there for Linux on x86 only, not for {sys.platform} on "
                f"{platform.machine()}; run the plan on such a machine, any will do"
            )
        raise UserError("the TPU's compiler is missing; install it: pip install 'electra_jax[tpu]'")
    # Or else it looks for the TPU of this machine, and says on standard error that there is none.
    quiet = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "TPU_ACCELERATOR_TYPE": "v3-8"}
    quiet |= {"TPU_MIN_LOG_LEVEL": "3", "TPU_STDERR_LOG_LEVEL": "3"}
    several = {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}  # plans beside each other do not compete for a chip
    for name, value in {**quiet, **several}.items():
        os.environ.setdefault(name, value)
    from jax.experimental import topologies

    # JAX runs the two cores of a v4 chip as one device; of later ones the compiler knows it by itself.
    options: dict[str, Any] = {"chip_config_name": "megacore"} if topology.startswith("v4:") else {}
    options |= {"num_slices": slices} if slices > 1 else {}
    try:
        return list(topologies.get_topology_desc(platform="tpu", topology_name=topology, **options).devices)
    except jax.errors.JaxRuntimeError as error:
        raise UserError(
            f"--topology={topology} cannot be ({first_line(error)}); give a kind and its chips along each "
            "dimension, whole hosts of 2 x 2, as v3:4x4, v4:2x2x2, v5e:4x4, v5p:2x2x1, v6e:4x4"
        ) from error
