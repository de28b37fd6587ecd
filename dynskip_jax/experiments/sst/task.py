"""The trees, and the model that classifies their sentences."""

from typing import Any

from dynskip_jax.data import corpora
from dynskip_jax.data.notes import DataNotes
from dynskip_jax.data.sentences import treebank_words as split
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import load_sentences
from dynskip_jax.experiments.sentence_task import make_classification as make_task

__all__ = ["load", "make_task", "split"]


def load(settings: Any) -> Dataset:
    """Load the trees."""
    notes = DataNotes(strict=settings.data.strict)
    splits, source = corpora.find_sst(
        settings.data.data, phrases=settings.data.phrases, notes=notes
    )
    return load_sentences("sst", splits, source, settings, corpora.SST_LABELS, notes.lines)
