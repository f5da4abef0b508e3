"""Peak FLOP/s, memory and bandwidth of devices, from the makers' data sheets."""

from typing import Any, NamedTuple

import jax.numpy as jnp

# Dense peak of one JAX device, FLOP/s, by precision of the computation. A chip of TPU v2, v3 and 7x is two devices.
# float32 means JAX's default precision for it: bfloat16 products on TPUs, TF32 on NVIDIA's tensor cores.
PEAK_FLOPS = {
    "TPU v2": {"bfloat16": 22.5e12, "float32": 22.5e12},
    "TPU v3": {"bfloat16": 61.5e12, "float32": 61.5e12},
    "TPU v4": {"bfloat16": 275e12, "float32": 275e12},
    "TPU v5e": {"bfloat16": 197e12, "float32": 197e12},
    "TPU v5p": {"bfloat16": 459e12, "float32": 459e12},
    "TPU v6e": {"bfloat16": 918e12, "float32": 918e12},
    "TPU7x": {"bfloat16": 1153.5e12, "float32": 1153.5e12},
    "NVIDIA A100": {"bfloat16": 312e12, "float32": 156e12},
    "NVIDIA H100 PCIe": {"bfloat16": 756e12, "float32": 378e12},
    "NVIDIA H100 NVL": {"bfloat16": 835e12, "float32": 417e12},
    "NVIDIA H100": {"bfloat16": 989e12, "float32": 494e12},
    "NVIDIA H200 NVL": {"bfloat16": 835e12, "float32": 417e12},
    "NVIDIA H200": {"bfloat16": 989e12, "float32": 494e12},
    "NVIDIA B200": {"bfloat16": 2250e12, "float32": 1125e12},
}
_ALIASES = {"TPU v5 lite": "TPU v5e", "TPU v5": "TPU v5p", "TPU v6 lite": "TPU v6e"}  # as JAX names them
DEVICES_A_CHIP = {"TPU v2": 2, "TPU v3": 2, "TPU7x": 2}


class TpuSpecs(NamedTuple):
    """Memory and bandwidths of one JAX device of a TPU.

    Attributes:
      memory: bytes that a program may use, as the compiler of libtpu 0.0.52 reports for a program that is too large.
      bandwidth: bytes/s between memory and the device (docs.cloud.google.com/tpu/docs/v3, v4, ...).
      interconnect: bytes/s that it can send to its neighbours, one way over all links (v2 and v3: 4 links of 496 and
        656 Gbit/s per chip, Jouppi et al., CACM 63(7), 2020; later ones: the pages above).
    """

    memory: float
    bandwidth: float
    interconnect: float


_GIB = 2.0**30
TPU_SPECS = {
    "TPU v2": TpuSpecs(7.48 * _GIB, 350e9, 124e9),
    "TPU v3": TpuSpecs(15.48 * _GIB, 450e9, 164e9),
    "TPU v4": TpuSpecs(30.75 * _GIB, 1200e9, 300e9),
    "TPU v5e": TpuSpecs(15.75 * _GIB, 819e9, 200e9),
    "TPU v5p": TpuSpecs(95.73 * _GIB, 2765e9, 600e9),
    "TPU v6e": TpuSpecs(31.24 * _GIB, 1640e9, 400e9),
    "TPU7x": TpuSpecs(94.74 * _GIB, 3690e9, 300e9),
}


def known(kind: str) -> str | None:
    """The key in `PEAK_FLOPS` of JAX's `device_kind`; None for an unknown device."""
    kind = _ALIASES.get(kind, kind)
    if kind in PEAK_FLOPS:
        return kind
    return next((name for name in PEAK_FLOPS if name.startswith("NVIDIA") and kind.startswith(name)), None)


def peak(kind: str, dtype: Any) -> float | None:
    """Peak FLOP/s of one device for a computation in `dtype`; None for an unknown device."""
    name = known(kind)
    return None if name is None else PEAK_FLOPS[name].get(jnp.dtype(dtype).name)
