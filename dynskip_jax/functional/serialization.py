"""Carries and outputs in programs that `jax.export` writes: their types are known to it on import."""

import json
from types import ModuleType

from jax import export

from dynskip_jax.functional import (
    agent,
    copying,
    depth_skips,
    layers,
    neural_cache,
    recurrence,
    skipping,
    time_skips,
    transitions,
)
from dynskip_jax.functional.policy import Policy


def register_for_export(kind: type) -> type:
    """Lets exported programs take and return a named tuple, such as the state of a transition of your own.

    Args:
        kind: the class; its module and name are what a serialised program knows it by.

    Returns:
        The class, so that this may decorate it.
    """
    name = f"{kind.__module__}.{kind.__qualname__}"
    return export.register_namedtuple_serialization(kind, serialized_name=name)


def _named_tuples(module: ModuleType) -> set[type]:
    return {
        kind
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")
    }


_modules = (
    agent,
    copying,
    depth_skips,
    layers,
    neural_cache,
    recurrence,
    skipping,
    time_skips,
    transitions,
)
for _kind in sorted(set().union(*map(_named_tuples, _modules)), key=lambda kind: kind.__qualname__):
    register_for_export(_kind)
export.register_pytree_node_serialization(
    Policy,
    serialized_name=f"{Policy.__module__}.{Policy.__qualname__}",
    serialize_auxdata=lambda mode: json.dumps(mode).encode(),
    deserialize_auxdata=lambda written: tuple(json.loads(written)),
)
