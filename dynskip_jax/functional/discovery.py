"""Finds the kinds of a piece in the files of its folder: a new kind is one file and no line elsewhere."""

import importlib
import pkgutil
from types import ModuleType


def kinds(package: ModuleType | str, base: type) -> dict[str, type]:
    """Returns each class of a package's modules that derives from `base` and has a name, by that name."""
    package = importlib.import_module(package) if isinstance(package, str) else package
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        for value in vars(module).values():
            is_kind = isinstance(value, type) and issubclass(value, base)
            if is_kind and value.__module__ == module.__name__ and value.name:
                found[value.name] = value
    return found
