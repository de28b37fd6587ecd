"""Flax NNX modules that own parameters and call `dynskip_jax.functional`."""

from dynskip_jax.nn.cells import DynamicSkipLSTMCell, SkipCell
from dynskip_jax.nn.char_embedding import CharEmbedding
from dynskip_jax.nn.char_features import CharAffixes, CharCNN, CharLSTM
from dynskip_jax.nn.convert import from_flax, from_keras, from_torch, to_flax, to_keras, to_torch
from dynskip_jax.nn.layers import SkipLayer, merge_directions
from dynskip_jax.nn.stack import SkipStack, StackOutput
from dynskip_jax.nn.weights import Weights

__all__ = [
    "CharAffixes",
    "CharCNN",
    "CharEmbedding",
    "CharLSTM",
    "DynamicSkipLSTMCell",
    "SkipCell",
    "SkipLayer",
    "SkipStack",
    "StackOutput",
    "Weights",
    "from_flax",
    "from_keras",
    "from_torch",
    "merge_directions",
    "to_flax",
    "to_keras",
    "to_torch",
]
