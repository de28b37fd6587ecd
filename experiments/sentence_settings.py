"""Settings that all experiments on sentences share; nothing of JAX is imported."""

import dataclasses
from typing import Literal

from dynskip_jax.settings import path_setting, setting
from experiments.settings import Data, EvenAgent, Model, Settings, Training

# What agents are trained with where the paper is left: an Adam with a rate of their own, and an entropy that
# does not outweigh the one reward of a long text.
AGENT = dict(agent_learning_rate=0.001, baseline="batch", entropy="exact", entropy_coef=0.001)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceData(Data):
    """The texts."""

    min_count: int = setting(1, "Words seen less often in train are <unk>.", at_least=1)
    max_words: int | None = setting(
        None, "Only so many words of train, the most frequent ones, are not <unk>.", at_least=1
    )
    buckets: int = setting(8, "To how many lengths batches are padded.", at_least=1)
    embeddings: str | None = path_setting(
        None,
        "A text file of word vectors (GloVe, word2vec) to start from; --embedding-features is their width.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceModel(Model):
    """What the network is made of."""

    num_layers: int = setting(1, "Layers; the last one has the time skip.", at_least=1)
    bidirectional: bool = setting(False, "Two directions in every layer.")
    output_gate: bool = setting(True, "Without it the transition's output gate is fixed at 1.")
    pooling: Literal["last", "mean", "max"] = setting(
        "last", "What of the states is classified: that after the last word (the papers), mean or maximum."
    )
    embedding_features: int = setting(300, "Size of a word's vector.", at_least=1)
    embedding_scale: float = setting(0.25, "Words without a vector begin with U(-scale, scale).", above=0)
    train_embeddings: bool = setting(True, "Words' vectors are trained on.")
    dropout_inputs: float | None = setting(
        None, "Rate on words' vectors, if not that of dropout.", at_least=0, below=1
    )
    dropout_hidden: float | None = setting(
        None, "Rate between layers, if not that of dropout.", at_least=0, below=1
    )
    dropout_weights: float = setting(
        0.0, "Rate at which recurrent weights are dropped for a batch.", at_least=0, below=1
    )
    locked: bool = setting(False, "The same features are dropped at all words of a text.")
    zoneout: float = setting(0.0, "Rate at which units of a state stay as they are.", at_least=0, below=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceAgent(EvenAgent):
    """Skips over time, the agents that choose them, and how these are trained."""

    max_jump: int = setting(5, "LSTM-Jump: K, how far it jumps at most.", at_least=1)
    read_steps: int = setting(20, "LSTM-Jump: R, words read between jumps.", at_least=1)
    max_jumps: int = setting(10, "LSTM-Jump: N, jumps in a text.", at_least=1)
    update_bias: float = setting(1.0, "Skip RNN: initial bias of its gate; the smaller, the less is read.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceTraining(Training):
    """For how long and how fast."""

    batch_size: int = setting(50, "Texts of a training step.", at_least=1)
    optimizer: Literal["adam", "adagrad", "sgd"] = setting("adam", "How gradients become steps.")
    weight_decay: float = setting(0.0, "This times the weights is added to the gradient.", at_least=0)
    decay: float = setting(1.0, "Divides the learning rate, once an epoch.", above=0)
    decay_after: int = setting(0, "Epochs before --decay begins.", at_least=0)
    average: Literal["none", "non_monotone", "always"] = setting(
        "none",
        "Averaging of the iterates: non_monotone (once dev no longer improves, NT-ASGD) or always; of either "
        "kind after the epochs of --average-after.",
    )
    average_interval: int = setting(5, "n of NT-ASGD.", at_least=1)
    average_after: int = setting(0, "Epochs that are never averaged.", at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceSettings(Settings):
    """All settings of experiments on sentences."""

    data: SentenceData = dataclasses.field(default_factory=SentenceData)
    model: SentenceModel = dataclasses.field(default_factory=SentenceModel)
    agent: SentenceAgent = dataclasses.field(default_factory=SentenceAgent)
    training: SentenceTraining = dataclasses.field(default_factory=SentenceTraining)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierModel(SentenceModel):
    """What the network is made of."""

    dropout_words: float = setting(0.0, "Rate at which words are dropped.", at_least=0, below=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierTraining(SentenceTraining):
    """For how long and how fast."""

    activation_coef: float = setting(0.0, "α of AR (Merity et al. 2018, Section 4.6).", at_least=0)
    temporal_coef: float = setting(0.0, "β of TAR.", at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierSettings(SentenceSettings):
    """All settings of experiments that classify sentences."""

    model: ClassifierModel = dataclasses.field(default_factory=ClassifierModel)
    training: ClassifierTraining = dataclasses.field(default_factory=ClassifierTraining)
