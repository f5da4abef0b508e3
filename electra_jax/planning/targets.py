"""Compilation targets of `plan`: TPU slices or the GPUs of one machine, with the speeds that estimates divide by."""

import dataclasses
import re
from typing import Any

from electra_jax.config.errors import UserError
from electra_jax.flops import devices as device_table
from electra_jax.planning import gpus
from electra_jax.planning.slices import slice_of

# Slices are named v2 to v6e, but tpu7x.
_TPU = re.compile(r"(v\d|tpu)")


@dataclasses.dataclass(frozen=True)
class Target:
    """Devices of one kind to compile for.

    Attributes:
      devices: as JAX describes them.
      kind: a key of `devices.PEAK_FLOPS`.
      memory: bytes that a program may use on one device.
      bandwidth: bytes/s between memory and a device.
      interconnect: bytes/s that a device can send.
      vector: element-wise operations/s of a device.
      packed16: whether two 16-bit numbers count as one such operation.
      clock: Hz of the cycles that the compiler estimates; None for GPUs, whose compiler estimates none.
      options: compiler options, as in `config.compiler_options`.
    """

    devices: list[Any]
    kind: str
    memory: float
    bandwidth: float
    interconnect: float
    vector: float
    packed16: bool
    clock: float | None
    options: str

    @property
    def hosts(self) -> int:
        return len({device.process_index for device in self.devices})


def is_tpu(topology: str) -> bool:
    """Returns True if a topology names a TPU, existing or not."""
    return _TPU.match(topology) is not None


def find_target(topology: str, slices: int = 1) -> Target:
    """Returns the devices that a topology names.

    Args:
      topology: KIND:SHAPE of a TPU slice, or KIND:COUNT of GPUs.
      slices: number of such slices.

    Raises:
      UserError: such devices do not exist, or their compiler is not installed.
    """
    kind = topology.partition(":")[0]
    if is_tpu(topology):
        return _slices(topology, slices)
    if kind not in gpus.GPUS:
        raise UserError(
            f"--topology={topology} is invalid: expected a TPU slice, for example v3:4x4, or GPUs of one machine, "
            f"for example h100:8 (known: {', '.join(gpus.GPUS)})"
        )
    if slices > 1:
        raise UserError(f"--slices={slices} is for TPUs; --topology={topology} is one machine with GPUs")
    specs, found = gpus.gpus_of(topology)
    name = device_table.known(found[0].device_kind)
    assert name is not None
    return Target(
        devices=found,
        kind=name,
        memory=gpus.usable_memory(specs),
        bandwidth=specs.bandwidth,
        interconnect=specs.interconnect,
        vector=specs.vector,
        packed16=False,
        clock=None,
        options=gpus.COMPILER_OPTIONS,
    )


def _slices(topology: str, slices: int) -> Target:
    tpus = slice_of(topology, slices)
    # A kind that the table lacks keeps its name for the error.
    kind = device_table.known(tpus[0].device_kind) or tpus[0].device_kind
    if kind not in device_table.TPU_SPECS:
        raise UserError(
            f"--topology={topology} has devices of unknown speed ({kind}): expected one of "
            f"{', '.join(device_table.TPU_SPECS)}"
        )
    specs, clock = device_table.TPU_SPECS[kind], device_table.clock(kind)
    return Target(
        devices=tpus,
        kind=kind,
        memory=specs.memory,
        bandwidth=specs.bandwidth,
        interconnect=specs.interconnect,
        vector=specs.lanes * clock,
        packed16=specs.packed16,
        clock=clock,
        options="",
    )
