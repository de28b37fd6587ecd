"""Modules that are imported when they are first used: JAX takes a second, and `--help` does without it."""

import importlib
from typing import Any


class LazyModule:
    """Stand in for a module, and import it when an attribute is asked for.

    Args:
        name: the module's name, as in `jax.numpy`.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
