"""Settings and base classes of all experiments on sentences; importing this module does not import JAX."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.experiment import Experiment
from dynskip_jax.experiments.model_spec import ModelSpec
from dynskip_jax.experiments.settings import Data, EvenAgent, Model, Settings, Training
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import ON, Other, setting

if TYPE_CHECKING:
    from dynskip_jax.data import Vocabulary
    from dynskip_jax.data.sentences import SentenceCorpus
    from dynskip_jax.data.word_vectors import WordVectors
    from dynskip_jax.models import SequenceClassifier
    from dynskip_jax.tasks import Classification, Learner
    from dynskip_jax.training.schedule import Schedule

F = LazyModule("dynskip_jax.functional")
asgd = LazyModule("dynskip_jax.training.asgd")
initializers = LazyModule("dynskip_jax.nn.initializers")
jnp = LazyModule("jax.numpy")
models_lib = LazyModule("dynskip_jax.models")
nnx = LazyModule("flax.nnx")
schedules = LazyModule("dynskip_jax.training.schedule")
tasks_lib = LazyModule("dynskip_jax.tasks")
word_vectors = LazyModule("dynskip_jax.data.word_vectors")

# Training of agents in presets that depart from the paper: an Adam with its own rate, and a weight of the
# entropy that does not outweigh the single reward of a long text.
AGENT = dict(agent_learning_rate=0.001, baseline="batch", entropy="exact", entropy_coef=0.001)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceData(Data):
    """The texts."""

    min_count: int = shared.min_count(1)
    max_words: int | None = setting(
        None, "Keep this many words of train, the most frequent ones; others are unknown.", at_least=1
    )
    buckets: int | None = shared.buckets(None, absent=8)
    embeddings: str | None = shared.embeddings(None)
    known_by_vectors: bool = setting(
        True,
        "Know the words of dev and test that have vectors.",
        absent=False,
        needs={"embeddings": ON},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceModel(Model):
    """What the network is made of."""

    num_layers: int = shared.num_layers(1)
    bidirectional: bool = setting(False, "Read in both directions in every layer.")
    output_gate: bool = setting(True, "Use the cell's output gate; without it the gate is 1.")
    pooling: Literal["last", "mean", "max"] = setting(
        "last", "Classify the last state (the papers), or the mean or maximum over states."
    )
    embedding_features: int = shared.embedding_features(300)
    embedding_scale: float = setting(
        0.25, "Draw embeddings of words without a vector from U(-scale, scale).", above=0
    )
    train_embeddings: bool = setting(True, "Train the words' embeddings.")
    dropout_inputs: float | None = shared.dropout_inputs(None)
    dropout_hidden: float | None = setting(
        None,
        "Dropout rate between layers; by default --dropout.",
        at_least=0,
        below=1,
        needs={"num_layers": Other((1,), "2 or more")},
    )
    dropout_weights: float = shared.dropout_weights(0.0)
    locked: bool = shared.locked(False, needs={"dropout": ON, "dropout_inputs": ON, "dropout_hidden": ON})
    zoneout: tuple[float, ...] = shared.zoneout((0.0,))
    unknown_rate: float = shared.unknown_rate(0.5, absent=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceAgent(EvenAgent):
    """Skips over time, their agents, and how these are trained."""

    max_jump: int = setting(5, "K of LSTM-Jump, the longest jump.", at_least=1, needs={"model": "lstm_jump"})
    read_steps: int = setting(
        20, "R of LSTM-Jump, words read between jumps.", at_least=1, needs={"model": "lstm_jump"}
    )
    max_jumps: int = setting(
        10, "N of LSTM-Jump, the most jumps in a text.", at_least=1, needs={"model": "lstm_jump"}
    )
    update_bias: float = setting(
        1.0,
        "Initial bias of Skip RNN's gate; smaller values read less.",
        needs={"model": "skip_rnn"},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceTraining(Training):
    """For how long and how fast."""

    batch_size: int = shared.batch_size(50)
    optimizer: Literal["adam", "adagrad", "sgd"] = shared.optimizer("adam")
    weight_decay: float = shared.weight_decay(0.0)
    decay: float = shared.decay(1.0)
    decay_after: int = shared.decay_after(0)
    average: Literal["none", "non_monotone", "always"] = shared.average("none")
    average_interval: int = shared.average_interval(5)
    average_after: int = setting(0, "Epochs before averaging may begin.", at_least=0, needs={"average": ON})


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

    dropout_words: float = shared.dropout_words(0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierTraining(SentenceTraining):
    """For how long and how fast."""

    activation_coef: float = shared.activation_coef(0.0)
    temporal_coef: float = shared.temporal_coef(0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierSettings(SentenceSettings):
    """All settings of experiments that classify sentences."""

    model: ClassifierModel = dataclasses.field(default_factory=ClassifierModel)
    training: ClassifierTraining = dataclasses.field(default_factory=ClassifierTraining)


_ROWS = 200  # rows of an evaluation batch; the projected inputs of long texts take much memory


class SentenceExperiment(Experiment):
    """See `Experiment`; a subclass defines its data, its task and how a text is split."""

    settings: SentenceSettings

    def check(self) -> None:
        """See `Experiment`."""
        super().check()
        if not self.settings.model.train_embeddings and self.settings.data.embeddings is None:
            raise UserError(
                "words' vectors that are not trained are of no use unless they are read: give "
                "--embeddings FILE, or --train-embeddings"
            )

    def describe_data(self, data: SentenceCorpus) -> Sequence[str]:
        """See `Experiment`; how many words are unknown, and how many texts are cropped."""
        return [data.about]

    def vocabulary(self, data: SentenceCorpus) -> Vocabulary:
        """See `Experiment`."""
        return data.vocabulary

    def known(self, train: Collection[str], others: Collection[str]) -> Collection[str]:
        """Return the words of dev and test that are known even if train lacks them: those with vectors.

        Args:
            train: Words of train; their vectors are read in the same pass over the file.
            others: Words of dev and test.
        """
        data = self.settings.data
        if data.embeddings is None or not data.known_by_vectors:
            return ()
        found = self._read_vectors({*train, *others})
        return {word for word in others if word in found or word.lower() in found}

    def rare_words(self, data: SentenceCorpus | None) -> dict[str, Any]:
        """Return the options for reading rare words as unknown in training; empty without data."""
        if data is None:
            return {}
        return dict(unknown_rate=self.settings.model.unknown_rate, num_frequent=data.num_frequent)

    def layers(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the options of a model's layers, without their sizes."""
        m = self.settings.model
        hidden = m.dropout if m.dropout_hidden is None else m.dropout_hidden
        zoneout = m.zoneout if len(m.zoneout) > 1 else m.zoneout[0]
        dropped = dict(weight_dropout=m.dropout_weights, zoneout=zoneout)
        below = m.num_layers - 1
        return dict(
            skip=(F.Previous(),) * below + (spec.skip,),
            **spec.recurrent_options,
            bidirectional=m.bidirectional,
            pooling=m.pooling,
            dropout=(
                m.dropout if m.dropout_inputs is None else m.dropout_inputs,
                *(hidden,) * below,
                m.dropout,
            ),
            variational=m.locked,
            dtype=spec.dtype,
            cell=[dropped] * below + [dropped | dict(spec.cell_options)],
        )

    def embedding(
        self, data: SentenceCorpus | None, vocabulary: Vocabulary
    ) -> Callable[[nnx.Rngs], nnx.Embed]:
        """Return a function that creates the word embedding; pretrained vectors are read only with data."""
        m, init = self.settings.model, initializers.uniform(self.settings.model.embedding_scale)
        found = self._vectors(vocabulary) if self.settings.data.embeddings and data is not None else None

        def start(
            key: Any, shape: tuple[int, ...], dtype: Any = jnp.float32, out_sharding: Any = None
        ) -> Any:
            drawn = init(key, shape, dtype)
            if found is None:
                return drawn
            return jnp.where(found.found[:, None], found.table.astype(dtype), drawn)

        return lambda rngs: nnx.Embed(len(vocabulary), m.embedding_features, embedding_init=start, rngs=rngs)

    def fingerprint(self, data: SentenceCorpus) -> str:
        """See `Experiment`; includes the pretrained vectors, but not the path of their file."""
        if self.settings.data.embeddings is None:
            return data.fingerprint
        digest = hashlib.sha256(data.fingerprint.encode())
        digest.update(self._vectors(data.vocabulary).table.astype("<f4").tobytes())
        return digest.hexdigest()

    def _vectors(self, vocabulary: Vocabulary) -> WordVectors:
        read = self._read_vectors(vocabulary.tokens)
        return word_vectors.vectors_of(vocabulary.tokens, read, self.settings.model.embedding_features)

    def _read_vectors(self, words: Collection[str]) -> Mapping[str, np.ndarray]:
        return _file_of(self.settings.data.embeddings, self.settings.model.embedding_features).read(words)

    def schedule(self, spec: ModelSpec, rate: Any) -> Schedule:
        """See `Experiment`."""
        training = self.settings.training
        return schedules.decay_after(rate, 1 / training.decay, training.decay_after)

    def optimizer_options(self, spec: ModelSpec) -> dict[str, Any]:
        """See `Experiment`."""
        training = self.settings.training
        return {
            "kind": training.optimizer,
            "weight_decay": training.weight_decay,
            "frozen": () if self.settings.model.train_embeddings else ("embedding",),
        }

    def fit_options(self, spec: ModelSpec, learner: Learner) -> dict[str, Any]:
        """See `Experiment`."""
        training = self.settings.training
        rule = asgd.averaging_rule(training.average, training.average_interval, training.average_after)
        return {"average": rule}


class _VectorFile:
    """A file of word vectors that is read again only when new words are requested."""

    def __init__(self, path: str, width: int):
        self._path, self._width = path, width
        self._asked: set[str] = set()
        self._found: Mapping[str, np.ndarray] = {}

    def read(self, words: Collection[str]) -> Mapping[str, np.ndarray]:
        """Return the vectors of words and of their lowercase forms, including those of earlier calls."""
        wanted = {form for word in words for form in (word, word.lower())}
        if not wanted <= self._asked:
            wanted |= self._asked
            self._found = word_vectors.read_word_vectors(self._path, wanted, self._width)
            self._asked = wanted
        return self._found


_file_of = functools.lru_cache(maxsize=1)(_VectorFile)


class ClassifierExperiment(SentenceExperiment):
    """An experiment that classifies sentences.

    Attributes:
        labels: Names of the classes, if they do not depend on the data.
        has_macro_f1: Whether macro F1 is measured.
    """

    settings: ClassifierSettings
    labels: ClassVar[tuple[str, ...]] = ()
    has_macro_f1: ClassVar[bool] = False
    columns = {  # noqa: RUF012 (read only)
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_accuracy_averaged": ("test, averaged", ".2%"),
        "test_read_fraction": ("words read", ".1%"),
    }
    curves = ("dev_accuracy",)
    samples = 4

    def task(self, spec: ModelSpec, data: SentenceCorpus | None, vocabulary: Vocabulary) -> Classification:
        """See `Experiment`."""
        m, training = self.settings.model, self.settings.training
        embedding, classes = self.embedding(data, vocabulary), self.class_names(vocabulary)

        def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
            return models_lib.SequenceClassifier(
                len(vocabulary),
                m.features,
                len(classes),
                embedding=embedding(rngs),
                word_dropout=m.dropout_words,
                **self.rare_words(data),
                **self.layers(spec),
                rngs=rngs,
            )

        return tasks_lib.Classification(
            {} if data is None else data.splits,
            make_model,
            batch_size=training.batch_size,
            evaluation_rows=_ROWS,
            activation_coef=training.activation_coef,
            temporal_coef=training.temporal_coef,
            class_names=classes,
            has_macro_f1=self.has_macro_f1,
        )

    def class_names(self, vocabulary: Vocabulary) -> tuple[str, ...]:
        """Return the names of the classes."""
        return self.labels

    @property
    def max_length(self) -> int | None:
        """Largest number of words of a text that are read; None for all."""
        return None

    def encode(self, vocabulary: Vocabulary, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """See `Experiment`; unknown words become `<unk>`."""
        tokens = vocabulary.encode(self.split(text)[: self.max_length])
        return tokens, vocabulary.decode(tokens)

    def format_prediction(self, vocabulary: Vocabulary, predicted: Any, probability: float) -> str:
        """See `Experiment`."""
        return f"{self.class_names(vocabulary)[int(predicted)]}  ({probability:.3f})"
