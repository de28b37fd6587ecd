"""The trees, and the model that classifies their sentences."""

from typing import Any

from dynskip_jax.data import corpora
from dynskip_jax.data.sentences import sentence_corpus, treebank_words
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.sentence_task import dataset_of, make_classification, reading_options, text_hooks
from dynskip_jax.tasks import Classification


def load(settings: Any) -> Dataset:
    """Load the trees."""
    splits, source = corpora.find_sst(settings.data.data, phrases=settings.data.phrases)
    corpus = sentence_corpus("sst", splits, source, **reading_options(settings))
    return dataset_of(corpus, settings)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: Any) -> Classification:
    """Return the task of a model."""
    return make_classification(spec, settings, data, vocabulary, corpora.SST_LABELS)


split = treebank_words
encode, tokenize, format_prediction = text_hooks(split, lambda vocabulary: corpora.SST_LABELS)
