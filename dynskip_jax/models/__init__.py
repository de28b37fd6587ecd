"""Task models: Flax NNX modules made of `dynskip_jax.nn`."""

import lazy_loader

# A model needs no other models.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
