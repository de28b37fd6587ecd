"""Sentiment of movie reviews: its data and tables."""

from collections.abc import Mapping, Sequence

from dynskip_jax.data.imdb import LABELS, NAME, find_imdb, imdb_splits
from dynskip_jax.data.sentences import SentenceCorpus, labelled_corpus, review_words
from experiments.imdb import COMMAND
from experiments.sentence_models import ClassifierExperiment

# Test accuracies of Gui et al. (2019), Table 4.
PUBLISHED = {
    "lstm": ("paper: LSTM", 0.891),
    "skip_rnn": ("paper: Skip LSTM", 0.866),
    "lstm_jump": ("paper: Jump LSTM", 0.894),
    "fixed:3": ("paper: fixed skip 3", 0.896),
    "fixed:5": ("paper: fixed skip 5", 0.893),
    "attention:3": ("paper: attention", 0.894),
    "dynamic:3": ("paper: dynamic skip, λ=0.5, K=3", 0.901),
}


class IMDB(ClassifierExperiment):
    """See `Experiment`."""

    command = COMMAND
    labels = LABELS
    sample_text = "i expected very little , but in the end it was not as bad as they say"

    def load_data(self) -> SentenceCorpus:
        """See `Experiment`."""
        data = self.settings.data
        reviews, source = find_imdb(data.data)
        return labelled_corpus(
            NAME,
            imdb_splits(reviews, data.dev_seed),
            source,
            min_count=data.min_count,
            max_words=data.max_words,
            max_length=data.max_length,
            buckets=data.buckets,
        )

    def split(self, text: str) -> list[str]:
        """See `Experiment`."""
        return review_words(text)

    @property
    def max_length(self) -> int:
        """See `ClassifierExperiment`."""
        return self.settings.data.max_length

    def published(
        self, models: Sequence[str], data: SentenceCorpus
    ) -> Sequence[tuple[str, Mapping[str, float]]]:
        """The paper's rows."""
        rows = [PUBLISHED[model] for model in models if model in PUBLISHED]
        return [(name, {"test_accuracy": accuracy}) for name, accuracy in rows]

    def note(self, models: Sequence[str], data: SentenceCorpus) -> str:
        """Where published rows begin."""
        if not self.published(models, data) or self.settings.data.embeddings:
            return ""
        return "Published rows begin with pretrained word vectors, those of this run with random ones."
