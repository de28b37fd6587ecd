"""The reviews, and the model that classifies them."""

from functools import partial
from typing import Any

from dynskip_jax.data import corpora
from dynskip_jax.data.sentences import review_words as split
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import load_labelled, make_classification

__all__ = ["load", "make_task", "split"]

make_task = partial(make_classification, classes=corpora.IMDB_LABELS)


def load(settings: Any) -> Dataset:
    """Load the reviews."""
    reviews, source = corpora.find_imdb(settings.data.data)
    return load_labelled("imdb", corpora.imdb_splits(reviews, settings.data.split_seed), source, settings)
