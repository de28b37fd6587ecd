"""Reuse the memory that a step frees on a CPU, instead of returning it to the system."""

import ctypes
import os
import sys

# Parameters of glibc's mallopt (malloc.h).
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory, unless the user has configured it; return whether it does.

    By default every step on a CPU gets new pages, which the kernel fills with zeros: a quarter of
    the time of a step of the small language model (BENCHMARKS.md). The process stays as large as
    its largest step.
    """
    if sys.platform != "linux" or any(
        name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ
    ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = {_M_MMAP_THRESHOLD: _MOST, _M_TRIM_THRESHOLD: _MOST, _M_ARENA_MAX: 1}
    return all(library.mallopt(name, value) == 1 for name, value in settings.items())
