"""What the experiments with taggers share: their data, models, tables and pictures."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax.analysis import plots
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.data.tag_schemes import AllowedTransitions, allowed_transitions, convert_tags
from dynskip_jax.data.tagged_corpus import SPLIT_NAMES, TaggedCorpus
from dynskip_jax.data.tagged_examples import tagged_examples
from dynskip_jax.data.tagger_vocabulary import CAPITALS, TaggerVocabulary, normal_form, tagger_vocabulary
from dynskip_jax.data.vocabulary import UNK
from dynskip_jax.data.word_vectors import WordVectors, read_word_vectors, vectors_of
from dynskip_jax.functional import Previous
from dynskip_jax.models import Tagger
from dynskip_jax.nn import CharAffixes, CharCNN, CharLSTM
from dynskip_jax.nn.char_features import CharFeatures, by_size
from dynskip_jax.tasks import Learner, Tagging
from dynskip_jax.training.schedule import Schedule, inverse_time
from experiments.experiment import Experiment, TextReading
from experiments.trained import Trained

_LEAST_BATCHES = 5  # that a padded length of their own is worth
_MOST_ROWS = 20  # tags of a picture


@dataclasses.dataclass(frozen=True)
class ReadCorpus:
    """A corpus, what of it is known to a model, and vectors.

    Attributes:
        corpus: the sentences.
        vocabulary: made of train.
        vectors: of its words; None where they begin at random.
    """

    corpus: TaggedCorpus
    vocabulary: TaggerVocabulary
    vectors: WordVectors | None

    @property
    def name(self) -> str:
        """That of the corpus."""
        return self.corpus.name

    @property
    def sizes(self) -> Mapping[str, int]:
        """Sentences of each split, and words that are known."""
        return {**self.corpus.sizes, "words": len(self.vocabulary.words)}

    @property
    def source(self) -> str:
        """Where the corpus was found."""
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
    """See `Experiment`; another corpus needs `load_corpus`, and its tags.

    Attributes:
        unknown_tags: whether tags of dev and test that train lacks count as wrong, rather than as an error.
    """

    vocabulary_type = TaggerVocabulary
    curves = ("dev_accuracy",)
    unknown_tags = False

    # --- What is read ---

    def load_corpus(self) -> TaggedCorpus:
        """Returns the corpus."""
        raise NotImplementedError

    def tags(self, corpus: TaggedCorpus) -> tuple[str, ...]:
        """Returns the tags that may be predicted."""
        return corpus.train_tags

    @property
    def scheme(self) -> str | None:
        """That of the tags; None where they spell out no entities."""
        return None

    def load_data(self) -> ReadCorpus:
        """See `Experiment`."""
        corpus, m = self.load_corpus(), self.settings.model
        how = dict(lowercase=m.lowercase, digits=m.digits)
        path, read = self.settings.data.embeddings, {}
        more: set[str] = set()
        if path is not None:
            words = {
                normal_form(word, **how)
                for split in SPLIT_NAMES
                for sentence in corpus.splits[split]
                for word in sentence.words
            }
            read = read_word_vectors(path, words | {word.lower() for word in words}, m.word_features)
            more = {word for word in words if word in read or word.lower() in read}
        tags = self.tags(corpus)
        vocabulary = tagger_vocabulary(
            (sentence.words for sentence in corpus.splits["train"]),
            (*tags, UNK) if self.unknown_tags else tags,
            **how,
            min_count=m.min_count,
            word_length=m.word_length,
            more_words=more,
            columns=(sentence.columns for sentence in corpus.splits["train"]),
        )
        vectors = None if path is None else vectors_of(vocabulary.words, read, m.word_features)
        return ReadCorpus(corpus, vocabulary, vectors)

    def about_data(self, data: ReadCorpus) -> Sequence[str]:
        """See `Experiment`; how much of each split is known, and has vectors."""
        shares = []
        for split in SPLIT_NAMES:
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

    def vocabulary(self, data: ReadCorpus) -> TaggerVocabulary:
        """See `Experiment`."""
        return data.vocabulary

    # --- What is trained ---

    def task(self, model: str, data: ReadCorpus | None, vocabulary: TaggerVocabulary) -> Tagging:
        """See `Experiment`."""
        training, splits, gold = self.settings.training, {}, {}
        if data is not None:
            index = {tag: i for i, tag in enumerate(vocabulary.tags)}
            unknown = index.get(UNK)
            for split in SPLIT_NAMES:
                sentences = data.corpus.splits[split]
                splits[split] = tagged_examples(
                    [sentence.words for sentence in sentences],
                    [[index.get(tag, unknown) for tag in sentence.tags] for sentence in sentences],
                    vocabulary,
                    columns=[sentence.columns for sentence in sentences],
                    # A program takes as long to compile as hundreds of steps.
                    least=_LEAST_BATCHES * training.batch_size,
                )
                gold[split] = [sentence.tags for sentence in sentences]
        vectors = None if data is None else data.vectors
        return Tagging(
            splits,
            functools.partial(self._make_model, model, vocabulary, vectors),
            tags=vocabulary.tags,
            scheme=self.scheme,
            gold=gold,
            reward_of=self.settings.agent.reward_of,
            unknown_tag=vocabulary.tags.index(UNK) if UNK in vocabulary.tags else None,
            batch_size=training.batch_size,
        )

    def _make_model(
        self, model: str, vocabulary: TaggerVocabulary, vectors: WordVectors | None, rngs: nnx.Rngs
    ) -> Tagger:
        m = self.settings.model
        return Tagger(
            len(vocabulary.words),
            len(vocabulary.tags),
            m.features,
            (Previous(),) * (m.num_layers - 1) + (self.skip(model),),
            **self.recurrent_options(),
            word_features=m.word_features,
            word_init=None if vectors is None else functools.partial(_beginning, vectors),
            characters=self._characters(vocabulary, rngs),
            num_capitals=len(CAPITALS),
            capital_features=m.capital_features,
            column_sizes=vocabulary.column_sizes,
            column_features=m.column_features,
            window=m.window,
            output=m.output,
            allowed=self._allowed(vocabulary.tags),
            dropout=self.dropout(),
            unknown_rate=m.unknown_rate,
            num_frequent=vocabulary.num_frequent,
            dtype=self.dtype,
            **self.cell_options(),
            rngs=rngs,
        )

    def _allowed(self, tags: Sequence[str]) -> AllowedTransitions | None:
        """Returns which tags may follow each other, where a CRF keeps to the rules of the scheme."""
        if self.scheme is None or self.settings.model.output != "crf":
            return None
        return allowed_transitions(tags, self.scheme)

    def _characters(self, vocabulary: TaggerVocabulary, rngs: nnx.Rngs) -> list[CharFeatures]:
        m, count = self.settings.model, vocabulary.num_characters
        how = dict(char_features=m.char_features, dropout=m.dropout_characters, dtype=self.dtype, rngs=rngs)
        modules: list[CharFeatures] = []
        if m.characters == "cnn":
            modules.append(CharCNN(count, filters=m.char_outputs, width=m.char_width, **how))
        elif m.characters == "lstm":
            modules.append(CharLSTM(count, features=m.char_outputs, **how))
        if m.affixes:
            modules.append(CharAffixes(count, char_features=m.affix_features, count=m.affixes, rngs=rngs))
        return modules

    def dropout(self) -> tuple[float, ...]:
        """Returns the rate at each place, bottom first; see `SkipLayers`."""
        m = self.settings.model
        behind = [m.dropout] * m.num_layers
        if m.dropout_hidden == "ends":
            behind[1:-1] = [0.0] * len(behind[1:-1])
        return (m.dropout if m.dropout_inputs is None else m.dropout_inputs, *behind)

    def cell_options(self) -> dict[str, Any]:
        """See `Experiment`; weights on inputs may have another scale."""
        options, scale = super().cell_options(), self.settings.model.init_scale
        if scale != 1.0:
            init = nnx.initializers.variance_scaling(scale**2, "fan_in", "normal")
            options = {"kernel_init": init} | options
        return options

    def schedule(self, model: str, rate: Any) -> Schedule:
        """See `Experiment`."""
        return inverse_time(rate, self.settings.training.decay)

    def optimizer_options(self, model: str) -> dict[str, Any]:
        """See `Experiment`."""
        training = self.settings.training
        return {"kind": training.optimizer, "momentum": training.momentum}

    # --- What is shown ---

    def draw(self, model: str, learner: Learner, params: Any, keys: Any, folder: Path, member: int) -> None:
        """How far each direction of the top layer reaches at words with each of the frequent tags."""
        skip, tags = self.skip(model), learner.task.tags
        if not skip.has_agent:
            return
        for layer, direction in ((-2, "forward"), (-1, "backward")):
            counts = np.zeros((len(tags), skip.max_skip), np.int64)
            for batch, chosen in learner.choices(params, "dev", keys, layer=layer):
                inside = np.arange(batch.targets.shape[1]) < batch.seq_lengths[:, None]
                where = inside & batch.mask[:, None]
                np.add.at(counts, (batch.targets[where], chosen[member][where] - 1), 1)
            rows = np.argsort(-counts.sum(axis=1), kind="stable")[:_MOST_ROWS]
            plots.action_distribution(
                counts[rows],
                folder / f"skips_by_tag_{direction}.png",
                f"{model}: how far the {direction} layer reaches at words with each tag",
                note=f"dev, greedy, the most frequent tags, seed {learner.seeds[member]}",
                rows=[tags[row] for row in rows],
            )

    def words_of_typed(self, vocabulary: TaggerVocabulary, text: str) -> list[str]:
        """See `Experiment`; the case stays, for characters are read as they stand."""
        return treebank_words(text, lowercase=False)

    def read(self, trained: Trained, text: str) -> TextReading:
        """See `Experiment`; probabilities are those of each word's tag, whatever the others are."""
        words, vocabulary = text.split(), trained.vocabulary
        policy = trained.policy
        read, best = trained.learner.read(trained.params, vocabulary.encode(words), len(words), policy)
        best, marginals = np.asarray(best), np.asarray(read.log_probs.marginals)
        tags = self.written([vocabulary.tags[tag] for tag in best])
        probabilities = np.exp(np.take_along_axis(marginals, best[:, None], axis=1)[:, 0])
        steps = [np.asarray(decision.action).tolist() for decision in read.decisions[-2:]]
        forward, backward = steps if trained.shows_choices else ([0] * len(words), None)
        top = len(read.decisions) - 2
        weights = [functools.partial(self.weights, trained, read, layer) for layer in (top, top + 1)]
        pairs = [f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)]
        says = f"{' '.join(pairs)}  ({probabilities.min():.3f})"
        unknown = [word for word in dict.fromkeys(words) if not vocabulary.knows(word)]
        return TextReading(pairs, unknown, forward, probabilities.tolist(), says, backward, *weights)

    def written(self, tags: Sequence[str], scheme: str = "BIO2") -> list[str]:
        """Returns tags as users see them: entities in a scheme, others as they are."""
        if self.scheme is None:
            return list(tags)
        return convert_tags(tags, "BIOES", scheme, repair=True)


def _beginning(vectors: WordVectors, key: Any, shape: tuple[int, int], dtype: Any = jnp.float32, *_: Any):
    """The vectors, and U(±√(3/d)) for words that have none."""
    drawn = by_size(shape[1])(key, shape, dtype)
    return jnp.where(jnp.asarray(vectors.found)[:, None], jnp.asarray(vectors.table, dtype), drawn)
