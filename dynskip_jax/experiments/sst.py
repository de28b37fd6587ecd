"""Sentiment of sentences in five classes (SST-5), with LSTMs, peephole and untied LSTMs.

    python -m experiments.sst --data DIR --model lstm --transition ulstm
    python -m experiments.sst predict --run-dir DIR < sentences.txt
    python -m experiments.sst explain --run-dir DIR --text "a film that never quite works"

Presets: `small` (the default) trains on all labelled phrases. `paper` is that of the paper on untied LSTMs,
whose sizes and layers were searched for (--features 50 to 300, --num-layers 1 to 3); not measured. Dev and
test are whole sentences. Test accuracy of `small` in one direction with vectors of our own, four epochs, five
seeds, two CPU cores, other jobs running: lstm 45.53 ± 0.68 % (27 min), ulstm 46.10 ± 0.68 % (37 min),
dynamic:3 44.24 ± 0.78 % (34 min).

Without --data the trees are looked for in $DYNSKIP_DATA_DIR/sst.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from dynskip_jax.experiments.sentences import AGENT, ClassifierExperiment, ClassifierSettings, SentenceData
from dynskip_jax.lazy import LazyModule

if TYPE_CHECKING:
    from dynskip_jax.data.sentences import SentenceCorpus
from dynskip_jax.settings import setting

sentence_data = LazyModule("dynskip_jax.data.sentences")
sst_data = LazyModule("dynskip_jax.data.corpora")

PRESETS: dict[str, dict[str, Any]] = {
    "small": dict(
        **AGENT,
        phrases=True,
        features=150,
        embedding_features=150,
        bidirectional=True,
        pooling="max",
        dropout=0.5,
        dropout_inputs=0.3,
        locked=True,
        batch_size=64,
        clip=1.0,
        epochs=5,
        patience=2,
        average="always",
        average_after=1,
    ),
    # The paper on untied LSTMs, Section Sentiment Classification. It does not give the batch size.
    "paper": dict(
        phrases=False,
        features=150,
        dropout=0.0,
        dropout_inputs=0.4,
        dropout_hidden=0.25,
        dropout_weights=0.5,
        activation_coef=2.0,
        temporal_coef=1.0,
        weight_decay=1.2e-6,
        optimizer="sgd",
        learning_rate=1.0,
        clip=0.25,
        batch_size=20,
        epochs=50,
        average="non_monotone",
        unknown_rate=0.0,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreebankData(SentenceData):
    """The sentences."""

    phrases: bool = setting(False, "Train on every labelled phrase, not only on sentences.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreebankSettings(ClassifierSettings):
    """All settings of sentiment on SST-5."""

    data: TreebankData = dataclasses.field(default_factory=TreebankData)


class SST(ClassifierExperiment):
    """See `Experiment`."""

    name = "sst"
    settings_type = TreebankSettings
    presets = PRESETS
    default_model = "dynamic:3"
    commands = ("predict", "explain", "oracle")
    labels = sst_data.SST_LABELS
    samples = 10
    sample_text = "a film that is never quite as funny as it wants to be"

    def load_data(self) -> SentenceCorpus:
        """See `Experiment`."""
        data = self.settings.data
        trees, source = sst_data.find_sst(data.data)
        return sentence_data.labelled_corpus(
            "sst",
            sst_data.sst_splits(trees, phrases=data.phrases),
            source,
            min_count=data.min_count,
            max_words=data.max_words,
            buckets=data.buckets,
            batch_size=self.settings.training.batch_size,
            known=self.known,
        )

    def split(self, text: str) -> list[str]:
        """See `Experiment`."""
        return sentence_data.treebank_words(text)


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
