"""Settings that all experiments on sentences share; nothing of JAX is imported."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from jaxtyping import Int

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.experiment import Experiment
from dynskip_jax.experiments.model_spec import ModelSpec
from dynskip_jax.experiments.settings import Data, EvenAgent, Model, Settings, Training
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import path_setting, setting

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
    buckets: int | None = setting(
        None,
        "To how many lengths batches are padded; by default up to 8, fewer for small data.",
        at_least=1,
        absent=8,
    )
    embeddings: str | None = path_setting(
        None,
        "A text file of word vectors (GloVe, word2vec) to start from; --embedding-features is their width.",
    )
    known_by_vectors: bool = setting(
        True, "Words of dev and test that --embeddings has are known.", absent=False
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
    unknown_rate: float = setting(
        0.5,
        "How often a word seen once in train is read as the unknown one in training.",
        at_least=0,
        below=1,
        absent=0.0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SentenceAgent(EvenAgent):
    """Skips over time, the agents that choose them, and how these are loaded."""

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


_ROWS = 200  # side by side in evaluation: what is projected of long texts takes memory


class SentenceExperiment(Experiment):
    """See `Experiment`; an experiment on sentences says its data, its task and how a text is split."""

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
        """See `Experiment`; which words are unknown, and how many."""
        return [data.about]

    def vocabulary(self, data: SentenceCorpus) -> Vocabulary:
        """See `Experiment`."""
        return data.vocabulary

    def known(self, train: Collection[str], others: Collection[str]) -> Collection[str]:
        """Return which words of dev and test are known although train lacks them: those with vectors.

        Args:
            train: the words of train, whose vectors are read together with those of the others.
            others: the words of dev and test.
        """
        data = self.settings.data
        if data.embeddings is None or not data.known_by_vectors:
            return ()
        found = self._read_vectors({*train, *others})
        return {word for word in others if word in found or word.lower() in found}

    def rare_words(self, data: SentenceCorpus | None) -> dict[str, Any]:
        """Return the options of a model that reads rare words as unknown ones; none where it is only used."""
        if data is None:
            return {}
        return dict(unknown_rate=self.settings.model.unknown_rate, num_frequent=data.num_frequent)

    def layers(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the options of a model's layers, without their sizes."""
        m = self.settings.model
        hidden = m.dropout if m.dropout_hidden is None else m.dropout_hidden
        dropped = dict(weight_dropout=m.dropout_weights, zoneout=m.zoneout)
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
            layer_options=[dropped] * below + [dropped | dict(spec.cell_options)],
        )

    def embedding(
        self, data: SentenceCorpus | None, vocabulary: Vocabulary
    ) -> Callable[[nnx.Rngs], nnx.Embed]:
        """Returns what makes the table of words; vectors are read where there is something to train on."""
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
        """See `Experiment`; with the vectors that words begin with, wherever their file is."""
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
    """A file of word vectors, which is read again only for words that were not asked for before."""

    def __init__(self, path: str, width: int):
        self._path, self._width = path, width
        self._asked: set[str] = set()
        self._found: Mapping[str, np.ndarray] = {}

    def read(self, words: Collection[str]) -> Mapping[str, np.ndarray]:
        """Return the vectors of words and of their lower-case forms, those of earlier calls included."""
        wanted = {form for word in words for form in (word, word.lower())}
        if not wanted <= self._asked:
            wanted |= self._asked
            self._found = word_vectors.read_word_vectors(self._path, wanted, self._width)
            self._asked = wanted
        return self._found


_file_of = functools.lru_cache(maxsize=1)(_VectorFile)


class ClassifierExperiment(SentenceExperiment):
    """Sentences with a class each.

    Attributes:
        labels: the names of the classes, where they are always the same.
        has_macro_f1: whether macro F1 is measured.
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
        """How many words of a text are read; None for all."""
        return None

    def encode(self, vocabulary: Vocabulary, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """See `Experiment`; `<unk>` stands for words that are not known."""
        tokens = vocabulary.encode(self.split(text)[: self.max_length])
        return tokens, vocabulary.decode(tokens)

    def format_prediction(self, vocabulary: Vocabulary, predicted: Any, probability: float) -> str:
        """See `Experiment`."""
        return f"{self.class_names(vocabulary)[int(predicted)]}  ({probability:.3f})"
