"""Flax NNX modules that own parameters and call `dynskip_jax.functional`."""

from dynskip_jax.nn.cells import DynamicSkipLSTMCell, SkipLSTMCell
from dynskip_jax.nn.layers import SkipLSTM
from dynskip_jax.nn.stack import SkipLSTMStack, StackOutput

__all__ = ["DynamicSkipLSTMCell", "SkipLSTM", "SkipLSTMCell", "SkipLSTMStack", "StackOutput"]
