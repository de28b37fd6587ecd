"""Flax NNX modules that own parameters and call `dynskip_jax.functional`."""

from dynskip_jax.nn.cells import DynamicSkipLSTMCell, SkipLSTMCell
from dynskip_jax.nn.char_embedding import CharEmbedding
from dynskip_jax.nn.layers import SkipLSTM
from dynskip_jax.nn.stack import SkipLSTMStack, StackOutput

__all__ = ["CharEmbedding", "DynamicSkipLSTMCell", "SkipLSTM", "SkipLSTMCell", "SkipLSTMStack", "StackOutput"]
