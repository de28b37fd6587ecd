"""Sentiment of sentences in five classes: its data."""

from dynskip_jax.data.sentences import SentenceCorpus, labelled_corpus, treebank_words
from dynskip_jax.data.sst import LABELS, NAME, find_sst, sst_splits
from experiments.sentence_models import ClassifierExperiment
from experiments.sst import COMMAND


class SST(ClassifierExperiment):
    """See `Experiment`."""

    command = COMMAND
    labels = LABELS
    samples = 10
    sample_text = "a film that is never quite as funny as it wants to be"

    def load_data(self) -> SentenceCorpus:
        """See `Experiment`."""
        data = self.settings.data
        trees, source = find_sst(data.data)
        return labelled_corpus(
            NAME,
            sst_splits(trees, phrases=data.phrases),
            source,
            min_count=data.min_count,
            max_words=data.max_words,
            buckets=data.buckets,
        )

    def split(self, text: str) -> list[str]:
        """See `Experiment`."""
        return treebank_words(text)
