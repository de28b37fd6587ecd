"""Settings of all experiments on sentences."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from dynskip_jax.config.flags import Count, Rate, Size
from dynskip_jax.config.settings import Agent, Data, Settings
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.layers_config import AveragedTraining, RegularizedModel

# Presets that depart from the papers. The entropy does not outweigh the single reward of a long
# text.
SMALL: dict[str, Any] = dict(
    agent_learning_rate=0.001, baseline="batch", entropy="exact", entropy_coef=0.001, batch_size=50
) | dict(locked=True, clip=1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceData(Data):
    """The texts."""

    max_words: Count | None = None
    """Keep this many words of train, the most frequent ones; others are unknown."""
    embeddings: Path | None = None
    """GloVe or word2vec vectors to start from, which set the embedding size; words with one are
    known.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviewData(SentenceData):
    """The texts."""

    max_length: Count = 400
    """Crop texts to this many words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceModel(RegularizedModel):
    """What the network is made of."""

    recipe: Literal["none", "awd"] = "none"
    """awd: AR and TAR, penalties on large and on changing outputs (Merity et al. 2018)."""
    bidirectional: bool = False
    """Read in both directions in every layer."""
    pooling: Literal["last", "mean", "max"] = "last"
    """Classify the last state (the papers), or the mean or maximum over states."""
    embedding_features: Size = 300
    """Size of a word's embedding."""
    train_embeddings: bool = True
    """Train the words' embeddings."""
    unknown_rate: Rate = 0.5
    """In training, read words that occur once in train as unknown at this rate."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceAgent(Agent):
    """Skips over time, their agents, and how these are trained."""

    max_jump: Count = 5
    """K of LSTM-Jump, the longest jump."""
    read_steps: Count = 20
    """R of LSTM-Jump, words read between jumps."""
    max_jumps: Count = 10
    """N of LSTM-Jump, the most jumps in a text."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceSettings(Settings):
    """All settings of experiments on sentences."""

    data: SentenceData = SentenceData()
    model: SentenceModel = SentenceModel()
    agent: SentenceAgent = SentenceAgent()
    training: AveragedTraining = AveragedTraining()

    def __post_init__(self) -> None:
        super().__post_init__()
        # Random vectors would stay random.
        if not self.model.train_embeddings and self.data.embeddings is None:
            raise UserError(
                "words' vectors that are not trained are of no use unless they are read: give "
                "--embeddings FILE, or --train-embeddings"
            )
