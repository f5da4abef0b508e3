"""Peak FLOP/s, memory and bandwidth of devices, from the makers' data sheets."""

import re
from typing import Any, NamedTuple

import jax.numpy as jnp

# Dense peak of one JAX device, FLOP/s, by precision of the computation. A chip of TPU v2, v3 and 7x is two devices.
# float32 means JAX's default precision for it: bfloat16 products on TPUs, TF32 on NVIDIA's tensor cores. `known` takes
# the first NVIDIA name that a device's begins with, so H100 PCIe and H100 NVL come before H100.
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
    "NVIDIA L4": {"bfloat16": 121e12, "float32": 60e12},
    "NVIDIA GeForce RTX 4090": {"bfloat16": 165.2e12, "float32": 82.6e12},
}
_ALIASES = {"TPU v5 lite": "TPU v5e", "TPU v5": "TPU v5p", "TPU v6 lite": "TPU v6e"}  # as JAX names them
DEVICES_A_CHIP = {"TPU v2": 2, "TPU v3": 2, "TPU7x": 2}


class TpuSpecs(NamedTuple):
    """Memory, bandwidths and units of one JAX device of a TPU.

    Attributes:
      memory: bytes that a program may use, as libtpu 0.0.52's compiler reports them for a program that is too large.
      bandwidth: bytes/s between memory and the device (docs.cloud.google.com/tpu/docs/v3, v4, ...).
      interconnect: bytes/s that it can send to its neighbors, one way over all links (v2 and v3: 4 links of 496 and
        656 Gbit/s per chip, Jouppi et al., CACM 63(7), 2020; later ones: the pages above).
      matrix: FLOPs of its matrix units per cycle: 2 x 128 x 128 for each unit of v2 to v5p, 2 x 256 x 256 from v6e on
        (the pages above; one unit in a device of v2, two in v3, eight in v4 and v5p, four in v5e, v6e and 7x).
      lanes: operations of its vector units per cycle: 8 x 128 lanes times their ALUs, two in v2 to v4 (Norrie et al.,
        IEEE Micro 41(2), 2021), four later; v4 and v5p have two cores in a device. The compiler agrees: its estimates
        of a chain of 80 float32 operations on each of 2048 x 2048 numbers come to 87 to 94% of these.
      packed16: whether a lane computes two bfloat16 numbers at a time (from v6e on).
    """

    memory: float
    bandwidth: float
    interconnect: float
    matrix: int
    lanes: int
    packed16: bool = False


_GIB = 2.0**30
_MXU, _LARGE_MXU, _LANES = 2 * 128 * 128, 2 * 256 * 256, 8 * 128
TPU_SPECS = {
    "TPU v2": TpuSpecs(7.48 * _GIB, 350e9, 124e9, _MXU, 2 * _LANES),
    "TPU v3": TpuSpecs(15.48 * _GIB, 450e9, 164e9, 2 * _MXU, 2 * _LANES),
    "TPU v4": TpuSpecs(30.75 * _GIB, 1200e9, 300e9, 8 * _MXU, 4 * _LANES),
    "TPU v5e": TpuSpecs(15.75 * _GIB, 819e9, 200e9, 4 * _MXU, 4 * _LANES),
    "TPU v5p": TpuSpecs(95.73 * _GIB, 2765e9, 600e9, 8 * _MXU, 8 * _LANES),
    "TPU v6e": TpuSpecs(31.24 * _GIB, 1640e9, 400e9, 4 * _LARGE_MXU, 4 * _LANES, packed16=True),
    "TPU7x": TpuSpecs(94.74 * _GIB, 3690e9, 300e9, 4 * _LARGE_MXU, 4 * _LANES, packed16=True),
}


def clock(kind: str) -> float:
    """Returns the clock in Hz of a TPU of `TPU_SPECS`: its peak divided by the FLOPs of its matrix units per cycle.

    This gives the published .7, .94 and 1.05 GHz of v2, v3 and v4 (Jouppi et al., ISCA 2023), and 1.5, 1.75, 1.75 and
    2.2 GHz of v5e, v5p, v6e and 7x. The compiler's estimates agree with the number of units: by them a bfloat16 product
    of 4096 x 4096 matrices does 83 to 98% of `TpuSpecs.matrix` per cycle (libtpu 0.0.42.1).
    """
    return PEAK_FLOPS[kind]["bfloat16"] / TPU_SPECS[kind].matrix


def known(kind: str) -> str | None:
    """Returns the key in `PEAK_FLOPS` for JAX's `device_kind`; None for an unknown device."""
    kind = _ALIASES.get(kind, kind)
    if kind in PEAK_FLOPS:
        return kind
    # Laptop GPUs are slower than the cards of the same name, and a MIG device is a part of one.
    if re.search(r"\b(Laptop|MIG)\b", kind):
        return None
    # \b, the end of a word: NVIDIA L40S is not an L4.
    return next((name for name in PEAK_FLOPS if name.startswith("NVIDIA") and re.match(rf"{name}\b", kind)), None)


def find(text: str) -> str | None:
    """Returns the key in `PEAK_FLOPS` that `text` names, in full or by an unambiguous part such as H200; or None."""
    exact = known(text)
    if exact is not None:
        return exact
    names = [name for name in PEAK_FLOPS if text.lower() in name.lower()]
    # H100 is a part of three names, but the end of one, which is meant.
    ends = [name for name in names if name.lower().endswith(text.lower())]
    return next((found[0] for found in (ends, names) if text and len(found) == 1), None)


def peak(kind: str, dtype: Any) -> float | None:
    """Returns the peak FLOP/s of one device for a computation in `dtype`; None for an unknown device."""
    name = known(kind)
    return None if name is None else PEAK_FLOPS[name].get(jnp.dtype(dtype).name)
