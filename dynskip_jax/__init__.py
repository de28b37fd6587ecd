"""Skip-connected recurrent networks in JAX and Flax NNX.

The most important names can be imported from here, as in `from dynskip_jax import SkipLSTM`. All
others are in the packages `functional`, `rl`, `nn`, `models`, `tasks`, `training`, `devices`,
`data`, `analysis`, `commands` and `experiments`.
"""

import importlib.metadata

from dynskip_jax.lazy import importer

__version__ = importlib.metadata.version("dynskip_jax")

_MODULES = dict(
    Policy="functional", SkipCell="nn", SkipLSTM="nn", SkipLayers="nn", load_run="trained"
)

__all__ = ["__version__", *_MODULES]


# Importing JAX and Flax takes a second.
__getattr__ = importer(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted(__all__)
