"""Sentiment of sentences in five classes (SST-5), with LSTMs, peephole and untied LSTMs.

    python -m experiments.sst --data DIR --model lstm --transition ulstm
    python -m experiments.sst predict --run-dir DIR < sentences.txt
    python -m experiments.sst explain --run-dir DIR --text "a film that never quite works"

    small  all labelled phrases, the default;
           in one direction: lstm 45.53 ± 0.68 %, ulstm 46.10 ± 0.68 %
    paper  that of the paper on untied LSTMs,
           which searched --features 50 to 300 and --num-layers 1 to 3

Without --data the trees are looked for in $DYNSKIP_DATA_DIR/sst.
"""

import dataclasses

from dynskip_jax.config.experiment import Experiment
from dynskip_jax.config.settings import with_groups
from dynskip_jax.experiments.sentence_config import SMALL, SentenceData, SentenceSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreebankData(SentenceData):
    """The sentences."""

    phrases: bool = False
    """Train on every labelled phrase, not only on sentences."""


EXPERIMENT = Experiment(
    name="sst",
    about=__doc__,
    task="dynskip_jax.experiments.sentence_task:TreebankSentences",
    settings=with_groups(SentenceSettings, data=TreebankData()),
    presets={
        "small": SMALL
        | dict(
            phrases=True, features=150, embedding_features=150, bidirectional=True, pooling="max"
        )
        | dict(dropout=(0.3, 0.5, 0.5), batch_size=64, epochs=5, patience=2)
        | dict(average="always", average_after=1),
        # The paper on untied LSTMs, Section Sentiment Classification. Batch size and clipping are
        # ours.
        "paper": dict(features=150, recipe="awd", dropout=(0.4, 0.25, 0.0), dropout_weights=0.5)
        | dict(unknown_rate=0.0, weight_decay=1.2e-6, optimizer="sgd", learning_rate=1.0, clip=0.25)
        | dict(batch_size=20, epochs=50, average="non_monotone"),
    },
    model="dynamic:3",
    sample_text="a film that is never quite as funny as it wants to be",
    samples=10,
)
