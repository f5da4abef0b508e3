"""Energy of this process's NVIDIA GPUs, by their own counters, which NVML reads (the package nvidia-ml-py)."""

import math
import os
from typing import Any

import jax


class Meter:
    """Counts the joules that this process's devices spend from its creation on.

    A counter counts all work on its GPU, that of other processes included. GPUs have one since Volta; MIG instances and
    other devices have none.
    """

    def __init__(self) -> None:
        self._gpus = _find_gpus()
        self._lapped = self._joules()

    def lap(self) -> float:
        """Returns the joules since the last lap, or since the creation; NaN if a device has no counter."""
        now = self._joules()
        if math.isnan(now) and not math.isnan(self._lapped):
            return 0.0  # a reading that failed; the next lap has its joules
        before, self._lapped = self._lapped, now
        return now - before

    def _joules(self) -> float:
        if not self._gpus:
            return math.nan
        import pynvml

        try:
            return float(sum(map(pynvml.nvmlDeviceGetTotalEnergyConsumption, self._gpus))) / 1e3  # from millijoules
        except pynvml.NVMLError:
            return math.nan


def _find_gpus() -> list[Any]:
    """Returns NVML's handles of this process's GPUs; empty if it computes on other devices, or without NVML."""
    if jax.default_backend() != "gpu":
        return []
    try:
        import pynvml
    except ImportError:
        return []
    # JAX numbers the GPUs that CUDA shows it, NVML numbers all of them. If a machine has GPUs of different kinds, the
    # orders agree with CUDA_DEVICE_ORDER=PCI_BUS_ID only.
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    try:
        pynvml.nvmlInit()
        numbers = [device.local_hardware_id for device in jax.local_devices()]
        names = [visible[number] if visible else str(number) for number in numbers]
        return [
            pynvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdecimal()
            else pynvml.nvmlDeviceGetHandleByUUID(name)  # which CUDA_VISIBLE_DEVICES may have too
            for name in names
        ]
    except pynvml.NVMLError:
        return []
