"""Training: how agents are trained in any model, and the loop of this project's experiments."""

import importlib
from typing import Any

__all__ = ["AgentObjective", "AgentStage"]


def __getattr__(name: str) -> Any:
    """Imports what is asked for when it is asked for: settings are read without JAX."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("dynskip_jax.training.objective"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
