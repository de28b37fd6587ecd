"""Memory that a step has used on a CPU, kept by the process for the next step."""

import ctypes
import os
import sys

# glibc's names (malloc.h).
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Lets glibc keep what is freed, unless the user has told it what to do (`MALLOC_…`, `GLIBC_TUNABLES`).

    On a CPU JAX allocates what a step works in and frees it afterwards. glibc gives large pieces back to the
    system at once and so receives other pages for each step, every one of which the kernel first fills with
    zeros: a quarter of the time of a step of the small language model (BENCHMARKS.md). Kept in one arena they
    are used again; the process then stays as large as its largest step.

    Returns:
        Whether it will; False also where the C library is another one.
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    settings = {_M_MMAP_THRESHOLD: _MOST, _M_TRIM_THRESHOLD: _MOST, _M_ARENA_MAX: 1}
    return all(library.mallopt(name, value) == 1 for name, value in settings.items())
