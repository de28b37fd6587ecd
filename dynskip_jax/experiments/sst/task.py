"""The trees, and the model that classifies their sentences."""

from typing import Any

from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data import sentence_corpora
from dynskip_jax.data.sentences import treebank_words
from dynskip_jax.experiments.sentence_task import TextClassification, load_sentences


class TreebankSentences(TextClassification):
    """Classify sentences of the Stanford Sentiment Treebank."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the trees."""
        data = settings.data
        splits, source = sentence_corpora.find_sst(data.data, phrases=data.phrases)
        return load_sentences("sst", splits, source, settings, sentence_corpora.SST_LABELS)

    @override
    def split(self, text: str) -> list[str]:
        return treebank_words(text)
