"""Sentiment of sentences in five classes (SST-5), with LSTMs, peephole and untied LSTMs.

    python -m experiments.sst --data DIR --model lstm --transition ulstm
    python -m experiments.sst predict --run-dir DIR < sentences.txt
    python -m experiments.sst explain --run-dir DIR --text "a film that never quite works"

Presets: `small` (the default: trained on all labelled phrases, for two cores), `paper` (that of the paper on
untied LSTMs, with random vectors unless --embeddings names GloVe's; its sizes and layers were searched for:
--features 50 to 300, --num-layers 1 to 3). Dev and test are whole sentences in any case.

Without --data the trees are looked for in $DYNSKIP_DATA_DIR/sst.
"""

import dataclasses
from typing import Any

from dynskip_jax.settings import setting
from experiments.ceiling_flags import CEILING
from experiments.command_line import Command
from experiments.sentence_settings import AGENT, ClassifierSettings, SentenceData
from experiments.text import EXPLAIN, PREDICT

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
    # Section Sentiment Classification; the size of a batch is not given there.
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
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreebankData(SentenceData):
    """The sentences."""

    phrases: bool = setting(False, "Train on every labelled phrase, not on sentences alone.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreebankSettings(ClassifierSettings):
    """All settings of sentiment on SST-5."""

    data: TreebankData = dataclasses.field(default_factory=TreebankData)


COMMAND = Command(
    name="sst",
    about=__doc__,
    settings=TreebankSettings,
    presets=PRESETS,
    default_model="dynamic:3",
    experiment="experiments.sst_experiment:SST",
    default_preset=lambda given: "small",
    subcommands={"predict": PREDICT, "explain": EXPLAIN, "ceiling": CEILING},
)

if __name__ == "__main__":
    from experiments import cli, sst

    cli.run_main(lambda: cli.main(sst.COMMAND))
