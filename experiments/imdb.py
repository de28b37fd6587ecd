"""Sentiment of movie reviews (IMDB): Gui et al. (2019), Table 4.

    python -m experiments.imdb --data DIR --compare lstm,dynamic:3,skip_rnn,lstm_jump
    python -m experiments.imdb bigrams --data DIR
    python -m experiments.imdb predict --run-dir DIR < reviews.txt
    python -m experiments.imdb explain --run-dir DIR --text "not as bad as they say"

Presets: `small` (64 units, the default, for two cores), `paper` (128 units, the last state, one direction),
`strong` (past the paper: 200 units in both directions, 1,000 words of a review, the maximum over states,
words and their features dropped, averaged weights). `bigrams` is the linear model on pairs of words that any
of them has to beat.

Without --data the reviews are looked for in $DYNSKIP_DATA_DIR/imdb, in the TFDS cache and at their upstream
address. 15 % of train are held out as dev.
"""

import dataclasses
from typing import Any

from dynskip_jax.settings import path_setting, setting
from experiments.ceiling_flags import CEILING
from experiments.command_line import Command, Subcommand
from experiments.sentence_settings import AGENT, ClassifierSettings, SentenceData
from experiments.text import EXPLAIN, PREDICT

PRESETS: dict[str, dict[str, Any]] = {
    # Fewer words and half the units; means over states learn in fewer epochs than last states do.
    "small": dict(
        **AGENT,
        max_words=20_000,
        features=64,
        embedding_features=64,
        pooling="mean",
        dropout=0.5,
        dropout_inputs=0.5,
        dropout_words=0.2,
        locked=True,
        learning_rate=0.002,
        clip=1.0,
        epochs=5,
        patience=2,
    ),
    # Gui et al. (2019), Section Sentiment Analysis on IMDB, where they say it: optimizer, learning rate,
    # epochs and the size of random vectors are not given there.
    "paper": dict(features=128, dropout=0.2, dropout_inputs=0.0, epochs=10, patience=3, clip=5.0),
    "strong": dict(
        **AGENT,
        max_words=40_000,
        features=200,
        bidirectional=True,
        pooling="max",
        embedding_features=128,
        dropout=0.5,
        dropout_inputs=0.4,
        dropout_words=0.1,
        locked=True,
        clip=1.0,
        max_length=1000,
        epochs=6,
        patience=3,
        average="always",
        average_after=2,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviewData(SentenceData):
    """The reviews."""

    max_length: int = setting(400, "Longer reviews are cropped to so many words.", at_least=1)
    dev_seed: int = setting(0, "Which 15 % of train are dev.", at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReviewSettings(ClassifierSettings):
    """All settings of sentiment on IMDB."""

    data: ReviewData = dataclasses.field(default_factory=ReviewData)


@dataclasses.dataclass(frozen=True)
class BigramFlags:
    """Flags of `bigrams`."""

    data: str | None = path_setting(None, "Folder of the data.")
    dev_seed: int = setting(0, "Which 15 % of train are dev.", at_least=0)
    max_length: int | None = setting(
        None, "Longer reviews are cropped to so many words; by default none is.", at_least=1
    )
    min_count: int = setting(2, "Words and pairs in fewer reviews of train are left out.", at_least=1)
    inverse_penalty: tuple[float, ...] = setting(
        (0.03, 0.1, 0.3, 1.0), "C of the logistic regression; of several the best on dev is taken.", above=0
    )


COMMAND = Command(
    name="imdb",
    about=__doc__,
    settings=ReviewSettings,
    presets=PRESETS,
    default_model="dynamic:3",
    experiment="experiments.imdb_experiment:IMDB",
    default_preset=lambda given: "small",
    subcommands={
        "predict": PREDICT,
        "explain": EXPLAIN,
        "ceiling": CEILING,
        "bigrams": Subcommand(
            "Measures a linear model on words and pairs of words.",
            BigramFlags,
            "experiments.imdb_bigrams:bigrams",
        ),
    },
)

if __name__ == "__main__":
    from experiments import cli, imdb

    cli.run_main(lambda: cli.main(imdb.COMMAND))
