"""Settings that the taggers of all corpora share, and their commands; nothing of JAX is imported."""

import dataclasses
from typing import Literal

from dynskip_jax.settings import path_setting, setting
from experiments.ceiling_flags import CEILING
from experiments.command_line import Subcommand
from experiments.settings import CLIP, Agent, Data, Model, Settings, Training
from experiments.text import EXPLAIN, TextFlags


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerData(Data):
    """The tagged sentences, and word vectors."""

    data_seed: int = setting(0, "Draws the sentences of splits that a corpus has not.", at_least=0)
    embeddings: str | None = path_setting(
        None,
        "A text file of GloVe's or word2vec's, with vectors of word_features numbers: where words begin. "
        "Words of dev and test that it has are known then. By default U(±√(3/d)), and words of train alone.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerModel(Model):
    """What the network is made of; sizes of layers are those of each direction."""

    num_layers: int = setting(
        1, "Layers in both directions; the last one has the skip over time.", at_least=1
    )
    dropout: float = setting(
        0.5, "Rate on each layer's input and before the tags' scores.", at_least=0, below=1
    )
    dropout_inputs: float | None = setting(
        None, "Rate on the first layer's input, if not that of dropout.", at_least=0, below=1
    )
    dropout_hidden: Literal["all", "ends"] = setting(
        "all", "all: between all layers; ends: behind the first and the last one alone (Wu et al. 2016)."
    )
    dropout_characters: float = setting(
        0.0, "Rate on the embeddings of characters, before a CNN or LSTM reads them.", at_least=0, below=1
    )
    init_scale: float = setting(
        1.0, "Times 1/√fan-in, the deviation of weights on inputs; those on states are orthogonal.", above=0
    )
    output: Literal["crf", "softmax"] = setting(
        "crf", "A CRF over the sentence, or a softmax at each word: for many tags."
    )
    word_features: int = setting(100, "d, size of a word's embedding.", at_least=1)
    lowercase: bool = setting(True, "Words are known in lower case; characters stay as they are.")
    digits: Literal["keep", "nine", "zero"] = setting(
        "nine", "Digits of words become 9, or 0; characters stay as they are."
    )
    min_count: int = setting(1, "Words that train has fewer times are unknown.", at_least=1)
    unknown_rate: float = setting(
        0.5,
        "How often a word seen once in train is read as the unknown one in training.",
        at_least=0,
        below=1,
    )
    characters: Literal["none", "cnn", "lstm"] = setting(
        "cnn", "What reads a word's characters: nothing, a CNN, or an LSTM in both directions."
    )
    char_features: int = setting(30, "Size of a character's embedding.", at_least=1)
    char_outputs: int = setting(
        30, "Filters of the CNN, or size of both states of the LSTM together.", at_least=1
    )
    char_width: int = setting(3, "Characters that a filter covers.", at_least=1)
    affixes: int = setting(
        0,
        "How many of a word's first and last characters stand beside it, embedded (Wu et al.: 5).",
        at_least=0,
    )
    affix_features: int = setting(5, "Size of their embeddings.", at_least=1)
    capital_features: int = setting(
        0, "Size of the embedding of which letters are capitals; 0: none.", at_least=0
    )
    column_features: int = setting(
        20, "Size of the embedding of each other column that is read (--columns of conll2003).", at_least=1
    )
    window: int = setting(
        1, "Words that stand side by side, each with a logistic gate (Wu et al.: 3); 1: none.", at_least=1
    )
    word_length: int = setting(
        20, "Characters of a word that are read: of longer ones the first and the last half.", at_least=2
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerAgent(Agent):
    """Skips over time, the agents that choose them, and how these are trained."""

    reward_of: Literal["sentence", "words"] = setting(
        "sentence",
        "Agents are rewarded for the whole sequence of tags (Gui et al.), or at each word for its tag: with "
        "a CRF its marginal.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerTraining(Training):
    """For how long and how fast."""

    epochs: int = setting(20, "Passes over the training data; a run folder's may grow.", at_least=1)
    batch_size: int = setting(20, "Sentences of a training step, of like lengths.", at_least=1)
    clip: float | None = setting(5.0, CLIP, above=0)
    patience: int = setting(
        5, "Stop after this many epochs without a better dev result; 0 never stops.", at_least=0
    )
    optimizer: Literal["adam", "sgd"] = setting("adam", "Adam, or gradient descent.")
    momentum: float = setting(0.0, "Of gradient descent.", at_least=0, below=1)
    decay: float = setting(
        0.0, "ρ: the learning rate is divided by 1 + ρ times the epochs before.", at_least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerSettings(Settings):
    """All settings of a tagger."""

    data: TaggerData = dataclasses.field(default_factory=TaggerData)
    model: TaggerModel = dataclasses.field(default_factory=TaggerModel)
    agent: TaggerAgent = dataclasses.field(default_factory=TaggerAgent)
    training: TaggerTraining = dataclasses.field(default_factory=TaggerTraining)


@dataclasses.dataclass(frozen=True)
class TagFlags(TextFlags):
    """Flags of `predict`."""

    model: str | None = setting(None, "Which of several models; by default the last.")
    input: str | None = path_setting(None, "A file; by default standard input.")
    format: Literal["text", "columns"] = setting(
        "text",
        "What is read: text, words apart by blanks, a sentence on each line; or columns, a word on each "
        "line, sentences apart by empty lines: their lines are kept, and get one more column.",
    )
    word_column: int = setting(0, "Of columns, the one with the words, counted from 0.", at_least=0)
    output: Literal["columns", "json"] = setting(
        "columns", "What is written: a word and its tag on each line, or a JSON object for each sentence."
    )
    scheme: Literal["IOB1", "BIO2", "BIOES"] = setting("BIO2", "In which entities are written.")
    at_once: int | None = setting(
        None,
        "Sentences that are read before the first is written; by default 256, and 1 at a terminal. 1 writes "
        "each as soon as it is read.",
        at_least=1,
    )
    max_words: int = setting(
        400, "Of longer sentences so many words are read at a time, for memory's sake.", at_least=1
    )


@dataclasses.dataclass(frozen=True)
class CompareFlags:
    """Flags of `compare`."""

    run_dir: str = path_setting(help="A finished run folder of several models compared.")
    data: str | None = path_setting(None, "Folder of the data that the run was trained on.")
    samples: int = setting(10_000, "Resamples of the bootstrap.", at_least=1)


@dataclasses.dataclass(frozen=True)
class GradientFlags(TextFlags):
    """Flags of `gradients`."""

    data: str | None = path_setting(None, "Folder of the data that the run was trained on.")
    steps: int = setting(20, "T: the loss is that of the T-th word.", at_least=2)


SUBCOMMANDS = {
    "predict": Subcommand(
        "Tags text, or the words of columns, and writes columns or JSON lines.",
        TagFlags,
        "experiments.tagger_predict:predict",
    ),
    "explain": EXPLAIN,
    "ceiling": CEILING,
    "compare": Subcommand(
        "Says of each model whether it differs from the first on test: a paired bootstrap over sentences.",
        CompareFlags,
        "experiments.tagger_compare:compare",
    ),
    "gradients": Subcommand(
        "Shows how much of the gradient of the loss at a word reaches back to each earlier state.",
        GradientFlags,
        "experiments.tagger_gradients:gradients",
    ),
}

# As the presets of language models that fit a CPU: an Adam of their own; a reward at each word, compared with
# that of the other sentences.
AGENT = dict(
    agent_learning_rate=0.001,
    reward_of="words",
    entropy="exact",
    entropy_coef=0.01,
    discount=0.5,
    baseline="batch",
    mix=0.5,
)
