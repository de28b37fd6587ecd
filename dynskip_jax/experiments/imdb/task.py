"""The reviews, and the model that classifies them."""

from typing import Any

from dynskip_jax.data import corpora
from dynskip_jax.data.sentences import review_words, sentence_corpus
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import dataset_of, make_classification, reading_options, text_hooks
from dynskip_jax.tasks import Classification


def load(settings: Any) -> Dataset:
    """Load the reviews."""
    reviews, source = corpora.find_imdb(settings.data.data)
    splits = corpora.imdb_splits(reviews, settings.data.split_seed)
    how = reading_options(settings)
    corpus = sentence_corpus("imdb", splits, source, max_length=settings.data.max_length, **how)
    return dataset_of(corpus, settings)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: Any) -> Classification:
    """Return the task of a model."""
    return make_classification(spec, settings, data, vocabulary, corpora.IMDB_LABELS)


split = review_words
encode, tokenize, format_prediction = text_hooks(split, lambda vocabulary: corpora.IMDB_LABELS)
