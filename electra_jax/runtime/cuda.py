"""Refuses to compute on the CPU if JAX's CUDA plugin is installed but cannot use the machine's GPU."""

import importlib.util
import re
from pathlib import Path

import jax

from electra_jax.config.errors import UserError

# Minimum driver by CUDA version; docs.nvidia.com/deploy/cuda-compatibility.
_OLDEST_DRIVERS = {13: 580, 12: 525}
_DEVICES, _VERSION = Path("/dev"), Path("/proc/driver/nvidia/version")


def check_is_used() -> None:
    """Checks that JAX uses this machine's NVIDIA GPU, if its CUDA plugin is installed.

    JAX itself only prints why it cannot load the plugin, and falls back to the CPU. If a platform was chosen, by
    `JAX_PLATFORMS`, nothing is checked.

    Raises:
      UserError: there is a GPU and a plugin, and JAX computes on the CPU.
    """
    if jax.config.values["jax_platforms"] or jax.default_backend() != "cpu" or not any(_DEVICES.glob("nvidia[0-9]*")):
        return
    installed = [cuda for cuda in _OLDEST_DRIVERS if importlib.util.find_spec(f"jax_cuda{cuda}_plugin")]
    if not installed:
        return
    # The version of the kernel module is that of the driver.
    found = re.search(r"Kernel Module\D*(\d[\d.]*)", _VERSION.read_text()) if _VERSION.exists() else None
    driver, cuda = found[1] if found else "unknown", installed[0]
    problem = f"JAX's plugin for CUDA {cuda} cannot use this machine's NVIDIA GPU (driver {driver})"
    if found and int(found[1].partition(".")[0]) >= _OLDEST_DRIVERS[cuda]:
        raise UserError(f"{problem}: it cannot be loaded; JAX prints why, above; or set JAX_PLATFORMS=cpu")
    older = f"install 'electra_jax[cuda12]' (drivers from {_OLDEST_DRIVERS[12]} on), " if cuda != 12 else ""
    raise UserError(
        f"{problem}: expected driver {_OLDEST_DRIVERS[cuda]} or later; update it, {older}or set JAX_PLATFORMS=cpu"
    )
