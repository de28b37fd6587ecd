"""The sentences with a tag for each word, and their tagger."""

from typing import Any

from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data.tagged import find_tagged_corpus
from dynskip_jax.data.vocabularies import UNK
from dynskip_jax.experiments.tagger_task import SentenceTagging, dataset_of


class WordTagging(SentenceTagging):
    """Tag every word."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the sentences; words of dev and test whose tag train lacks count as wrong."""
        data = settings.data
        how = dict(tag=data.tag, tag_column=data.tag_column)
        corpus = find_tagged_corpus(data.dataset, data.data, **how)
        tags = corpus.train_tags
        held_out = [*corpus.splits["dev"], *corpus.splits["test"]]
        found = [tag for sentence in held_out for tag in sentence.tags]
        lines = []
        if missing := {*found} - {*tags}:
            count = sum(tag in missing for tag in found)
            lines = [
                f"{count:,} words of dev and test have {len(missing):,} tags that train lacks: "
                "counted as wrong"
            ]
            tags = (*tags, UNK)
        return dataset_of(corpus, tags, settings, lines)
