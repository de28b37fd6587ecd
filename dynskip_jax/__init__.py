"""Skip-connected recurrent networks in JAX and Flax NNX.

The most important names can be imported from here, as in `from dynskip_jax import SkipLSTM`. All
others are in the packages `functional`, `rl`, `nn`, `models`, `tasks`, `training`, `devices`,
`data`, `analysis`, `commands` and `experiments`.
"""

import importlib
import importlib.metadata
from typing import Any

__version__ = importlib.metadata.version("dynskip_jax")

_MODULES = dict(
    Policy="functional", SkipCell="nn", SkipLSTM="nn", SkipLayers="nn", load_run="trained"
)

__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    """Import and return a public name on first access, because importing JAX and Flax takes a
    second.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"dynskip_jax.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
