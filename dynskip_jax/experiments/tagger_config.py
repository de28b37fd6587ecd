"""Settings of all taggers."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal

from dynskip_jax.config import Bounds, Count, Layers, Natural, Rate, Size, Weight
from dynskip_jax.errors import UserError
from dynskip_jax.settings import Data, Model, Settings, Training

COMMANDS = ("predict", "explain", "oracle", "compare", "gradients")

# Training of agents as in the presets of language models that fit a CPU: an Adam of their own. The reward at
# each word is compared with that of the other sentences.
AGENT: dict[str, Any] = dict(
    agent_learning_rate=0.001,
    entropy="exact",
    entropy_coef=0.01,
    discount=0.5,
    baseline="batch",
    mix=0.5,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerData(Data):
    """The tagged sentences, and word vectors."""

    tag_column: Annotated[int, Bounds(-1000, 1000)] = -1
    """Column of the tags, counted from 0; -1: the last."""
    min_count: Count = 1
    """Words seen less often in train are unknown."""
    embeddings: Path | None = None
    """GloVe or word2vec vectors to start from, which set the embedding size."""
    split_seed: Natural = 0
    """Seed that draws missing splits from train."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerModel(Model):
    """What the network is made of; sizes of layers are those of each direction."""

    num_layers: Layers = 1
    """Number of layers; the last one has the time skip."""
    dropout: tuple[Rate, ...] = (0.5,)
    """Dropout rate, or three: of the first layer's input, between layers, before the output layer; or four:
    with that after the first layer second."""
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
    characters: Literal["none", "cnn", "lstm"] = "cnn"
    """Read a word's characters by a CNN or a bidirectional LSTM, or not at all."""
    affixes: Annotated[int, Bounds(0, 20)] = 0
    """Embed this many of a word's first and last characters (Wu et al.: 5)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerTraining(Training):
    """For how long and how fast."""

    clip: Annotated[float, Bounds(above=0)] | None = 5.0
    """Largest norm of the gradient; agents that learn from rewards are clipped separately."""
    optimizer: Literal["adam", "adagrad", "sgd", "momentum"] = "adam"
    """Optimizer of the network; momentum: gradient descent with momentum 0.9."""
    inverse_decay: Weight = 0.0
    """ρ: divide the learning rate by 1 + ρ · the number of epochs before."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerSettings(Settings):
    """All settings of a tagger."""

    data: TaggerData = TaggerData()
    model: TaggerModel = TaggerModel()
    training: TaggerTraining = TaggerTraining()

    def __post_init__(self) -> None:
        """Check that settings do not contradict each other."""
        super().__post_init__()
        if len(self.model.dropout) not in (1, 3, 4):
            raise UserError("--dropout takes one rate, three or four: see --help")
