"""The reviews, and the model that classifies them."""

from typing import Any

from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data import sentence_corpora
from dynskip_jax.data.sentences import review_words
from dynskip_jax.experiments.sentence_task import TextClassification, load_sentences


class Reviews(TextClassification):
    """Classify reviews of films."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Load the reviews."""
        reviews, source = sentence_corpora.find_imdb(settings.data.data)
        splits = sentence_corpora.imdb_splits(reviews)
        return load_sentences("imdb", splits, source, settings, sentence_corpora.IMDB_LABELS)

    @override
    def split(self, text: str) -> list[str]:
        return review_words(text)
