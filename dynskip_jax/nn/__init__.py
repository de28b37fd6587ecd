"""Flax NNX modules that hold parameters and call `dynskip_jax.functional`."""

from dynskip_jax.nn.base import Weights
from dynskip_jax.nn.cells import SkipCell
from dynskip_jax.nn.characters import CharAffixes, CharCNN, CharEmbedding, CharLSTM
from dynskip_jax.nn.convert import (
    from_flax,
    from_keras,
    from_keras_bidirectional,
    from_torch,
    to_flax,
    to_keras,
    to_torch,
)
from dynskip_jax.nn.layers import SkipLayers, SkipLSTM

__all__ = [
    "CharAffixes",
    "CharCNN",
    "CharEmbedding",
    "CharLSTM",
    "SkipCell",
    "SkipLSTM",
    "SkipLayers",
    "Weights",
    "from_flax",
    "from_keras",
    "from_keras_bidirectional",
    "from_torch",
    "to_flax",
    "to_keras",
    "to_torch",
]
