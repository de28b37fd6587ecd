"""Penn Treebank language models: Gui et al. (2019), Table 3.

    python -m experiments.ptb --data DIR --preset small --compare lstm,dynamic:5
    python -m experiments.ptb explain --run-dir DIR --text "the company said it will buy"
    python -m experiments.ptb generate --run-dir DIR --words 100
    python -m experiments.ptb evaluate --run-dir DIR --data DIR --cache 500

Presets: `small` (2 x 200, the default; less than an hour on two cores for these two models), `sketch` (the
same in half the time, for sweeps), `far` (as `sketch`, for dynamic:200, which copies words of the past),
`paper` (2 x 650: for a GPU or TPU), `medium` (the same, its agent trained as in `small`), `released` (as the
authors' code does it); words read by their characters: `charlm` (Kim et al. 2016, large), `charlm_small`; the
recipe of Merity et al. (2018): `awd`, `awd_small`.

Without --data the corpus is looked for in $DYNSKIP_DATA_DIR/ptb, in the TFDS cache and at its upstream
address; with none of them the model trains on an embedded corpus, a matter of minutes. RESULTS.md has what
came out.
"""

import dataclasses
from typing import Any, Literal

from dynskip_jax.settings import path_setting, setting
from experiments.ceiling_flags import CEILING
from experiments.command_line import Command, Subcommand
from experiments.settings import CLIP, MAX_SEED, Agent, Data, Model, Numbers, Settings, Training
from experiments.text import EXPLAIN, TextFlags

# What the agents of presets that fit a CPU are trained with: an Adam of their own, since gradient descent
# with the network's rate moves them by a whole clipping norm in each step.
_AGENT = dict(agent_learning_rate=0.001, entropy_coef=0.01, discount=0.5, baseline="batch", mix=0.5)

# What the medium models of Zaremba et al. (2014) and of those who follow them share.
_LARGE = dict(
    features=650,
    num_layers=2,
    num_steps=35,
    batch_size=20,
    dropout=0.5,
    init_scale=0.05,
    learning_rate=1.0,
    clip=5.0,
)

# Zaremba et al. (2014), the medium model.
_MEDIUM = dict(**_LARGE, epochs=39, decay=1.2, decay_after=6)

# Kim et al. (2016), the large model; no dropout on what the characters make of a word.
_CHARACTERS = dict(**_LARGE, embedding="characters", dropout_inputs=0.0, epochs=25, decay=2.0, plateau=1.0)

# Merity et al. (2018), Section 5. Losses here are summed over a segment, theirs are means over its 70 steps:
# their learning rate of 30 and clipping norm of 0.25 are 30 / 70 and 0.25 x 70.
_AWD = dict(
    features=1150,
    embedding_features=400,
    num_layers=3,
    tied=True,
    num_steps=70,
    random_lengths=True,
    batch_size=20,
    dropout=0.25,
    dropout_words=0.1,
    dropout_inputs=0.4,
    dropout_outputs=0.4,
    dropout_weights=0.5,
    locked=True,
    activation_coef=2.0,
    temporal_coef=1.0,
    weight_decay=1.2e-6,
    init_scale=0.1,
    recurrent_init="by_size",
    epochs=500,
    learning_rate=30 / 70,
    clip=0.25 * 70,
    average="non_monotone",
)

# Zaremba et al. (2014), the small model.
_SMALL = dict(
    **_AGENT,
    features=200,
    num_layers=2,
    num_steps=20,
    batch_size=20,
    dropout=0.0,
    init_scale=0.1,
    learning_rate=1.0,
    decay=2.0,
    clip=5.0,
)

PRESETS: dict[str, dict[str, Any]] = {
    # Their schedule, stopped when dev no longer improves: half way through 13 epochs. λ = 0.5 was ahead of
    # the paper's 1 on dev after one epoch (176.7 against 180.8).
    "small": dict(**_SMALL, epochs=13, decay_after=4, patience=2),
    # A schedule of half that time, for sweeps.
    "sketch": dict(**_SMALL, epochs=4, decay_after=2),
    # Words of the last K are copied by the choice of an agent by content, which learns from the exact
    # gradient of what is copied alone: with λ = 0 only the previous state enters, and nothing is reinforced.
    "far": {
        **_SMALL,
        "model": "dynamic:200",
        "mix": 0.0,
        "agent": "content",
        "copy": "expected",
        "agent_features": 200,
        "agent_learning_rate": 0.003,
        "rl_coef": 0.0,
        "epochs": 4,
        "decay_after": 2,
    },
    # Gui et al. (2019), Section Language Modeling, where they say it; Zaremba et al.'s medium elsewhere.
    "paper": _MEDIUM,
    # As `paper`, its agents trained as those of `small`, except for λ.
    "medium": {**_MEDIUM, **_AGENT, "mix": 1.0},
    # Kim et al. (2016), the large and the small model.
    "charlm": _CHARACTERS,
    "charlm_small": {
        **_CHARACTERS,
        **_AGENT,
        "char_maps": (25, 50, 75, 100, 125, 150),
        "num_highway": 1,
        "features": 300,
    },
    # Merity et al. (2018), and the same parts at a size, and with rates, that fit a CPU.
    "awd": _AWD,
    "awd_small": {
        **_AWD,
        **_AGENT,
        "features": 200,
        "embedding_features": 200,
        "num_layers": 2,
        "num_steps": 35,
        "dropout": 0.1,
        "dropout_words": 0.05,
        "dropout_inputs": 0.2,
        "dropout_outputs": 0.2,
        "dropout_weights": 0.2,
        "epochs": 40,
        "learning_rate": 30 / 35,
        "clip": 0.25 * 35,
    },
    # As `paper`, with the choices of the authors' released code.
    "released": dict(
        features=650,
        num_layers=3,
        num_steps=35,
        batch_size=20,
        dropout=0.5,
        init_scale=0.05,
        epochs=100,
        learning_rate=1.0,
        decay=1.2,
        plateau=1.0,
        clip=5.0,
        agent_features=200,
        agent_input="mean",
        agent_init="normal",
        first_step="carried",
        forget_bias=1.0,
        recurrent_init="orthogonal",
        restart_buffer=True,
        reward="probability",
        rl_coef=0.3,
        entropy_coef=0.0,
        evaluation_mode="sample",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextData(Data):
    """The text; any folder with train, valid and test files will do."""

    dataset: str | None = setting(
        None, "Insist on a corpus by name: ptb, or pydoc-topics (the embedded one)."
    )
    min_count: int | None = setting(
        None,
        "Words seen less often in train are <unk>; by default none, or those seen once where dev or test "
        "have words that train has not.",
        at_least=1,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelSettings(Model):
    """What the network is made of."""

    num_layers: int = setting(2, "Layers; the last one has the time skip.", at_least=1)
    init_scale: float = setting(0.1, "Weights are drawn from U(-scale, scale).", above=0)
    recurrent_init: Literal["uniform", "by_size", "orthogonal"] = setting(
        "uniform",
        "uniform (as all weights); by_size: every weight of a layer from U(±1/√hidden), as PyTorch does; "
        "orthogonal: the top layer's W_h.",
    )
    embedding: Literal["words", "characters"] = setting(
        "words", "A table, or a CNN over each word's characters."
    )
    embedding_features: int | None = setting(
        None, "Size of the embedding, where it is not that of the first layer.", at_least=1
    )
    char_features: int = setting(15, "Size of a character's embedding.", at_least=1)
    char_maps: tuple[int, ...] = setting(
        (50, 100, 150, 200, 200, 200, 200), "Filters of each width, from 1.", at_least=1
    )
    num_highway: int = setting(2, "Highway layers above the CNN.", at_least=0)
    copy: Literal["none", "chosen", "expected"] = setting(
        "none",
        "Words of the recent past are likelier, by a gate, in models that choose among the last k states: "
        "the word that followed the state chosen (in training the loss is the mean over all choices); or, "
        "expected, those that followed all k, by the probability of each.",
    )
    tied: bool = setting(False, "The softmax's weights are the embedding's; the last layer has its size.")
    dropout_inputs: float | None = setting(
        None, "Rate on the first layer's input, if not that of dropout.", at_least=0, below=1
    )
    dropout_outputs: float | None = setting(
        None, "Rate before the softmax, if not that of dropout.", at_least=0, below=1
    )
    dropout_words: float = setting(
        0.0, "Rate at which whole words are dropped from a segment.", at_least=0, below=1
    )
    dropout_weights: float = setting(
        0.0, "Rate at which recurrent weights are dropped for a segment.", at_least=0, below=1
    )
    zoneout: tuple[float, ...] = setting(
        (0.0,),
        "Rate at which units of a state stay as they are (Krueger et al. 2017), in every layer: one rate, or "
        "that of h and that of c.",
        at_least=0,
        below=1,
    )
    locked: bool = setting(False, "The same features are dropped at all steps of a segment.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelAgent(Agent):
    """Skips over time, the agents that choose them, and how these are trained."""

    agent_init: Literal["uniform", "normal"] = setting(
        "uniform", "uniform (as all weights), or normal: N(0, 0.3) and biases 0.1."
    )
    restart_buffer: bool = setting(
        False, "Forget all but the newest state at each segment, as the released code does."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelTraining(Training):
    """For how long and how fast."""

    learning_rate: Numbers = setting(1.0, "Initial learning rate.", above=0, sweep=True)
    clip: float | None = setting(5.0, CLIP, above=0)
    num_steps: int = setting(35, "Steps of truncated back-propagation.", at_least=1)
    random_lengths: bool = setting(False, "Segments have random lengths around that.")
    decay: float = setting(
        1.0,
        "Divides the learning rate, once an epoch or as --plateau says.",
        above=0,
    )
    decay_after: int = setting(0, "Epochs before --decay begins.", at_least=0)
    plateau: float | None = setting(
        None, "--decay follows each epoch in which dev perplexity fell by less than this, and no other."
    )
    weight_decay: float = setting(0.0, "This times the weights is added to the gradient.", at_least=0)
    activation_coef: float = setting(0.0, "α of AR (Merity et al. 2018, Section 4.5).", at_least=0)
    temporal_coef: float = setting(0.0, "β of TAR.", at_least=0)
    average: Literal["none", "non_monotone", "always"] = setting(
        "none", "Averaging of the iterates: non_monotone (once dev no longer falls, NT-ASGD) or always."
    )
    average_interval: int = setting(5, "n of NT-ASGD.", at_least=1)
    start_from: str | None = path_setting(
        None, "A finished run folder of the same model, whose parameters are trained on (fine-tuning)."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageSettings(Settings):
    """All settings of the language models."""

    data: TextData = dataclasses.field(default_factory=TextData)
    model: LanguageModelSettings = dataclasses.field(default_factory=LanguageModelSettings)
    agent: LanguageModelAgent = dataclasses.field(default_factory=LanguageModelAgent)
    training: LanguageModelTraining = dataclasses.field(default_factory=LanguageModelTraining)


@dataclasses.dataclass(frozen=True)
class GenerateFlags(TextFlags):
    """Flags of `generate`."""

    model: str | None = setting(None, "Which of several models; by default the last.")
    text: str = setting("", "The beginning, to be continued.")
    words: int = setting(60, "How many words to write.", at_least=1)
    temperature: float = setting(0.8, "Below 1 likely words become likelier.", above=0)
    key: int = setting(
        0, "The seed of the words: another one writes another text.", at_least=0, at_most=MAX_SEED
    )


@dataclasses.dataclass(frozen=True)
class EvaluateFlags:
    """Flags of `evaluate`; of several values, separated by commas, the best on dev is taken."""

    run_dir: str = path_setting(help="A finished run folder, of one model or of several compared.")
    data: str | None = path_setting(
        None, "Folder of the data that the run was trained on; by default where it was found then."
    )
    method: Literal["cache", "dynamic"] = setting(
        "cache",
        "cache: words of the recent past are likelier (Grave et al. 2017); dynamic: parameters follow "
        "the text (Krause et al. 2018).",
    )
    cache: int = setting(500, "N, how many words the cache keeps.", at_least=1)
    flatness: tuple[float, ...] = setting(
        (0, 0.1, 0.2, 0.3, 0.5, 0.8), "θ of the cache, how much alike states count.", at_least=0
    )
    weight: tuple[float, ...] = setting(
        (0.02, 0.05, 0.1, 0.15, 0.2, 0.3), "The cache's share in a prediction.", at_least=0, below=1
    )
    samples: int = setting(
        1,
        "With the cache, predictions that are averaged, their agents' choices sampled; 1: agents choose "
        "as in training.",
        at_least=1,
    )
    learning_rate: tuple[float, ...] = setting(
        (0.00005, 0.0001),
        "η of dynamic evaluation, how far parameters follow each segment.",
        at_least=0,
    )
    decay: tuple[float, ...] = setting((0.002,), "Of dynamic evaluation, how far they return.", at_least=0)
    steps: int = setting(5, "Words of a segment, after each of which parameters change.", at_least=1)


COMMAND = Command(
    name="ptb",
    about=__doc__,
    settings=LanguageSettings,
    presets=PRESETS,
    default_model="dynamic:5",
    experiment="experiments.ptb_experiment:PTB",
    default_preset=lambda given: "small",
    subcommands={
        "explain": EXPLAIN,
        "ceiling": CEILING,
        "generate": Subcommand(
            "Writes text with a trained model.", GenerateFlags, "experiments.ptb_text:generate"
        ),
        "evaluate": Subcommand(
            "Measures perplexity with a neural cache, or with parameters that follow the text.",
            EvaluateFlags,
            "experiments.ptb_evaluate:evaluate",
        ),
    },
)

if __name__ == "__main__":
    from experiments import cli, ptb

    cli.run_main(lambda: cli.main(ptb.COMMAND))
