"""The reviews, and the model that classifies them."""

from typing import Any

from dynskip_jax.data import corpora
from dynskip_jax.data.notes import DataNotes
from dynskip_jax.data.sentences import review_words as split
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import load_sentences
from dynskip_jax.experiments.sentence_task import make_classification as make_task

__all__ = ["load", "make_task", "split"]


def load(settings: Any) -> Dataset:
    """Load the reviews."""
    notes = DataNotes(strict=settings.data.strict)
    reviews, source = corpora.find_imdb(settings.data.data, notes)
    splits = corpora.imdb_splits(reviews)
    return load_sentences("imdb", splits, source, settings, corpora.IMDB_LABELS, notes.lines)
