"""Experiments: `python -m experiments` lists them; `load` reads a finished run of any of them back."""

from typing import Any

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """Imports JAX only where a run is read."""
    if name != "load":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from experiments.trained import load

    return load
