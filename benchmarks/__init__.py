"""Benchmarks; run one with `python -m benchmarks.<name>`."""

import sys
from collections.abc import Callable
from pathlib import Path

from dynskip_jax.config.flags import call
from dynskip_jax.terminal.failures import run_main


def run_command(function: Callable[..., None]) -> None:
    """Run a benchmark's function with the flags of the command line."""
    name = f"python -m benchmarks.{Path(sys.argv[0]).stem}"
    run_main(lambda: call(function, name, sys.argv[1:]))
