"""Sentiment of movie reviews (IMDB): Gui et al. (2019), Table 4.

    python -m experiments.imdb --data DIR --compare lstm,dynamic:3,skip_rnn,lstm_jump
    python -m experiments.imdb predict --run-dir DIR < reviews.txt
    python -m experiments.imdb explain --run-dir DIR --text "not as bad as they say"

    small   64 units, the default; with vectors of our own:
            lstm 88.78 ± 0.29 %, dynamic:3 88.29 ± 0.06 %
    paper   128 units, the last state, one direction
    strong  200 units in both directions, 1,000 words, maximum over states, averaged weights

Without --data the reviews are looked for in $DYNSKIP_DATA_DIR/imdb, in the TFDS cache and at their
upstream address. 15 % of train are held out as dev.
"""

from dynskip_jax.config.experiment import Experiment, Published
from dynskip_jax.config.settings import with_groups
from dynskip_jax.experiments.sentence_config import SMALL, ReviewData, SentenceSettings

EXPERIMENT = Experiment(
    name="imdb",
    about=__doc__,
    task="dynskip_jax.experiments.sentence_task:Reviews",
    settings=with_groups(SentenceSettings, data=ReviewData()),
    presets={
        # Means over states learn in fewer epochs than last states.
        "small": SMALL
        | dict(max_words=20_000, features=64, embedding_features=64, pooling="mean")
        | dict(dropout=(0.5,), dropout_words=0.2, learning_rate=0.002, epochs=5, patience=2),
        # Gui et al. (2019), Section Sentiment Analysis on IMDB, which gives no optimizer, rate or
        # epochs.
        "paper": dict(features=128, dropout=(0.0, 0.2, 0.2), unknown_rate=0.0)
        | dict(batch_size=50, clip=5.0, epochs=10, patience=3),
        "strong": SMALL
        | dict(max_words=40_000, max_length=1000, features=200, embedding_features=128)
        | dict(bidirectional=True, pooling="max", dropout=(0.4, 0.5, 0.5), dropout_words=0.1)
        | dict(epochs=6, patience=3, average="always", average_after=2),
    },
    model="dynamic:3",
    commands=("predict", "explain"),
    published=(
        Published(  # Gui et al. (2019), Table 4
            "imdb",
            ["test_accuracy"],
            [
                ("lstm", "paper: LSTM", 0.891),
                ("skip_rnn", "paper: Skip LSTM", 0.866),
                ("lstm_jump", "paper: Jump LSTM", 0.894),
                ("fixed:3", "paper: fixed skip 3", 0.896),
                ("fixed:5", "paper: fixed skip 5", 0.893),
                ("attention:3", "paper: attention", 0.894),
                ("dynamic:3", "paper: dynamic skip, λ=0.5, K=3", 0.901),
            ],
            sizes={"train": 21_250, "dev": 3_750, "test": 25_000},
            note="Published rows begin with pretrained word vectors; see --embeddings.",
        ),
    ),
    sample_text="i expected very little , but in the end it was not as bad as they say",
    # Texts are long, and each sample reads all of test again.
    samples=4,
)
