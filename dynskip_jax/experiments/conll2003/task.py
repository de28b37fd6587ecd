"""The sentences with tags of entities or chunks, and their tagger."""

from typing import Any

from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.tagged import find_tagged_corpus, with_entities
from dynskip_jax.experiments.tagger_task import SentenceTagging, dataset_of


class EntityTagging(SentenceTagging):
    """Tag entities or chunks."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the sentences; tags are `O`, and each entity type with all letters of BIOES."""
        data = settings.data
        how = dict(tag_column=data.tag_column, beside=data.columns or ())
        corpus = with_entities(find_tagged_corpus(data.dataset, data.data, **how), data.scheme)
        return dataset_of(corpus, corpus.entity_tags, settings)
