"""Register named tuples and dataclasses, so that `jax.export` can serialize programs with them."""

import json
from collections.abc import Callable
from typing import Any

from jax import export


def register_for_export(kind: type) -> type:
    """Register a named tuple, such as a custom transition's state; also a decorator.

    Serialized programs store its module and name. A second registration under the same name, as
    after `importlib.reload`, does nothing: restart Python to export values of a reloaded class.
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
