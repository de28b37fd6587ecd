"""Register this package's named tuples and dataclasses, so that `jax.export` can serialize programs."""

import importlib
import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

from jax import export

from dynskip_jax.functional import (
    agent,
    copying,
    decisions,
    depth_skips,
    layers,
    neural_cache,
    policy,
    step,
    time_skips,
    transitions,
)


def register_for_export(kind: type) -> type:
    """Register a named tuple as input and output of exported programs, such as a custom transition's state.

    A second registration under the same name, as after `importlib.reload`, does nothing: restart Python to
    export values of a reloaded class.

    Args:
        kind: Named tuple class. Serialized programs store its module and name.

    Returns:
        The class, so that this function can be used as a decorator.
    """
    return _register(export.register_namedtuple_serialization, kind)


def register_node_for_export(kind: type) -> type:
    """Register a class of pytrees whose static part is a tuple; see `register_for_export`."""
    return _register(
        export.register_pytree_node_serialization,
        kind,
        serialize_auxdata=lambda facts: json.dumps(facts).encode(),
        deserialize_auxdata=lambda written: tuple(json.loads(written)),
    )


def _register(register: Callable[..., Any], kind: type, **options: Any) -> type:
    try:
        register(kind, serialized_name=f"{kind.__module__}.{kind.__qualname__}", **options)
    except ValueError as error:
        if "Duplicate" not in str(error):
            raise
    return kind


def _named_tuples(module: ModuleType) -> set[type]:
    """Return the named tuples of a module and of its submodules."""
    found = set()
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            found.add(value)
        elif isinstance(value, ModuleType) and value.__name__.startswith(f"{module.__name__}."):
            found |= _named_tuples(value)
    return found


_modules = (
    *(agent, copying, depth_skips, layers, neural_cache),
    *(step, time_skips, transitions),
    importlib.import_module("dynskip_jax.functional.skim"),  # `functional.skim` is the function
)
for _kind in sorted(set().union(*map(_named_tuples, _modules)), key=lambda kind: kind.__qualname__):
    register_for_export(_kind)
for _kind in (policy.Policy, decisions.DecisionTrace):
    register_node_for_export(_kind)
