"""Import the names of a package on first access, so that a program loads only what it uses."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def importer(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package: `modules` has the module of each of its names."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return get
