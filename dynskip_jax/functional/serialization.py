"""Carries and outputs in programs that `jax.export` writes: their types are known to it on import."""

from types import ModuleType

from jax import export

from dynskip_jax.functional import agent, depth_skips, recurrence, time_skips, transitions
from dynskip_jax.functional.time_skips import lstm_jump


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


_modules = (agent, depth_skips, recurrence, time_skips, transitions, lstm_jump)
for _kind in sorted(set().union(*map(_named_tuples, _modules)), key=lambda kind: kind.__qualname__):
    register_for_export(_kind)
