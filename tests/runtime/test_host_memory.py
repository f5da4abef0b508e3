"""What a process keeps of its memory: pages that the system has to clear again, counted in processes of their own."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from electra_jax.runtime import host_memory

# Page faults in each call of a program whose temporary array has 64 MiB. The heap grows in the first ones.
PROGRAM = """
import resource
from electra_jax.runtime import host_memory
kept = host_memory.keep_freed()
import jax
import jax.numpy as jnp
run = jax.jit(lambda x: jnp.cumsum(jnp.sin(x))[0])
x = jnp.zeros(2**24)
faults = []
for _ in range(20):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    run(x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, min(faults))
"""


def fewest_faults(**environment: str) -> tuple[str, int]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(host_memory._OWN_SETTINGS)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=env | environment, capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    return kept, int(faults)


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt")
def test_temporary_arrays_are_not_cleared_at_each_call():
    pages = 2**26 // os.sysconf("SC_PAGE_SIZE")
    kept, faults = fewest_faults(JAX_PLATFORMS="cpu")
    assert kept == "True"
    assert faults < pages / 10


COMMAND = """
import os
from electra_jax.runtime import host_memory
host_memory.keep_freed = lambda: print(len(os.listdir("/proc/self/task")))
from electra_jax import __main__
__main__.main(["train", "--help"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_a_command_begins_with_it_before_it_has_a_second_thread():
    done = subprocess.run([sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("1\n")


def test_settings_of_the_environment_are_left_alone(monkeypatch):
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    assert not host_memory.keep_freed()


def test_machines_with_an_accelerator_are_left_alone(monkeypatch):
    for name in [name for name in os.environ if name.startswith((*host_memory._OWN_SETTINGS, "JAX_PLATFORMS"))]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: iter([folder / "nvidia0"] if "nvidia" in pattern else []))
    assert not host_memory.keep_freed()
