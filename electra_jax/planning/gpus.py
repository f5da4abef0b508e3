"""NVIDIA GPUs for ahead-of-time compilation, on a machine without GPUs."""

import importlib.util
import os
from typing import Any, NamedTuple

import jax

from electra_jax.config.errors import UserError, first_line

# Without a GPU nothing can be timed, so XLA must not autotune kernels, and takes cuBLAS for matrix products.
COMPILER_OPTIONS = "xla_gpu_enable_triton_gemm=False,xla_gpu_autotune_level=0"
MOST = 8  # GPUs that one machine connects


class GpuSpecs(NamedTuple):
    """Specifications of one GPU, from NVIDIA's data sheets and architecture white papers (A100, H100, H200, L4, Ada).

    Attributes:
      name: name that the driver reports.
      capability: the compute capability.
      cores: number of streaming multiprocessors.
      lanes: float32 lanes per multiprocessor.
      clock: boost clock in GHz.
      memory: bytes that the driver reports: those of the data sheet less error correction's and the driver's own.
      bandwidth: bytes/s between memory and the device.
      interconnect: bytes/s that it can send to the other GPUs of its machine: NVLink in one direction (half of the 600
        GB/s of A100 and the 900 GB/s of H100 and H200), or 16 lanes of PCIe 4.
      l2: bytes of the level-2 cache.
      shared: bytes of shared memory per multiprocessor.
      threads: maximum number of resident threads per multiprocessor.
    """

    name: str
    capability: tuple[int, int]
    cores: int
    lanes: int
    clock: float
    memory: float
    bandwidth: float
    interconnect: float
    l2: int
    shared: int
    threads: int

    @property
    def vector(self) -> float:
        """float32 operations/s outside the tensor cores: a lane does one multiply-add, two operations, per cycle."""
        return 2 * self.cores * self.lanes * self.clock * 1e9


_KIB, _MIB, _GIB = 2**10, 2**20, 2.0**30
GPUS = {
    "a100-40": GpuSpecs(
        *("NVIDIA A100-SXM4-40GB", (8, 0), 108, 64, 1.41, 39.42 * _GIB, 1555e9, 300e9, 40 * _MIB, 164 * _KIB, 2048)
    ),
    "a100-80": GpuSpecs(
        *("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 1.41, 79.25 * _GIB, 2039e9, 300e9, 40 * _MIB, 164 * _KIB, 2048)
    ),
    "h100": GpuSpecs(
        *("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 1.98, 79.11 * _GIB, 3350e9, 450e9, 50 * _MIB, 228 * _KIB, 2048)
    ),
    "h200": GpuSpecs(
        *("NVIDIA H200", (9, 0), 132, 128, 1.98, 139.8 * _GIB, 4800e9, 450e9, 50 * _MIB, 228 * _KIB, 2048)
    ),
    "l4": GpuSpecs(
        *("NVIDIA L4", (8, 9), 58, 128, 2.04, 22.03 * _GIB, 300e9, 32e9, 48 * _MIB, 100 * _KIB, 1536)
    ),
    "rtx4090": GpuSpecs(
        *("NVIDIA GeForce RTX 4090", (8, 9), 128, 128, 2.52, 23.64 * _GIB, 1008e9, 32e9, 72 * _MIB, 100 * _KIB, 1536)
    ),
}  # fmt: skip


def gpus_of(topology: str) -> tuple[GpuSpecs, list[Any]]:
    """Returns the specifications and the devices, for compilation, of the GPUs of one machine.

    Args:
      topology: KIND:COUNT with a kind of `GPUS`; without a count, 1.

    Raises:
      UserError: such GPUs do not exist, or the compiler is not installed or refuses them.
    """
    kind, _, count = topology.partition(":")
    # 0 stands for a count that is no number, and is refused below.
    number = int(count) if count.isdecimal() else 0 if count else 1
    if kind not in GPUS or not 1 <= number <= MOST:
        raise UserError(
            f"--topology={topology} is invalid: expected one of {', '.join(GPUS)}, with 1 to {MOST} GPUs, for example "
            "h100:8"
        )
    # The extras `cuda` and `cuda12` install one of the two.
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        raise UserError(
            "JAX's CUDA plugin, which compiles for GPUs, is not installed: run pip install 'electra_jax[cuda]'"
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # otherwise XLA logs that there is no GPU
    from jax.experimental import topologies

    try:
        described = topologies.get_topology_desc(
            platform="cuda", target_config=_target_config(GPUS[kind]), topology=f"1x1x{number}"
        )
    except (jax.errors.JaxRuntimeError, NotImplementedError) as error:
        raise UserError(
            f"JAX's CUDA plugin cannot compile for --topology={topology} here ({first_line(error)}): install the one "
            "that belongs to this jax, pip install 'electra_jax[cuda]'"
        ) from error
    return GPUS[kind], list(described.devices)


def usable_memory(gpu: GpuSpecs) -> float:
    """Returns the bytes that JAX allocates on a GPU: three quarters of its memory, or `XLA_CLIENT_MEM_FRACTION` of it.

    Raises:
      UserError: that variable is not a number.
    """
    # The second name is deprecated; jaxlib refuses both at once.
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        if name in os.environ:
            try:
                return gpu.memory * float(os.environ[name])
            except ValueError as error:
                raise UserError(f"{name}={os.environ[name]} is invalid: expected a number such as .9") from error
    return gpu.memory * 0.75


def _target_config(gpu: GpuSpecs) -> str:
    """Formats XLA's `GpuTargetConfigProto`. Limits that all these GPUs share are from the CUDA programming guide."""
    major, minor = gpu.capability
    # CUDA reserves 1 KiB of shared memory per block, so a block gets 1 KiB less than its multiprocessor has.
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: {48 * _KIB}
  shared_memory_per_core: {gpu.shared}
  shared_memory_per_block_optin: {gpu.shared - _KIB}
  threads_per_core_limit: {gpu.threads}
  core_count: {gpu.cores}
  fpus_per_core: {gpu.lanes}
  block_dim_limit_x: {2**31 - 1}
  block_dim_limit_y: {2**16 - 1}
  block_dim_limit_z: {2**16 - 1}
  memory_bandwidth: {gpu.bandwidth:.0f}
  l2_cache_size: {gpu.l2}
  clock_rate_ghz: {gpu.clock}
  device_memory_size: {gpu.memory:.0f}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: {2**16}
  registers_per_block_limit: {2**16}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
runtime_version {{ major: 12 minor: 8 patch: 0 }}
device_description_str: "{gpu.name}"
"""
