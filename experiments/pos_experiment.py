"""Parts of speech and CCG categories: their data and tables."""

from collections.abc import Mapping, Sequence

from dynskip_jax.data.tagged_corpus import TaggedCorpus, find_part_of_speech_corpus
from experiments.pos import COMMAND
from experiments.tagger import ReadCorpus, TaggerExperiment

# Test accuracy on the English EWT: UDPipe, words as in the treebank (UD 2.3; the treebank has changed since).
PUBLISHED = {"ud_ewt, UPOS": 0.944, "ud_ewt, XPOS": 0.939}


class PartOfSpeech(TaggerExperiment):
    """See `Experiment`."""

    command = COMMAND
    columns = {  # noqa: RUF012 (read only)
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_sampled": ("test, sampled", ".2%"),
        "test_accuracy_averaged": ("test, averaged", ".2%"),
        "test_sentence_accuracy": ("whole sentences", ".2%"),
    }
    sample_text = "The old man the boats , and the young ones watch them"

    @property
    def unknown_tags(self) -> bool:
        """See `TaggerExperiment`."""
        return self.settings.data.unknown_tags == "wrong"

    def load_corpus(self) -> TaggedCorpus:
        """See `TaggerExperiment`."""
        data = self.settings.data
        corpus = find_part_of_speech_corpus(data.dataset, data.data, tag=data.tag, seed=data.data_seed)
        if not self.unknown_tags:
            corpus.check_tags(corpus.train_tags, ": --unknown-tags wrong counts such words as wrong")
        return corpus

    def published(self, models: Sequence[str], data: ReadCorpus) -> Sequence[tuple[str, Mapping[str, float]]]:
        """What others reach on the same treebank."""
        value = PUBLISHED.get(data.name)
        return [] if value is None else [("UDPipe, UD 2.3", {"test_accuracy": value})]
