"""The trees, and the model that classifies their sentences."""

from functools import partial
from typing import Any

from dynskip_jax.data import corpora
from dynskip_jax.data.sentences import treebank_words as split
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import load_labelled, make_classification

__all__ = ["load", "make_task", "split"]

make_task = partial(make_classification, classes=corpora.SST_LABELS)


def load(settings: Any) -> Dataset:
    """Load the trees."""
    splits, source = corpora.find_sst(settings.data.data, phrases=settings.data.phrases)
    return load_labelled("sst", splits, source, settings)
