"""Flax NNX modules that hold parameters and call `dynskip_jax.functional`."""

import lazy_loader

# Layers need no weights of other libraries, and few need characters.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
