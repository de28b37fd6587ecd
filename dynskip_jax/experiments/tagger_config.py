"""Settings of all taggers."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from dynskip_jax.config.flags import Bounds, Rate, Size, Weight
from dynskip_jax.config.settings import Data, Settings
from dynskip_jax.experiments.layers_config import AveragedTraining, LayersModel

# What all taggers have.
TAGGER: dict[str, Any] = dict(
    commands=("predict", "explain", "gradients"),
    read="dynskip_jax.experiments.tagger_task:read_tags",
    write="dynskip_jax.experiments.tagger_task:tag_lines",
    draw="dynskip_jax.experiments.tagger_task:draw_tags",
)

# Training of agents in presets for two cores: an Adam of their own, and rewards compared between
# sentences.
AGENT: dict[str, Any] = dict(
    agent_learning_rate=0.001, entropy="exact", entropy_coef=0.01, discount=0.5, baseline="batch"
)
SMALL: dict[str, Any] = AGENT | dict(features=100, learning_rate=0.002, inverse_decay=0.05)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerData(Data):
    """The tagged sentences, and word vectors."""

    tag_column: Annotated[int, Bounds(-1000, 1000)] = -1
    """Column of the tags, counted from 0; -1: the last."""
    embeddings: Path | None = None
    """GloVe or word2vec vectors to start from, which set the embedding size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerModel(LayersModel):
    """What the network is made of; sizes of layers are those of each direction."""

    recipe: Literal["none", "ma2016", "ncrfpp", "wu2016"] = "none"
    """Details that have no flag: ma2016 (Ma & Hovy 2016: initial weights, dropout of characters,
    sentences rewarded), ncrfpp (50 filters), wu2016 (Wu et al. 2016: windows of three, small
    weights, sentences rewarded).
    """
    output: Literal["crf", "softmax"] = "crf"
    """Predict tags by a CRF, or by a softmax at each word (for many tags)."""
    embedding_features: Size = 100
    """Size of a word's embedding."""
    lowercase: bool = True
    """Lowercase words; characters keep their case."""
    digits: Literal["keep", "nine", "zero"] = "nine"
    """Replace digits of words by 9 or 0; characters keep theirs."""
    unknown_rate: Rate = 0.5
    """In training, read words that occur once in train as unknown at this rate."""
    characters: Literal["none", "cnn"] = "cnn"
    """Read a word's characters by a CNN, or not at all."""
    affixes: Annotated[int, Bounds(0, 20)] = 0
    """Embed this many of a word's first and last characters (Wu et al.: 5)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerTraining(AveragedTraining):
    """For how long and how fast."""

    inverse_decay: Weight = 0.0
    """ρ: divide the learning rate by 1 + ρ · the number of epochs before."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerSettings(Settings):
    """All settings of a tagger."""

    data: TaggerData = TaggerData()
    model: TaggerModel = TaggerModel(dropout=(0.5,))
    training: TaggerTraining = TaggerTraining(clip=5.0)
