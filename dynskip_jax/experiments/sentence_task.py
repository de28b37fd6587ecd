"""Data, models and tasks of all experiments on sentences."""

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from flax import nnx
from typing_extensions import override

from dynskip_jax.analysis.reading import Reading
from dynskip_jax.config.experiment import Dataset
from dynskip_jax.config.flags import short
from dynskip_jax.data import sentence_corpora
from dynskip_jax.data.labelled import find_labelled_text, labelled_words
from dynskip_jax.data.sentences import (
    Labelled,
    pair_inputs,
    review_words,
    sentence_corpus,
    treebank_words,
)
from dynskip_jax.data.vocabularies import ClassVocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.sentence_config import SentenceSettings
from dynskip_jax.experiments.vectors import (
    begin_with,
    having,
    read_vectors,
    width_of_vectors,
    with_vectors,
)
from dynskip_jax.models.classifier import SentencePairModel, SequenceClassifier
from dynskip_jax.nn import initializers
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.spec import ModelSpec
from dynskip_jax.runs.texts import read_text
from dynskip_jax.tasks.classification import Classification, SentencePairs
from dynskip_jax.terminal.messages import shares

_ROWS = 200  # rows of an evaluation batch; the projected inputs of long texts take much memory
_SIMILARITY_FEATURES = 50  # of the layer that compares two sentences (Tai et al. 2015)
_EMBEDDING_SCALE = 0.25  # of words without a vector


def load_sentences(
    name: str,
    splits: Mapping[str, Iterable[Labelled]],
    source: str,
    settings: SentenceSettings,
    classes: Sequence[str] | None = None,
    lines: Sequence[str] = (),
) -> Dataset:
    """Return labelled texts or, without `classes`, rated pairs as a data set."""
    data = settings.data
    width = settings.model.embedding_features
    most = getattr(data, "max_length", None)
    # Each distinct word is kept once.
    kept = {
        split: [text._replace(words=[*map(sys.intern, text.words[:most])]) for text in texts]
        for split, texts in splits.items()
    }
    words = {word for texts in kept.values() for text in texts for word in text.words}
    words |= {word for texts in kept.values() for text in texts for word in text.second}
    read = read_vectors(data.embeddings, words, width)
    how = dict(max_words=data.max_words, batch_size=settings.training.batch_size)
    corpus = sentence_corpus(kept, known=having(words, read), **how)
    vocabulary = corpus.vocabulary
    if classes is not None:
        vocabulary = ClassVocabulary(vocabulary.tokens, tuple(classes))
    about = f"words outside the vocabulary of {len(vocabulary):,}: {shares(corpus.unknown)}"
    dataset = corpus.dataset(name, source, vocabulary, lines=[*lines, about])
    return with_vectors(dataset, data.embeddings, vocabulary.tokens, read, width)


def task_options(
    spec: ModelSpec,
    settings: SentenceSettings,
    data: Dataset | None,
    vocabulary: Any,
    build: Callable[..., nnx.Module],
) -> dict[str, Any]:
    """Return the options of a task whose models are made by `build` from their embedding.

    Its options are those of the layers, and of words that training drops or reads as unknown.
    """
    m = settings.model
    dropped = dict(weight_dropout=m.dropout_weights, zoneout=m.zoneout)
    options = dict(
        **spec.layer_options(),
        unknown_rate=m.unknown_rate,
        num_frequent=0 if data is None else data.content.num_frequent,
        word_dropout=m.dropout_words,
        bidirectional=m.bidirectional,
        pooling=m.pooling,
        dropout=m.dropout_rates,
        variational=m.locked,
        cell=dropped | dict(spec.cell_options),
    )
    # Without data the parameters come from a run, and pretrained vectors are not read again.
    init = begin_with(data and data.vectors, initializers.uniform(_EMBEDDING_SCALE))
    size = m.embedding_features

    def make_model(rngs: nnx.Rngs) -> nnx.Module:
        embedding = nnx.Embed(len(vocabulary), size, embedding_init=init, rngs=rngs)
        return build(embedding=embedding, **options, rngs=rngs)

    return dict(
        splits={} if data is None else data.content.splits,
        make_model=make_model,
        batch_size=settings.training.batch_size,
        evaluation_rows=_ROWS,
        activation_coefs=m.activation_coefs,
    )


class TextClassification(Classification):
    """Classify texts of words."""

    settings_of_files = staticmethod(width_of_vectors)
    words_of: Callable[[str], list[str]]  # that splits a text into words

    def __init__(
        self,
        spec: ModelSpec,
        settings: SentenceSettings,
        data: Dataset | None,
        vocabulary: ClassVocabulary,
    ):
        sizes = len(vocabulary), settings.model.features, len(vocabulary.classes)
        build = partial(SequenceClassifier, *sizes)
        options = task_options(spec, settings, data, vocabulary, build)
        super().__init__(**options, class_names=vocabulary.classes)
        self.vocabulary = vocabulary
        # Texts that are read later are cropped as those of train were.
        self.most_words = getattr(settings.data, "max_length", None)

    @override
    def split(self, text: str) -> list[str]:
        return self.words_of(text)


class Reviews(TextClassification):
    """Classify reviews of films (IMDB)."""

    words_of = staticmethod(review_words)

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the reviews."""
        reviews, source = sentence_corpora.find_imdb(settings.data.data)
        splits = sentence_corpora.imdb_splits(reviews)
        return load_sentences("imdb", splits, source, settings, sentence_corpora.IMDB_LABELS)


class TreebankSentences(TextClassification):
    """Classify sentences of the Stanford Sentiment Treebank."""

    words_of = staticmethod(treebank_words)

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the trees."""
        data = settings.data
        splits, source = sentence_corpora.find_sst(data.data, phrases=data.phrases)
        return load_sentences("sst", splits, source, settings, sentence_corpora.SST_LABELS)


class LabelledTexts(TextClassification):
    """Classify texts of your own."""

    words_of = staticmethod(review_words)

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the texts."""
        data = settings.data
        if data.data is None:
            raise UserError(
                "there are no texts to classify: give --data, a folder or a file of labelled texts"
            )
        found = find_labelled_text(
            data.data,
            text=data.text_column,
            label=data.label_column,
        )
        texts = {
            split: labelled_words(own, review_words, found.classes)
            for split, own in found.splits.items()
        }
        about = (found.name, texts, found.source)
        return load_sentences(*about, settings, found.classes, [found.about])


class Similarity(SentencePairs):
    """Rate how alike two sentences are; a text is two sentences separated by a tab."""

    settings_of_files = staticmethod(width_of_vectors)

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the pairs."""
        splits, source = sentence_corpora.find_sick(settings.data.data)
        return load_sentences("sick", splits, source, settings)

    def __init__(self, spec: Any, settings: Any, data: Dataset | None, vocabulary: Any):
        build = partial(
            SentencePairModel,
            hidden_features=settings.model.features,
            num_ratings=sentence_corpora.SICK_RATINGS,
            similarity_features=_SIMILARITY_FEATURES,
        )
        super().__init__(**task_options(spec, settings, data, vocabulary, build))
        self.vocabulary = vocabulary

    @override
    def split(self, text: str) -> list[str]:
        return treebank_words(text)

    @override
    def encode(self, text: str) -> tuple[dict[str, np.ndarray], list[str]]:
        """Return the ids of two sentences, and the words that they stand for."""
        sentences = [self.split(part) for part in text.split("\t")]
        if len(sentences) != 2 or not all(sentences):
            raise UserError(f"expected two sentences separated by a tab, got {short(text.strip())}")
        inputs = pair_inputs(*map(self.vocabulary.encode, sentences))
        return inputs, self.vocabulary.decode(inputs["tokens"])


def read_pair(trained: Trained, text: str) -> Reading:
    """Show a choice that reaches into the other sentence as one outside of the text.

    Probabilities of each k are left out: near the other sentence, they would be shown at its words.
    """
    reading = read_text(trained, text, lambda task, rating, _: f"{float(rating):.2f}")
    # The row has the words of both sentences, those of the first one before the others.
    first = int((trained.encode(text)[0]["sentences"] == 0).sum())
    end = len(reading.words)
    # k = t + 1 is the state before the text.
    skips = [t + 1 if t >= first > t - k else k for t, k in enumerate(reading.skips)]
    backward = reading.backward
    if backward is not None:
        backward = [end - t if t < first <= t + k else k for t, k in enumerate(backward)]
    return dataclasses.replace(
        reading, skips=skips, weights=None, backward=backward, backward_weights=None
    )
