"""Flax NNX modules that hold parameters and call `dynskip_jax.functional`."""

from dynskip_jax.nn.base import Weights as Weights
from dynskip_jax.nn.cells import SkipCell as SkipCell
from dynskip_jax.nn.characters import CharAffixes as CharAffixes
from dynskip_jax.nn.characters import CharCNN as CharCNN
from dynskip_jax.nn.characters import CharEmbedding as CharEmbedding
from dynskip_jax.nn.convert import from_flax as from_flax
from dynskip_jax.nn.convert import from_torch as from_torch
from dynskip_jax.nn.convert import to_flax as to_flax
from dynskip_jax.nn.convert import to_torch as to_torch
from dynskip_jax.nn.layers import LayersOutput as LayersOutput
from dynskip_jax.nn.layers import SkipLayers as SkipLayers
from dynskip_jax.nn.layers import SkipLSTM as SkipLSTM
