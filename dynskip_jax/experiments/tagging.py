"""Settings, commands and the base class of all taggers; importing this module does not import JAX."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.experiment import Experiment
from dynskip_jax.experiments.model_spec import ModelSpec
from dynskip_jax.experiments.settings import Agent, Data, Model, Settings, Training
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import ON, Other, setting
from dynskip_jax.training.model_names import REWARDED

if TYPE_CHECKING:
    from dynskip_jax.data.tagged import TaggedCorpus
    from dynskip_jax.data.vocabularies import TaggerVocabulary, TokenIds
    from dynskip_jax.data.word_vectors import WordVectors
    from dynskip_jax.models import Tagger
    from dynskip_jax.nn.char_features import CharFeatures
    from dynskip_jax.tasks import Learner, Tagging
    from dynskip_jax.trained import Trained
    from dynskip_jax.training.schedule import Schedule

plots = LazyModule("dynskip_jax.analysis.plots")
reading = LazyModule("dynskip_jax.analysis.reading")
confusion_tables = LazyModule("dynskip_jax.experiments.confusion")
entity_score = LazyModule("dynskip_jax.tasks.entity_score")
char_features = LazyModule("dynskip_jax.nn.char_features")
examples = LazyModule("dynskip_jax.data.batches")
functional = LazyModule("dynskip_jax.functional")
jnp = LazyModule("jax.numpy")
models_lib = LazyModule("dynskip_jax.models")
nn_lib = LazyModule("dynskip_jax.nn")
nnx = LazyModule("flax.nnx")
schedules = LazyModule("dynskip_jax.training.schedule")
sentence_data = LazyModule("dynskip_jax.data.sentences")
tag_schemes = LazyModule("dynskip_jax.data.tag_schemes")
tagged_examples = LazyModule("dynskip_jax.data.tagged")
tagger_vocabulary = LazyModule("dynskip_jax.data.vocabularies")
tasks_lib = LazyModule("dynskip_jax.tasks")
text = LazyModule("dynskip_jax.experiments.text")
vocabularies = LazyModule("dynskip_jax.data.vocabularies")
word_vectors = LazyModule("dynskip_jax.data.word_vectors")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerData(Data):
    """The tagged sentences, and word vectors."""

    word_column: int = setting(0, "Column of the words, counted from 0.", needs={"dataset": "columns"})
    tag_column: int = setting(
        -1, "Column of the tags, counted from 0; -1: the last.", needs={"dataset": "columns"}
    )
    min_count: int = shared.min_count(1)
    embeddings: str | None = shared.embeddings(None)
    buckets: int | None = shared.buckets(None, absent=99)  # 99: no limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerModel(Model):
    """What the network is made of; sizes of layers are those of each direction."""

    num_layers: int = shared.num_layers(1)
    dropout: float = shared.dropout(0.5)
    dropout_inputs: float | None = shared.dropout_inputs(None)
    dropout_between: Literal["all", "ends"] = setting(
        "all",
        "Drop after all layers, or only after the first and the last one (ends: Wu et al. 2016).",
        needs={"num_layers": Other((1, 2), "3 or more")},
    )
    dropout_characters: float = setting(
        0.0,
        "Dropout rate on characters' embeddings, before a CNN or LSTM reads them.",
        at_least=0,
        below=1,
        needs={"characters": ("cnn", "lstm")},
    )
    init_gain: float = setting(
        1.0, "Gain of the weights on inputs: their standard deviation is this / √fan-in.", above=0
    )
    output: Literal["crf", "softmax"] = shared.output("crf")
    embedding_features: int = shared.embedding_features(100)
    lowercase: bool = setting(True, "Lowercase words; characters keep their case.")
    digits: Literal["keep", "nine", "zero"] = setting(
        "nine", "Replace digits of words by 9 or 0; characters keep theirs."
    )
    unknown_rate: float = shared.unknown_rate(0.5)
    characters: Literal["none", "cnn", "lstm"] = setting(
        "cnn", "Read a word's characters by a CNN or a bidirectional LSTM, or not at all."
    )
    char_features: int = shared.char_features(30, needs={"characters": ("cnn", "lstm")})
    char_outputs: int = setting(
        30,
        "Filters of the CNN, or size of both states of the LSTM together.",
        at_least=1,
        needs={"characters": ("cnn", "lstm")},
    )
    char_width: int = setting(3, "Characters that a filter covers.", at_least=1, needs={"characters": "cnn"})
    affixes: int = setting(
        0, "Embed this many of a word's first and last characters (Wu et al.: 5).", at_least=0
    )
    affix_features: int = setting(5, "Size of the embeddings of affixes.", at_least=1, needs={"affixes": ON})
    capital_features: int = setting(
        0, "Size of the embedding of which letters are capitals; 0: none.", at_least=0
    )
    window: int = setting(
        1, "Concatenate this many words, each with a logistic gate (Wu et al.: 3); 1: none.", at_least=1
    )
    word_length: int = setting(
        20,
        "Characters of a word that are read; of longer words the first and last half.",
        at_least=2,
        needs={"characters": ("cnn", "lstm"), "affixes": ON},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerAgent(Agent):
    """Skips over time, their agents, and how these are trained."""

    reward_of: Literal["sentence", "words"] = setting(
        "sentence",
        "Reward agents for the whole sequence of tags (Gui et al.), or at each word for its tag.",
        needs={"model": REWARDED},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerTraining(Training):
    """For how long and how fast."""

    epochs: int = shared.epochs(20)
    batch_size: int = shared.batch_size(20)
    clip: float | None = shared.clip(5.0)
    patience: int = shared.patience(5)
    optimizer: Literal["adam", "adagrad", "sgd"] = shared.optimizer("adam")
    momentum: float = setting(
        0.0, "Momentum of gradient descent.", at_least=0, below=1, needs={"optimizer": "sgd"}
    )
    inverse_decay: float = setting(
        0.0, "ρ: divide the learning rate by 1 + ρ · the number of epochs before.", at_least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaggerSettings(Settings):
    """All settings of a tagger."""

    data: TaggerData = dataclasses.field(default_factory=TaggerData)
    model: TaggerModel = dataclasses.field(default_factory=TaggerModel)
    agent: TaggerAgent = dataclasses.field(default_factory=TaggerAgent)
    training: TaggerTraining = dataclasses.field(default_factory=TaggerTraining)


TAGGER_COMMANDS = ("predict", "explain", "oracle", "compare", "gradients")

# Training of agents as in the presets of language models that fit a CPU: an Adam of their own. The reward at
# each word is compared with that of the other sentences.
AGENT = dict(
    agent_learning_rate=0.001,
    reward_of="words",
    entropy="exact",
    entropy_coef=0.01,
    discount=0.5,
    baseline="batch",
    mix=0.5,
)


logger = logging.getLogger(__name__)

_LEAST_BATCHES = 5  # smallest number of batches for which a padded length of their own is worth compiling
_MOST_ROWS = 20  # largest number of tags in a plot


@dataclasses.dataclass(frozen=True)
class ReadCorpus:
    """A corpus with its vocabulary and word vectors.

    Attributes:
        corpus: Tagged sentences.
        vocabulary: Words and tags of train, and other words that have vectors.
        vectors: Vectors of the vocabulary's words; None if their embeddings start at random.
    """

    corpus: TaggedCorpus
    vocabulary: TaggerVocabulary
    vectors: WordVectors | None

    @property
    def name(self) -> str:
        """Name of the corpus."""
        return self.corpus.name

    @property
    def sizes(self) -> Mapping[str, int]:
        """Number of sentences of each split, and number of words in the vocabulary."""
        return {**self.corpus.sizes, "words": len(self.vocabulary.words)}

    @property
    def source(self) -> str:
        """Place where the corpus was found."""
        return self.corpus.source

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the corpus and the vectors."""
        if self.vectors is None:
            return self.corpus.fingerprint
        digest = hashlib.sha256(self.corpus.fingerprint.encode())
        digest.update(self.vectors.table.astype("<f4").tobytes())
        return digest.hexdigest()


class TaggerExperiment(Experiment):
    """See `Experiment`; a subclass for another corpus defines `load_corpus`, and `tags` if needed.

    Attributes:
        unknown_tags: Whether tags of dev and test that train lacks count as wrong instead of being an error.
    """

    curves = ("dev_accuracy",)
    unknown_tags = False

    # --- Data ---

    def load_corpus(self) -> TaggedCorpus:
        """Load and return the corpus."""
        raise NotImplementedError

    def tags(self, corpus: TaggedCorpus) -> tuple[str, ...]:
        """Return the tags that may be predicted."""
        return corpus.train_tags

    @property
    def scheme(self) -> str | None:
        """Scheme of the tags, such as BIOES; None if the tags do not encode entities."""
        return None

    def load_data(self) -> ReadCorpus:
        """See `Experiment`."""
        corpus, m = self.load_corpus(), self.settings.model
        how = dict(lowercase=m.lowercase, digits=m.digits)
        path, read = self.settings.data.embeddings, {}
        more: set[str] = set()
        if path is not None:
            words = {
                tagger_vocabulary.normal_form(word, **how)
                for split in ("train", "dev", "test")
                for sentence in corpus.splits[split]
                for word in sentence.words
            }
            read = word_vectors.read_word_vectors(
                path, words | {word.lower() for word in words}, m.embedding_features
            )
            more = {word for word in words if word in read or word.lower() in read}
        tags = self.tags(corpus)
        vocabulary = tagger_vocabulary.tagger_vocabulary(
            (sentence.words for sentence in corpus.splits["train"]),
            (*tags, vocabularies.UNK) if self.unknown_tags else tags,
            **how,
            min_count=self.settings.data.min_count,
            word_length=m.word_length,
            more_words=more,
            columns=(sentence.columns for sentence in corpus.splits["train"]),
            scheme=corpus.file_scheme,
        )
        size = m.embedding_features
        vectors = None if path is None else word_vectors.vectors_of(vocabulary.words, read, size)
        return ReadCorpus(corpus, vocabulary, vectors)

    def describe_data(self, data: ReadCorpus) -> Sequence[str]:
        """See `Experiment`; how many words of each split are unknown, and how many words have vectors."""
        shares = []
        for split in ("train", "dev", "test"):
            words = [word for sentence in data.corpus.splits[split] for word in sentence.words]
            unknown = sum(not data.vocabulary.knows(word) for word in words) / len(words)
            shares.append(f"{100 * unknown:.2g} % of {split}")
        lines = [data.corpus.note] if data.corpus.note else []
        lines.append(f"words that are not known: {', '.join(shares)}")
        if data.vectors is not None:
            found, all_words = int(data.vectors.found.sum()), len(data.vocabulary.words)
            share = 100 * found / all_words
            path = self.settings.data.embeddings
            lines.append(f"vectors: {path} has {found:,} of {all_words:,} words ({share:.1f} %)")
        return lines

    def vocabulary_type(self) -> type[TaggerVocabulary]:
        """See `Experiment`."""
        return tagger_vocabulary.TaggerVocabulary

    def vocabulary(self, data: ReadCorpus) -> TaggerVocabulary:
        """See `Experiment`."""
        return data.vocabulary

    # --- Training ---

    def task(self, spec: ModelSpec, data: ReadCorpus | None, vocabulary: TaggerVocabulary) -> Tagging:
        """See `Experiment`."""
        training, splits, gold = self.settings.training, {}, {}
        if data is not None:
            index = {tag: i for i, tag in enumerate(vocabulary.tags)}
            unknown = index.get(vocabularies.UNK)
            few = examples.worthwhile_buckets(len(data.corpus.splits["train"]), training.batch_size)
            for split in ("train", "dev", "test"):
                sentences = data.corpus.splits[split]
                splits[split] = tagged_examples.tagged_examples(
                    [sentence.words for sentence in sentences],
                    [[index.get(tag, unknown) for tag in sentence.tags] for sentence in sentences],
                    vocabulary,
                    columns=[sentence.columns for sentence in sentences],
                    # A program takes as long to compile as hundreds of steps.
                    least=_LEAST_BATCHES * training.batch_size,
                    most=self.settings.data.buckets or few,
                )
                gold[split] = [sentence.tags for sentence in sentences]
        vectors = None if data is None else data.vectors
        return tasks_lib.Tagging(
            splits,
            functools.partial(self._make_model, spec, vocabulary, vectors),
            tags=vocabulary.tags,
            scheme=self.scheme,
            gold=gold,
            reward_of=self.settings.agent.reward_of,
            decode_in_training=self.settings.model.output == "softmax"
            or self.settings.agent.reward == "correct",
            unknown_tag=vocabulary.tags.index(vocabularies.UNK)
            if vocabularies.UNK in vocabulary.tags
            else None,
            batch_size=training.batch_size,
        )

    def _make_model(
        self,
        spec: ModelSpec,
        vocabulary: TaggerVocabulary,
        vectors: WordVectors | None,
        rngs: nnx.Rngs,
    ) -> Tagger:
        m = self.settings.model
        return models_lib.Tagger(
            len(vocabulary.words),
            len(vocabulary.tags),
            m.features,
            (functional.Previous(),) * (m.num_layers - 1) + (spec.skip,),
            **spec.recurrent_options,
            embedding_features=m.embedding_features,
            word_init=None if vectors is None else functools.partial(_beginning, vectors),
            characters=self._characters(spec, vocabulary, rngs),
            num_capitals=len(tagger_vocabulary.CAPITALS),
            capital_features=m.capital_features,
            column_sizes=vocabulary.column_sizes,
            column_features=getattr(m, "column_features", 1),  # only taggers that read other columns have it
            window=m.window,
            output=m.output,
            allowed=self._allowed(vocabulary.tags),
            dropout=self.dropout(),
            unknown_rate=m.unknown_rate,
            num_frequent=vocabulary.num_frequent,
            dtype=spec.dtype,
            cell=self._cell_options(spec),
            rngs=rngs,
        )

    def _allowed(self, tags: Sequence[str]) -> tag_schemes.AllowedTransitions | None:
        """Return which tags may follow each other in the scheme; None without a scheme or a CRF."""
        if self.scheme is None or self.settings.model.output != "crf":
            return None
        return tag_schemes.allowed_transitions(tags, self.scheme)

    def _characters(
        self, spec: ModelSpec, vocabulary: TaggerVocabulary, rngs: nnx.Rngs
    ) -> list[CharFeatures]:
        m, count = self.settings.model, vocabulary.num_characters
        how = dict(char_features=m.char_features, dropout=m.dropout_characters, dtype=spec.dtype, rngs=rngs)
        modules: list[CharFeatures] = []
        if m.characters == "cnn":
            modules.append(nn_lib.CharCNN(count, filters=m.char_outputs, width=m.char_width, **how))
        elif m.characters == "lstm":
            modules.append(nn_lib.CharLSTM(count, features=m.char_outputs, **how))
        if m.affixes:
            modules.append(
                nn_lib.CharAffixes(count, char_features=m.affix_features, count=m.affixes, rngs=rngs)
            )
        return modules

    def dropout(self) -> tuple[float, ...]:
        """Return the dropout rate at each place, bottom first; see `SkipLayers`."""
        m = self.settings.model
        behind = [m.dropout] * m.num_layers
        if m.dropout_between == "ends":
            behind[1:-1] = [0.0] * len(behind[1:-1])
        return (m.dropout if m.dropout_inputs is None else m.dropout_inputs, *behind)

    def _cell_options(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the options of every layer's cell, with the initial scale of the weights on inputs."""
        options, scale = dict(spec.cell_options), self.settings.model.init_gain
        if scale != 1.0:
            init = nnx.initializers.variance_scaling(scale**2, "fan_in", "normal")
            options = {"kernel_init": init} | options
        return options

    def schedule(self, spec: ModelSpec, rate: Any) -> Schedule:
        """See `Experiment`."""
        return schedules.inverse_time(rate, self.settings.training.inverse_decay)

    def optimizer_options(self, spec: ModelSpec) -> dict[str, Any]:
        """See `Experiment`."""
        training = self.settings.training
        return {"kind": training.optimizer, "momentum": training.momentum}

    # --- Results and texts ---

    def extra_metrics(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Any
    ) -> dict[str, np.ndarray]:
        """See `Experiment`; precision, recall, F1 and support of each entity type or each frequent tag."""
        metrics = {}
        for split in ("dev", "test"):
            found = learner.predictions(params, split, keys)
            rows = [learner.task.label_metrics(split, predictions) for predictions in found]
            metrics |= {f"{split}_{name}": np.array([row[name] for row in rows]) for name in rows[0]}
        return metrics

    def draw(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Any, folder: Path, member: int
    ) -> None:
        """See `Experiment`; also log the scores of each type or tag on dev, and draw the confusion matrix."""
        task = learner.task
        predictions = learner.predictions(params, "dev", keys)[member]
        seed, has_entities = spec.all_seeds[member], self.scheme is not None
        logger.info("%s: scores on dev, seed %d", spec.name, seed)
        what = "type" if has_entities else "tag"
        confusion_tables.log_lines(task.score_labels("dev", predictions).text(what))
        matrix, labels = entity_score.tag_confusion(
            task.gold["dev"], task.predicted_tags(predictions), has_entities=has_entities
        )
        confusion_tables.show_confusion(
            matrix, labels, folder, spec, member, split="dev", what=f"{what}s of words"
        )
        self._draw_skips(spec, learner, params, keys, folder, member)

    def _draw_skips(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Any, folder: Path, member: int
    ) -> None:
        """Draw how far back each direction of the top layer reaches at words with each frequent tag."""
        skip, tags = spec.skip, learner.task.tags
        if not skip.has_agent:
            return
        for direction, layer in learner.top_layers.items():
            counts = np.zeros((len(tags), skip.max_skip), np.int64)
            for batch, chosen in learner.choices(params, "dev", keys, layer=layer):
                inside = np.arange(batch.targets.shape[1]) < batch.seq_lengths[:, None]
                where = inside & batch.mask[:, None]
                np.add.at(counts, (batch.targets[where], chosen[member][where] - 1), 1)
            rows = np.argsort(-counts.sum(axis=1), kind="stable")[:_MOST_ROWS]
            rows = rows[counts[rows].any(axis=1)]  # tags that never occur are left out
            plots.action_distribution(
                counts[rows],
                folder / f"skips_by_tag_{direction}.png",
                f"{spec.name}: how far the {direction} layer reaches at words with each tag",
                note=f"dev, greedy, the most frequent tags, seed {learner.seeds[member]}",
                rows=[tags[row] for row in rows],
            )

    def tokenize(self, vocabulary: TaggerVocabulary, text: str) -> str:
        """See `Experiment`; case is kept, because the model reads a word's characters unchanged."""
        return " ".join(sentence_data.treebank_words(text, lowercase=False))

    def encode(self, vocabulary: TaggerVocabulary, text: str) -> tuple[TokenIds, list[str]]:
        """See `Experiment`; the words are those of the text, because unknown ones are read by characters."""
        words = self.split(text)
        return vocabulary.encode(words), words

    def read(self, trained: Trained, text: str) -> reading.Reading:
        """See `Experiment`; `probabilities` are the marginal probabilities of each word's tag."""
        vocabulary = trained.vocabulary
        inputs, words = self.encode(vocabulary, text)
        read, best = trained.learner.read(trained.params, inputs, len(words), trained.policy)
        best, marginals = np.asarray(best), np.asarray(read.log_probs.marginals)
        tags = self.written([vocabulary.tags[tag] for tag in best])
        probabilities = np.exp(np.take_along_axis(marginals, best[:, None], axis=1)[:, 0])
        pairs = [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]
        prediction = f"{' '.join(pairs)}  ({probabilities.min():.3f})"
        unknown = [word for word in dict.fromkeys(words) if not vocabulary.knows(word)]
        return reading.Reading(
            pairs,
            unknown=unknown,
            probabilities=probabilities.tolist(),
            prediction=prediction,
            is_of_predictions=True,
            **trained.choices(read.decisions, read.observations, len(words)),
        )

    def written(self, tags: Sequence[str], scheme: str = "BIO2") -> list[str]:
        """Convert tags to the form that users see: entity tags in `scheme`, others unchanged."""
        if self.scheme is None:
            return list(tags)
        return tag_schemes.convert_tags(tags, "BIOES", scheme, repair=True)


def _beginning(vectors: WordVectors, key: Any, shape: tuple[int, int], dtype: Any = "float32", *_: Any):
    """Return initial embeddings of size d: pretrained vectors, and U(±√(3/d)) for words without one."""
    drawn = char_features.by_size(shape[1])(key, shape, dtype)
    return jnp.where(jnp.asarray(vectors.found)[:, None], jnp.asarray(vectors.table, dtype), drawn)
