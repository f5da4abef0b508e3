"""Settings of glibc's malloc for processes that compute on the CPU: freed memory is kept."""

import ctypes
import os
import platform
from pathlib import Path

# Parameters of glibc's `mallopt` (malloc.h).
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
# One heap that all threads share, which grows for allocations of any size and never shrinks.
_KEPT = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: -1}
_ACCELERATORS = ("nvidia[0-9]*", "kfd", "accel[0-9]*", "vfio/[0-9]*")  # NVIDIA, AMD, TPUs before and from v5 on
_OWN_SETTINGS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def keep_freed() -> bool:
    """Makes this process keep freed memory for its next allocations; returns True if it does.

    XLA:CPU allocates the temporary arrays of a program at each call. By default glibc returns freed blocks of this size
    to the system, and the system clears every page before it hands it out again: a seventh of the processor time of a
    run of `configs/tiny.py`. The price is memory. The process never shrinks, and a freed array often leaves no room for
    the next one of the same size, because `posix_memalign` asks for more and small blocks take the rest. Heaps of
    two to four times a step's temporary arrays were seen.

    Call it before the process has a second thread: that thread's first allocation makes a second heap, which later
    threads share with the first one. It changes nothing under another C library, on a machine with an accelerator, or
    if the environment has settings of its own for this.
    """
    if platform.libc_ver()[0] != "glibc" or any(name.startswith(_OWN_SETTINGS) for name in os.environ):
        return False
    if os.environ.get("JAX_PLATFORMS") != "cpu" and any(any(Path("/dev").glob(name)) for name in _ACCELERATORS):
        return False
    libc = ctypes.CDLL(None)
    return all(libc.mallopt(parameter, value) for parameter, value in _KEPT.items())
