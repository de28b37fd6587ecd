"""Memory that a compiled program needs on each device."""

from collections.abc import Callable
from typing import Any


def memory_line(program: Callable[..., Any], *args: Any) -> str | None:
    """Return a line such as `memory: 1.50 GiB on each device (state and batch 0.50, work 1.00)`.

    The program is compiled as its first call would; a later call of a `jax.jit` reuses it. It is not run, and
    no argument is donated. Donated arguments count once.

    Returns:
        The line, or None if the backend has no memory analysis.
    """
    found = program.lower(*args).compile().memory_analysis()
    if found is None:
        return None
    arguments = found.argument_size_in_bytes + found.output_size_in_bytes - found.alias_size_in_bytes
    arguments, work = arguments / 2**30, found.temp_size_in_bytes / 2**30
    total = arguments + work
    return f"memory: {total:.2f} GiB on each device (state and batch {arguments:.2f}, work {work:.2f})"
