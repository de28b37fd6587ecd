"""Data and models of all experiments on sentences, and the tasks that classify them."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from flax import nnx
from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data import sentence_corpora
from dynskip_jax.data.labelled import find_labelled_text, labelled_words
from dynskip_jax.data.sentences import Labelled, review_words, sentence_corpus, treebank_words
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
from dynskip_jax.models.classifier import SequenceClassifier
from dynskip_jax.nn import initializers
from dynskip_jax.runs.spec import ModelSpec
from dynskip_jax.tasks.classification import Classification
from dynskip_jax.terminal.messages import shares

_ROWS = 200  # rows of an evaluation batch; the projected inputs of long texts take much memory
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
