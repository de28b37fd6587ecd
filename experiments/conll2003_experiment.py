"""Named entities and chunks: their data and tables."""

from collections.abc import Mapping, Sequence

from dynskip_jax.data.tagged_corpus import TaggedCorpus, entity_tags, find_entity_corpus
from experiments.conll2003 import COMMAND
from experiments.tagger import ReadCorpus, TaggerExperiment

# Test F1 of CoNLL-2003. Gui et al. (2019), Table 2; "91.21" is Ma and Hovy (2016), the plain BiLSTM of it.
PUBLISHED = {
    "lstm": ("paper: Ma and Hovy 2016", 0.9121),
    "fixed:3": ("paper: fixed skip 3", 0.9114),
    "fixed:5": ("paper: fixed skip 5", 0.9116),
    "attention:5": ("paper: attention", 0.9123),
    "dynamic:5": ("paper: dynamic skip, λ=1, K=5", 0.9156),
}
# Huang et al. (2015), without pretrained vectors: BiLSTM-CRF, with features of spelling, POS and chunks.
PUBLISHED_RANDOM = {"conll2003": 0.8426, "conll2000": 0.9413}


class CoNLL2003(TaggerExperiment):
    """See `Experiment`."""

    command = COMMAND
    columns = {  # noqa: RUF012 (read only)
        "dev_f1": ("dev F1", ".2%"),
        "test_f1": ("test F1", ".2%"),
        "test_f1_sampled": ("test, sampled", ".2%"),
        "test_f1_averaged": ("test, averaged", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
    }
    curves = ("dev_f1",)
    sample_text = "Peter Blackburn of the European Commission flew from BRUSSELS to New York"
    scheme = "BIOES"

    def load_corpus(self) -> TaggedCorpus:
        """See `TaggerExperiment`."""
        data = self.settings.data
        how = dict(scheme=data.scheme, seed=data.data_seed, beside=data.columns or ())
        return find_entity_corpus(data.dataset, data.data, **how)

    def tags(self, corpus: TaggedCorpus) -> tuple[str, ...]:
        """See `TaggerExperiment`; all letters of BIOES with each type."""
        return entity_tags(corpus)

    def published(self, models: Sequence[str], data: ReadCorpus) -> Sequence[tuple[str, Mapping[str, float]]]:
        """The paper's rows where there are vectors, else what others reach without."""
        if self.settings.data.embeddings is None:
            value = PUBLISHED_RANDOM.get(data.name)
            name = "Huang et al. 2015, random vectors, BiLSTM-CRF and features"
            return [] if value is None else [(name, {"test_f1": value})]
        if data.name != "conll2003":
            return []
        return [(PUBLISHED[m][0], {"test_f1": PUBLISHED[m][1]}) for m in models if m in PUBLISHED]

    def note(self, models: Sequence[str], data: ReadCorpus) -> str:
        """What a table of this run must say."""
        path = self.settings.data.embeddings
        if path is None:
            if data.name != "conll2003":
                return ""
            return (
                "Word vectors begin at random: not comparable with F1 above 90, which takes pretrained ones."
            )
        if not self.published(models, data):
            return ""
        return f"Word vectors begin with those of {path}; the paper's are GloVe, 100 numbers."
