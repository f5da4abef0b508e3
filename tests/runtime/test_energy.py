import math
import sys
import types

import jax
import pytest

from electra_jax.runtime import energy


class NVMLError(Exception):
    pass


@pytest.fixture
def counters(monkeypatch):
    """Millijoules of the GPUs that a stand-in for NVML has, by number or UUID; None has no counter."""
    values = {}

    def read(handle):
        if values[handle] is None:
            raise NVMLError
        return values[handle]

    nvml = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetHandleByUUID=lambda name: name,
        nvmlDeviceGetTotalEnergyConsumption=read,
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    devices = [types.SimpleNamespace(local_hardware_id=number) for number in (0, 1)]
    monkeypatch.setattr(jax, "local_devices", lambda: devices)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return values


@pytest.mark.parametrize(
    ("visible", "gpus"), [("", [0, 1]), ("3, 2", [3, 2]), ("GPU-1f,GPU-20,5", ["GPU-1f", "GPU-20"])]
)
def test_the_gpus_of_this_process_are_summed(visible, gpus, counters, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    counters.update(dict.fromkeys(gpus, 10_000))
    meter = energy.Meter()
    counters[gpus[0]] += 1_500
    counters[gpus[1]] += 500
    assert meter.lap() == 2.0
    assert meter.lap() == 0.0


def test_a_reading_that_fails_loses_nothing(counters):
    counters.update({0: 1_000, 1: 1_000})
    meter = energy.Meter()
    counters[1] = None
    assert meter.lap() == 0.0
    counters.update({0: 2_000, 1: 4_000})
    assert meter.lap() == 4.0


def test_without_a_counter_energy_is_unknown(counters, monkeypatch):
    counters.update({0: 1, 1: None})
    assert math.isnan(energy.Meter().lap())
    monkeypatch.setitem(sys.modules, "pynvml", None)  # not installed
    assert math.isnan(energy.Meter().lap())
    monkeypatch.undo()
    assert math.isnan(energy.Meter().lap())  # a CPU
