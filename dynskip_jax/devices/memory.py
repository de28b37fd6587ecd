"""How much memory a compiled program needs on each device."""

from collections.abc import Callable
from typing import Any, NamedTuple


class ProgramMemory(NamedTuple):
    """Bytes on each device.

    Attributes:
        arguments: what is given to the program and what it returns; memory that it takes over counts once.
        work: what it needs beyond that while it runs.
    """

    arguments: int
    work: int


def program_memory(program: Callable[..., Any], *args: Any) -> ProgramMemory | None:
    """Compiles a program for arguments, as its first call would, and says what it will need.

    A call that follows finds a program of `jax.jit` compiled; one of `jax.pmap` is compiled once more, or
    found where compiled programs are kept.

    Args:
        program: made by `jax.jit` or `jax.pmap`.
        *args: as for the call; nothing is run and nothing donated.

    Returns:
        The compiler's own account; None where the backend gives none.
    """
    analysis = program.lower(*args).compile().memory_analysis()
    if analysis is None:
        return None
    arguments = analysis.argument_size_in_bytes + analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    return ProgramMemory(arguments, analysis.temp_size_in_bytes)


def memory_line(memory: ProgramMemory) -> str:
    """Says it in a line, as in `memory: 1.50 GiB on each device (state and batch 0.50, work 1.00)`."""
    arguments, work = (size / 2**30 for size in memory)
    total = arguments + work
    return f"memory: {total:.2f} GiB on each device (state and batch {arguments:.2f}, work {work:.2f})"
