"""Import modules on first use: JAX takes a second to import, and `--help` does not need it."""

import importlib
from typing import Any


class LazyModule:
    """A placeholder that imports a module when one of its attributes is first used.

    Args:
        name: Full name of the module, such as `jax.numpy`.
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
