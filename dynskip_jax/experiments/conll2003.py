"""Named entities and chunks: Gui et al. (2019), Table 2.

    python -m experiments.conll2003 --data DIR --compare lstm,dynamic:5 --seeds 3
    python -m experiments.conll2003 --dataset conll2000 --data conll2000.zip
    python -m experiments.conll2003 predict --run-dir DIR < text
    python -m experiments.conll2003 compare --run-dir DIR --data DIR

A BiLSTM-CRF over words and their characters, whose tags follow BIOES; F1 as conlleval counts it. Test F1 of
12 epochs and wall time of three seeds on one CPU core, other jobs running:

    preset  what it is                                        lstm           dynamic:5      time
    small   one layer of 100 units, the default               84.93 ± 0.16   84.80 ± 0.49   14, 27 min
    paper   2 x 200, λ = 1, K = 5, dropout 0.5, the optimizer of Ma & Hovy 2016; with
            --embeddings glove.6B.100d.txt the paper's setting: not measured
    ncrfpp  the recipe of NCRF++: not measured

Without --data the corpus is looked for in $DYNSKIP_DATA_DIR/conll2003 (eng.train, eng.testa, eng.testb), the
chunks of CoNLL-2000 in $DYNSKIP_DATA_DIR/conll2000 or in NLTK's archive in $DYNSKIP_DATA_DIR/nltk. A folder
of your own, with one word on each line and its tag in the last column, is `--dataset columns --scheme BIO2`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.tagging import (
    AGENT,
    TAGGER_COMMANDS,
    ReadCorpus,
    TaggerData,
    TaggerExperiment,
    TaggerModel,
    TaggerSettings,
)
from dynskip_jax.lazy import LazyModule

if TYPE_CHECKING:
    from dynskip_jax.data.tagged import TaggedCorpus
from dynskip_jax.settings import ON, setting

tagged_corpus = LazyModule("dynskip_jax.data.tagged")

PRESETS: dict[str, dict[str, Any]] = {
    # For two cores: Adam needs a third of the epochs that gradient descent takes.
    "small": dict(
        **AGENT,
        features=100,
        capital_features=5,
        learning_rate=0.002,
        inverse_decay=0.05,
        epochs=20,
    ),
    # Gui et al. (2019), Section Named Entity Recognition; values that it does not give are those of Ma & Hovy
    # (2016). The loss of Ma & Hovy is a mean over the sentences of a batch, as is the loss here. Eq. 5 as
    # printed.
    "paper": dict(
        features=200,
        mix=1.0,
        dropout=0.5,
        dropout_characters=0.5,
        digits="zero",
        unknown_rate=0.0,
        optimizer="sgd",
        momentum=0.9,
        learning_rate=0.015,
        inverse_decay=0.05,
        clip=5.0,
        batch_size=10,
        epochs=100,
        patience=20,
    ),
    # NCRF++ (Yang & Zhang 2018). Its loss is a sum over the 10 sentences of a batch, the loss here is a mean.
    # Its learning rate of 0.015 therefore becomes 0.15. Its 200 units are those of both directions together.
    "ncrfpp": dict(
        **AGENT,
        features=100,
        char_outputs=50,
        lowercase=False,
        digits="zero",
        unknown_rate=0.0,
        optimizer="sgd",
        learning_rate=0.15,
        inverse_decay=0.05,
        clip=None,
        batch_size=10,
        epochs=100,
        patience=20,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityData(TaggerData):
    """The tagged sentences, and word vectors."""

    dataset: Literal["conll2003", "conll2000", "columns"] = shared.dataset("conll2003")
    split_seed: int = shared.split_seed(0, needs={"dataset": "conll2000"})
    columns: tuple[int, ...] | None = setting(
        None, "Other columns that are read, counted from 0; 1: CoNLL's parts of speech.", at_least=0
    )
    scheme: Literal["IOB1", "BIO2", "BIOES"] | None = setting(
        None, "Scheme of the files' tags; by default the corpus's own, or detected (columns)."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityModel(TaggerModel):
    """What the network is made of; sizes of layers are those of each direction."""

    column_features: int = setting(
        20,
        "Size of the embedding of each other column that is read.",
        at_least=1,
        needs={"columns": ON},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntitySettings(TaggerSettings):
    """All settings of the taggers of entities."""

    data: EntityData = dataclasses.field(default_factory=EntityData)
    model: EntityModel = dataclasses.field(default_factory=EntityModel)


# Test F1 of CoNLL-2003 in Gui et al. (2019), Table 2. Its plain BiLSTM, 91.21, is that of Ma and Hovy (2016).
PUBLISHED = {
    "lstm": ("paper: Ma and Hovy 2016", 0.9121),
    "fixed:3": ("paper: fixed skip 3", 0.9114),
    "fixed:5": ("paper: fixed skip 5", 0.9116),
    "attention:5": ("paper: attention", 0.9123),
    "dynamic:5": ("paper: dynamic skip, λ=1, K=5", 0.9156),
}
# Test F1 of Huang et al. (2015) without pretrained vectors: BiLSTM-CRF with spelling, POS and chunk features.
PUBLISHED_RANDOM = {"conll2003": 0.8426, "conll2000": 0.9413}


class CoNLL2003(TaggerExperiment):
    """See `Experiment`."""

    name = "conll2003"
    settings_type = EntitySettings
    presets = PRESETS
    default_model = "dynamic:5"
    commands = TAGGER_COMMANDS
    columns = {  # noqa: RUF012 (read only)
        "dev_f1": ("dev F1", ".2%"),
        "test_f1": ("test F1", ".2%"),
        "test_f1_sampled": ("test, sampled", ".2%"),
        "test_f1_averaged": ("test, averaged", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
    }
    curves = ("dev_f1",)
    published_sizes = {  # noqa: RUF012 (read only)
        "conll2003": {"train": 14_041, "dev": 3_250, "test": 3_453},
        "conll2000": {"train": 8_043, "dev": 893, "test": 2_012},
    }
    sample_text = "Peter Blackburn of the European Commission flew from BRUSSELS to New York"
    scheme = "BIOES"

    def load_corpus(self) -> TaggedCorpus:
        """See `TaggerExperiment`."""
        data = self.settings.data
        how = dict(scheme=data.scheme, seed=data.split_seed, beside=data.columns or ())
        how |= dict(word=data.word_column, tag=data.tag_column)
        return tagged_corpus.find_entity_corpus(data.dataset, data.data, **how)

    def tags(self, corpus: TaggedCorpus) -> tuple[str, ...]:
        """See `TaggerExperiment`; `O`, and each entity type with all letters of BIOES."""
        return tagged_corpus.entity_tags(corpus)

    def published(self, models: Sequence[str], data: ReadCorpus) -> Sequence[tuple[str, Mapping[str, float]]]:
        """See `Experiment`; the paper's rows with word vectors, else the row of Huang et al. (2015)."""
        if self.settings.data.embeddings is None:
            value = PUBLISHED_RANDOM.get(data.name)
            name = "Huang et al. 2015, random vectors, BiLSTM-CRF and features"
            return [] if value is None else [(name, {"test_f1": value})]
        if data.name != "conll2003":
            return []
        return [(PUBLISHED[m][0], {"test_f1": PUBLISHED[m][1]}) for m in models if m in PUBLISHED]

    def note(self, models: Sequence[str], data: ReadCorpus) -> str:
        """See `Experiment`; which word vectors this run and the published rows start from."""
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


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
