"""Flax NNX modules that hold parameters and call `dynskip_jax.functional`."""

from dynskip_jax.lazy import importer

_MODULES = dict(
    CharAffixes="characters",
    CharCNN="characters",
    CharEmbedding="characters",
    from_flax="convert",
    from_torch="convert",
    LayersOutput="layers",
    SkipCell="cells",
    SkipLayers="layers",
    SkipLSTM="layers",
    to_flax="convert",
    to_torch="convert",
    Weights="base",
)

__all__ = [*_MODULES]


# Layers need no weights of other libraries, and few need characters.
__getattr__ = importer(__name__, _MODULES)
