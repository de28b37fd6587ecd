"""Penn Treebank language models: Gui et al. (2019), Table 3.

    python -m experiments.ptb --data DIR --preset small --compare lstm,dynamic:5
    python -m experiments.ptb explain --run-dir DIR --text "the company said it will buy"
    python -m experiments.ptb generate --run-dir DIR --words 100
    python -m experiments.ptb evaluate --run-dir DIR --data DIR --cache 500

Test perplexity and wall time of a seed on one to two CPU cores, other jobs running:

    preset        what it is                                  model        test            time
    small         2 x 200, no dropout, the default            lstm         115.11 ± 0.45   20 to 29 min
                                                              dynamic:5    111.59 ± 0.54   20 to 29 min
    sketch        the same in 4 epochs, for sweeps            lstm         114.91 ± 0.64   15 to 47 min
    far           as sketch; dynamic:200 copies words         dynamic:200  102.76 ± 2.46   20 to 39 min
    paper         2 x 650, dropout 0.5, 39 epochs; here 20    lstm         83.91           2 h 3 min
                                                              dynamic:5    84.09           3 h 6 min
    medium        the same, its agent trained as in small     not measured
    released      as the authors' code does it                not measured
    charlm        words read by their characters, large       not measured
    charlm_small  the same, small (Kim et al. 2016)           not measured
    awd           the recipe of Merity et al. (2018)          not measured
    awd_small     the same, small                             not measured

Without --data the corpus is looked for in $DYNSKIP_DATA_DIR/ptb, in the TFDS cache and at its upstream
address. If none has it, or with --dataset pydoc-topics, the model trains on an embedded corpus in a few
minutes.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Int

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.experiment import Experiment
from dynskip_jax.experiments.model_spec import ModelSpec
from dynskip_jax.experiments.settings import Agent, Data, Model, Numbers, Settings, Training
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import ON, Other, path_setting, setting
from dynskip_jax.training.model_names import COPYING, WITH_K

if TYPE_CHECKING:
    from dynskip_jax.data import LanguageCorpus, Vocabulary
    from dynskip_jax.models import LanguageModel
    from dynskip_jax.tasks import LanguageModelling, Learner
    from dynskip_jax.trained import Trained
    from dynskip_jax.training.schedule import Schedule

pieces = LazyModule("dynskip_jax.data.language")
plots = LazyModule("dynskip_jax.analysis.plots")
asgd = LazyModule("dynskip_jax.training.asgd")
characters_data = LazyModule("dynskip_jax.data.vocabularies")
data_lib = LazyModule("dynskip_jax.data")
embedded = LazyModule("dynskip_jax.data.corpora")
loading = LazyModule("dynskip_jax.trained")
finished = LazyModule("dynskip_jax.training.trained")
functional = LazyModule("dynskip_jax.functional")
initializers = LazyModule("dynskip_jax.nn.initializers")
jax = LazyModule("jax")
jnp = LazyModule("jax.numpy")
models_lib = LazyModule("dynskip_jax.models")
nn_lib = LazyModule("dynskip_jax.nn")
nnx = LazyModule("flax.nnx")
reading = LazyModule("dynskip_jax.analysis.reading")
schedules = LazyModule("dynskip_jax.training.schedule")
sentence_data = LazyModule("dynskip_jax.data.sentences")
tasks_lib = LazyModule("dynskip_jax.tasks")
vocabularies = LazyModule("dynskip_jax.data.vocabularies")

# Training of the agents in presets that fit a CPU. They have their own Adam, because gradient descent with
# the network's rate moves them by the whole clipping norm in each step.
_AGENT = dict(agent_learning_rate=0.001, entropy_coef=0.01, discount=0.5, baseline="batch", mix=0.5)

# Settings that the medium model of Zaremba et al. (2014) and the models that follow it share.
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

# Kim et al. (2016), the large model; no dropout on the word embeddings made from characters.
_CHARACTERS = dict(**_LARGE, embedding="characters", dropout_inputs=0.0, epochs=25, decay=2.0, plateau=1.0)

# Merity et al. (2018), Section 5. Losses here are summed over a segment, theirs are means over its 70 steps.
# Their learning rate of 30 and clipping norm of 0.25 therefore become 30 / 70 and 0.25 x 70.
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
    # The schedule of Zaremba et al., with early stopping on dev about half way through the 13 epochs. After
    # one epoch, λ = 0.5 has a better dev perplexity than the paper's 1 (176.7 against 180.8).
    "small": dict(**_SMALL, epochs=13, decay_after=4, patience=2),
    # A schedule that takes half the time, for sweeps.
    "sketch": dict(**_SMALL, epochs=4, decay_after=2),
    # Copies words of the last K steps with the probabilities of a dot-product agent. The agent learns only
    # from the exact gradient of copying: with λ = 0 only the previous state enters, and there are no rewards.
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
    # Gui et al. (2019), Section Language Modeling; values that it does not give are those of the medium model
    # of Zaremba et al. (2014).
    "paper": _MEDIUM,
    # Like `paper`, with agents that are trained as in `small`, except for λ.
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
    # Merity et al. (2018), and the same recipe with sizes and rates that fit a CPU.
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
    # Like `paper`, with the settings of the authors' released code.
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

    dataset: str | None = shared.dataset(None)
    min_count: int | None = shared.min_count(None)
    vocabulary: Literal["words", "characters", "bpe"] = setting(
        "words", "Predict words, single characters, or byte pairs learned from train."
    )
    vocabulary_size: int = setting(
        4000, "Largest number of byte pairs to learn.", at_least=258, needs={"vocabulary": "bpe"}
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelSettings(Model):
    """What the network is made of."""

    num_layers: int = shared.num_layers(2)
    init_scale: float = setting(0.1, "Draw weights from U(-scale, scale).", above=0)
    recurrent_init: Literal["uniform", "by_size", "orthogonal"] = setting(
        "uniform",
        "by_size: draw each layer's weights from U(±1/√hidden), as PyTorch does; orthogonal: W_h of the top "
        "layer.",
    )
    embedding: Literal["words", "characters"] = setting(
        "words", "Embed words by a table, or by a CNN over their characters."
    )
    embedding_features: int | None = shared.embedding_features(None, needs={"embedding": "words"})
    char_features: int = shared.char_features(15, needs={"embedding": "characters"})
    char_maps: tuple[int, ...] = setting(
        (50, 100, 150, 200, 200, 200, 200),
        "Filters of each width, from 1.",
        at_least=1,
        needs={"embedding": "characters"},
    )
    num_highway: int = setting(
        2, "Highway layers above the CNN.", at_least=0, needs={"embedding": "characters"}
    )
    copy: Literal["none", "chosen", "expected"] = setting(
        "none",
        "Copy words of the last k steps: the one after the chosen state, or all by their probability "
        "(expected).",
        needs={"model": COPYING},
    )
    tied: bool = setting(
        False, "Share the softmax's weights with the embedding; the last layer has its size."
    )
    dropout_inputs: float | None = shared.dropout_inputs(None)
    dropout_outputs: float | None = setting(
        None, "Dropout rate before the softmax; by default --dropout.", at_least=0, below=1
    )
    dropout_words: float = shared.dropout_words(0.0)
    dropout_weights: float = shared.dropout_weights(0.0)
    zoneout: tuple[float, ...] = shared.zoneout((0.0,))
    locked: bool = shared.locked(False, needs={"dropout": ON, "dropout_inputs": ON, "dropout_outputs": ON})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelAgent(Agent):
    """Skips over time, their agents, and how these are trained."""

    agent_init: Literal["uniform", "normal"] = shared.agent_init("uniform")
    restart_buffer: bool = setting(
        False,
        "Forget all but the newest state at each segment, as the released code does.",
        needs={"model": WITH_K},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelTraining(Training):
    """For how long and how fast."""

    learning_rate: Numbers = shared.learning_rate(1.0)
    clip: float | None = shared.clip(5.0)
    num_steps: int = setting(35, "Steps of truncated back-propagation.", at_least=1)
    random_lengths: bool = setting(False, "Draw the lengths of segments around --num-steps.")
    decay: float = shared.decay(1.0)
    decay_after: int = shared.decay_after(0, needs=({"decay": Other((1,))}, {"plateau": None}))
    plateau: float | None = setting(
        None,
        "Apply --decay only after epochs in which dev perplexity fell by less than this.",
        needs={"decay": Other((1,))},
    )
    weight_decay: float = shared.weight_decay(0.0)
    activation_coef: float = shared.activation_coef(0.0)
    temporal_coef: float = shared.temporal_coef(0.0)
    average: Literal["none", "non_monotone", "always"] = shared.average("none")
    average_interval: int = shared.average_interval(5)
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


# Dev and test perplexities of Gui et al. (2019), Table 3, averages of ten runs; and those of the recipe of
# Merity et al. (2018).
PUBLISHED = {
    "words": {
        "lstm": ("paper: Regularized LSTM", 86.2, 82.7),
        "fixed:3": ("paper: fixed skip 3", 85.3, 81.5),
        "fixed:5": ("paper: fixed skip 5", 86.2, 82.0),
        "attention:5": ("paper: attention", 85.1, 81.4),
        "dynamic:5": ("paper: dynamic skip, λ=1, K=5", 82.5, 78.5),
    },
    "characters": {
        "lstm": ("paper: CharLM", 82.0, 78.9),
        "fixed:3": ("paper: CharLM, fixed skip 3", 83.6, 80.2),
        "fixed:5": ("paper: CharLM, fixed skip 5", 84.9, 80.9),
        "attention:5": ("paper: CharLM with attention", 82.2, 79.0),
        "dynamic:5": ("paper: CharLM, dynamic skip, λ=1, K=5", 79.9, 76.5),
    },
    "awd": {"lstm": ("Merity et al. (2018): AWD-LSTM", 60.0, 57.3)},
}
PUBLISHED_SIZES = {"words": (2, 650), "characters": (2, 650), "awd": (3, 1150)}  # (layers, units)

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_NEXT_WORDS = 5  # number of most probable next words that are shown


class PTB(Experiment):
    """See `Experiment`."""

    name = "ptb"
    settings_type = LanguageSettings
    presets = PRESETS
    default_model = "dynamic:5"
    commands = ("explain", "oracle", "generate", "evaluate")
    columns = {  # noqa: RUF012 (read only)
        "dev_perplexity": ("dev perplexity", ".2f"),
        "test_perplexity": ("test perplexity", ".2f"),
        "test_perplexity_sampled": ("test, sampled", ".2f"),
        "test_perplexity_averaged": ("test, averaged", ".2f"),
        "test_word_perplexity": ("per word", ".2f"),
        "test_bits_per_character": ("bits/char", ".3f"),
    }
    curves = ("dev_perplexity",)
    samples = 10
    sample_text = "the company said it will buy a N N stake in the bank"
    final_rows = 1  # one stream for each split: tokens have their full context

    def __init__(self, settings: LanguageSettings):
        super().__init__(settings)
        if settings.data.vocabulary != "words":  # makes room for further columns
            self.columns = {name: of for name, of in self.columns.items() if not name.endswith("_sampled")}

    def load_data(self) -> LanguageCorpus:
        """See `Experiment`."""
        data = self.settings.data
        split = None
        if data.vocabulary != "words":
            split = pieces.Pieces(data.vocabulary, data.vocabulary_size)
        return data_lib.find_language_corpus(data.data, data.dataset, min_count=data.min_count, pieces=split)

    def vocabulary_type(self) -> type[Any]:
        """See `Experiment`."""
        return vocabularies.LanguageVocabulary

    def check(self) -> None:
        """See `Experiment`."""
        super().check()
        data = self.settings.data
        if data.vocabulary == "bpe" and data.min_count is not None:
            raise UserError("--vocabulary bpe reads every text without <unk>: leave out --min-count")
        if data.vocabulary != "words" and self.settings.model.embedding == "characters":
            raise UserError(
                f"--embedding characters reads the characters of words, not {data.vocabulary}: use "
                "--embedding words, or leave out --vocabulary"
            )

    def describe_data(self, data: LanguageCorpus) -> Sequence[str]:
        """See `Experiment`; the kind of the tokens, and which of them are unknown and how many."""
        return data.about

    def vocabulary(self, data: LanguageCorpus) -> Vocabulary:
        """See `Experiment`."""
        return data.vocabulary

    def task(
        self, spec: ModelSpec, data: LanguageCorpus | None, vocabulary: Vocabulary, kind: type | None = None
    ) -> LanguageModelling:
        """See `Experiment`; `kind` may be the class of another task for the same model."""
        training = self.settings.training
        return (kind or tasks_lib.LanguageModelling)(
            data,
            partial(self._make_model, spec, vocabulary.tokens),
            batch_size=training.batch_size,
            num_steps=training.num_steps,
            random_lengths=training.random_lengths,
            restart_buffer=self.settings.agent.restart_buffer,
            activation_coef=training.activation_coef,
            temporal_coef=training.temporal_coef,
        )

    def _make_model(self, spec: ModelSpec, words: Sequence[str], rngs: nnx.Rngs) -> LanguageModel:
        m = self.settings.model
        embedding, weight_init = None, initializers.uniform(m.init_scale)
        if m.embedding == "characters":
            embedding = nn_lib.CharEmbedding(
                characters_data.character_table(words)[0],
                char_features=m.char_features,
                widths=tuple(range(1, len(m.char_maps) + 1)),
                maps=m.char_maps,
                num_highway=m.num_highway,
                weight_init=weight_init,
                dtype=spec.dtype,
                rngs=rngs,
            )
        return models_lib.LanguageModel(
            len(words),
            self.sizes(),
            (functional.Previous(),) * (m.num_layers - 1) + (spec.skip,),
            **spec.recurrent_options,
            embedding=embedding,
            embedding_features=m.embedding_features,
            tied=m.tied,
            copy=spec.copy,
            dropout=self.all_dropout(),
            dtype=spec.dtype,
            weight_init=weight_init,
            cell=self.cell_options_of_layers(spec),
            rngs=rngs,
        )

    def sizes(self) -> tuple[int, ...]:
        """Return the size of each layer's state, bottom first.

        With tied weights, the last layer has the size of the embedding.
        """
        m = self.settings.model
        last = m.embedding_features if m.tied and m.embedding_features else m.features
        return (m.features,) * (m.num_layers - 1) + (last,)

    def all_dropout(self) -> models_lib.LanguageModelDropout:
        """Return all dropout rates of the model."""
        m = self.settings.model
        return models_lib.LanguageModelDropout(
            words=m.dropout_words,
            inputs=m.dropout if m.dropout_inputs is None else m.dropout_inputs,
            hidden=m.dropout,
            outputs=m.dropout if m.dropout_outputs is None else m.dropout_outputs,
            weights=m.dropout_weights,
            variational=m.locked,
        )

    def cell_options_of_layers(self, spec: ModelSpec) -> tuple[dict[str, Any], ...]:
        """Return the options of each layer's cell, bottom first.

        Zaremba et al. (2014) draw every weight from one uniform distribution. `recurrent_init` and the
        options of the time skip may change this.
        """
        m, layers = self.settings.model, []
        zoneout = m.zoneout if len(m.zoneout) > 1 else m.zoneout[0]
        for size in self.sizes():
            weights = initializers.uniform(size**-0.5 if m.recurrent_init == "by_size" else m.init_scale)
            init = dict(kernel_init=weights, recurrent_kernel_init=weights, bias_init=weights)
            layers.append(dict(zoneout=zoneout, **init))
        weights = layers[-1]["kernel_init"]
        layers[-1] |= dict(agent_kernel_init=weights, agent_bias_init=weights) | dict(spec.cell_options)
        if m.recurrent_init == "orthogonal":
            layers[-1]["recurrent_kernel_init"] = nnx.initializers.orthogonal()
        return tuple(layers)

    def schedule(self, spec: ModelSpec, rate: Any) -> Schedule:
        """See `Experiment`."""
        training = self.settings.training
        if training.plateau is not None:
            return schedules.decay_on_plateau(
                rate, 1 / training.decay, threshold=training.plateau, floor=0.005
            )
        return schedules.decay_after(rate, 1 / training.decay, training.decay_after)

    def optimizer_options(self, spec: ModelSpec) -> dict[str, Any]:
        """See `Experiment`."""
        return {
            "kind": "sgd",
            "weight_decay": self.settings.training.weight_decay,
            # With copying, an agent also has a gradient that is not due to its rewards.
            "frozen": ("agent",) if spec.is_untrained else (),
        }

    def fit_options(self, spec: ModelSpec, learner: Learner) -> dict[str, Any]:
        """See `Experiment`."""
        training = self.settings.training
        return {
            "average": asgd.averaging_rule(training.average, training.average_interval),
            "start": None if training.start_from is None else self._start(spec, learner, training.start_from),
        }

    def _start(self, spec: ModelSpec, learner: Learner, run_dir: str) -> Any:
        """Return the selected parameters of a finished run of the same model with as many seeds.

        Raises:
            UserError: If the folder has no finished run of the model, or if its vocabulary differs.
        """
        runs = finished.finished_runs(run_dir)
        if spec.name not in runs:
            raise UserError(f"--start-from {run_dir} holds no finished run of {spec.name}")
        run = runs[spec.name]
        if loading.stored_vocabulary(run, self.vocabulary_type()) != learner.task.corpus.vocabulary:
            raise UserError(f"--start-from {run_dir} was trained on other words than those of this data")
        return finished.selected_params(run, learner.abstract_params(), len(learner.seeds))

    def draw(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Any, folder: Path, member: int
    ) -> None:
        """See `Experiment`; draw which k the agent chooses at the most frequent words of dev."""
        skip, corpus = spec.skip, learner.task.corpus
        if not skip.has_agent:
            return
        read = learner.choices(params, "dev", keys, layer=-1)
        parts = [(batch.inputs[batch.mask], chosen[member][batch.mask]) for batch, chosen in read]
        tokens, chosen = (np.concatenate(part) for part in zip(*parts, strict=True))
        frequent = np.argsort(-np.bincount(tokens), kind="stable")[:20]
        counts = np.zeros((len(frequent), skip.max_skip), np.int64)
        for row, word in enumerate(frequent):
            np.add.at(counts[row], chosen[tokens == word] - 1, 1)
        plots.action_distribution(
            counts,
            folder / "skips_by_word.png",
            f"{spec.name}: how far back the agent reaches after each {corpus.vocabulary.unit}",
            note=f"{corpus.name}, dev, greedy, the 20 most frequent {corpus.vocabulary.unit}s, "
            f"seed {learner.seeds[member]}",
            rows=corpus.vocabulary.shown([corpus.vocabulary.tokens[word] for word in frequent]),
        )

    def note(self, models: Sequence[str], data: LanguageCorpus) -> str:
        """See `Experiment`; why published perplexities are not comparable with those of this run."""
        if data.name != "ptb" or data.text_sizes:
            return f"Perplexities on {data.name}: not comparable with any published on PTB."
        own = (self.settings.model.num_layers, self.settings.model.features)
        theirs = PUBLISHED_SIZES[self._kind]
        if own == theirs or not self.published(models, data):
            return ""
        sizes = ["{} x {}".format(*size) for size in (own, theirs)]
        return f"The models of this run have {sizes[0]} units, published ones {sizes[1]}: not comparable."

    @property
    def _kind(self) -> str:
        return "awd" if self.settings.training.average != "none" else self.settings.model.embedding

    def published(
        self, models: Sequence[str], data: LanguageCorpus
    ) -> Sequence[tuple[str, Mapping[str, float]]]:
        """See `Experiment`; published rows, only for the words of Penn Treebank."""
        if data.name != "ptb" or data.text_sizes:
            return []
        rows = [PUBLISHED[self._kind][model] for model in models if model in PUBLISHED[self._kind]]
        return [(name, {"dev_perplexity": dev, "test_perplexity": test}) for name, dev, test in rows]

    def tokenize(self, vocabulary: Vocabulary, text: str) -> str:
        """See `Experiment`; adapt the words to the conventions of the vocabulary.

        If all words of the vocabulary are lowercase, the text becomes lowercase. If the vocabulary contains
        `N`, numbers become `N`. Punctuation marks that the vocabulary lacks are dropped. Contractions are
        split (is n't) or not, whichever leaves fewer words unknown. For characters and byte pairs, the text
        stays unchanged.
        """
        if vocabulary.unit != "word":
            return text
        known = vocabulary.index
        if all(token == token.lower() for token in known if token != "N"):
            text = text.lower()
        ways = []
        for words in (embedded.PROSE_WORD.findall(text), sentence_data.treebank_words(text, lowercase=False)):
            if "N" in known:
                words = ["N" if _NUMBER.fullmatch(word) and word not in known else word for word in words]
            # Drop punctuation marks that the vocabulary lacks.
            ways.append([word for word in words if word in known or any(map(str.isalnum, word))])
        return " ".join(min(ways, key=lambda words: sum(word not in known for word in words)))

    def encode(self, vocabulary: Vocabulary, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """See `Experiment`; the tokens begin with `<eos>`, and unknown ones become `<unk>`."""
        tokens = vocabulary.encode([vocabularies.EOS, *vocabulary.split(text)])
        return tokens, vocabulary.decode(tokens)

    def read(self, trained: Trained, text: str) -> reading.Reading:
        """See `Experiment`; `probabilities` are those of each word, given the words before it."""
        tokens, words = self.encode(trained.vocabulary, text)
        rows = trained.model(jnp.asarray(tokens)[None], policy=trained.policy, rngs=jax.random.key(0))
        found = jax.tree.map(lambda leaf: leaf[0], (rows.logits, rows.decisions, rows.observations))
        log_probs = np.asarray(jax.nn.log_softmax(found[0]))
        before = np.take_along_axis(log_probs[:-1], tokens[1:, None], axis=1)[:, 0]
        best = np.argsort(-log_probs[-1])[:_NEXT_WORDS]
        vocabulary = trained.vocabulary
        names = vocabulary.shown([vocabulary.tokens[i] for i in best])
        likeliest = zip(names, np.exp(log_probs[-1, best]), strict=True)
        listed = ", ".join(f"{name} {probability:.3f}" for name, probability in likeliest)
        return reading.Reading(
            vocabulary.shown(words),
            unknown=[word for word in vocabulary.split(text) if word not in vocabulary.index],
            probabilities=[math.nan, *np.exp(before).tolist()],
            prediction=f"next {vocabulary.unit} {listed}",
            **trained.choices(*found[1:], len(words)),
        )


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
