"""Memory that a compiled program needs on each device."""

from collections.abc import Callable
from typing import Any, NamedTuple


class ProgramMemory(NamedTuple):
    """Memory of one program on each device, in bytes.

    Attributes:
        arguments: Memory of the arguments and results; donated arguments count once.
        work: Additional memory while the program runs.
    """

    arguments: int
    work: int


def program_memory(program: Callable[..., Any], *args: Any) -> ProgramMemory | None:
    """Compile a program for these arguments, as its first call would, and return the memory that it needs.

    A later call reuses the compiled program of `jax.jit`. A program of `jax.pmap` is compiled again, or
    loaded from the compilation cache.

    Args:
        program: Function returned by `jax.jit` or `jax.pmap`.
        *args: Arguments of a call. The program is not run, and no argument is donated.

    Returns:
        The compiler's memory analysis, or None if the backend has none.
    """
    analysis = program.lower(*args).compile().memory_analysis()
    if analysis is None:
        return None
    arguments = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return ProgramMemory(arguments, analysis.temp_size_in_bytes)


def memory_line(memory: ProgramMemory) -> str:
    """Return one line such as `memory: 1.50 GiB on each device (state and batch 0.50, work 1.00)`."""
    arguments, work = (size / 2**30 for size in memory)
    total = arguments + work
    return f"memory: {total:.2f} GiB on each device (state and batch {arguments:.2f}, work {work:.2f})"
