"""How alike two sentences are (SICK), with LSTMs, peephole and untied LSTMs.

    python -m experiments.sick --data DIR --model lstm --transition ulstm
    python -m experiments.sick predict --run-dir DIR < pairs.txt
    python -m experiments.sick explain --run-dir DIR --text $'a dog runs\\ta cat runs'

`predict` and `explain` read two sentences apart by a tab, and say a rating from 1 to 5. Presets: `small` (the
default, random vectors), `paper` (that of the paper on untied LSTMs; it needs GloVe's vectors, --embeddings;
its sizes were 150 to 245).

Without --data the pairs are looked for in $DYNSKIP_DATA_DIR/sick.
"""

import dataclasses
from typing import Any

from dynskip_jax.settings import setting
from experiments.ceiling_flags import CEILING
from experiments.command_line import Command
from experiments.sentence_settings import AGENT, SentenceModel, SentenceSettings, SentenceTraining
from experiments.text import EXPLAIN, PREDICT

PRESETS: dict[str, dict[str, Any]] = {
    "small": dict(
        **AGENT,
        features=150,
        embedding_features=100,
        dropout=0.3,
        locked=True,
        clip=1.0,
        epochs=12,
        patience=4,
        average="always",
        average_after=2,
    ),
    # Section Semantic Relatedness, and Tai et al. (2015), whose vectors are not trained.
    "paper": dict(
        features=150,
        train_embeddings=False,
        optimizer="adagrad",
        learning_rate=0.03,
        weight_decay=1e-4,
        epochs=10,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairModel(SentenceModel):
    """What the network is made of."""

    similarity_features: int = setting(50, "Size of the layer that compares.", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairTraining(SentenceTraining):
    """For how long and how fast."""

    batch_size: int = setting(25, "Pairs of a training step.", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PairSettings(SentenceSettings):
    """All settings of relatedness on SICK."""

    model: PairModel = dataclasses.field(default_factory=PairModel)
    training: PairTraining = dataclasses.field(default_factory=PairTraining)


COMMAND = Command(
    name="sick",
    about=__doc__,
    settings=PairSettings,
    presets=PRESETS,
    default_model="dynamic:3",
    experiment="experiments.sick_experiment:SICK",
    default_preset=lambda given: "small",
    subcommands={"predict": PREDICT, "explain": EXPLAIN, "ceiling": CEILING},
)

if __name__ == "__main__":
    from experiments import cli, sick

    cli.run_main(lambda: cli.main(sick.COMMAND))
