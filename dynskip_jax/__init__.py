"""Skip-connected recurrent networks in JAX and Flax NNX.

The most important names can be imported from here, as in `from dynskip_jax import SkipLSTM`. All
others are in the packages beside this file.
"""

import importlib.metadata

import lazy_loader

__version__ = importlib.metadata.version("dynskip_jax")

# Importing JAX and Flax takes a second.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
