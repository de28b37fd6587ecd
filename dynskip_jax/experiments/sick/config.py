"""How alike two sentences are (SICK), with LSTMs, peephole and untied LSTMs.

    python -m experiments.sick --data DIR --model lstm --transition ulstm
    python -m experiments.sick predict --run-dir DIR < pairs.txt
    python -m experiments.sick explain --run-dir DIR --text $'a dog runs\ta cat runs'

`predict` and `explain` read two sentences separated by a tab, and print a rating from 1 to 5.

    small  random vectors, 150 units, the default: r of test 0.7231 ± 0.0214 with lstm
    paper  that of the paper on untied LSTMs, with GloVe's vectors (--embeddings)

Without --data the pairs are looked for in $DYNSKIP_DATA_DIR/sick.
"""

from dynskip_jax.config.experiment import Experiment, columns_of
from dynskip_jax.experiments.sentence_config import SMALL, SentenceSettings

EXPERIMENT = Experiment(
    name="sick",
    about=__doc__,
    task="dynskip_jax.experiments.sentence_task:Similarity",
    settings=SentenceSettings,
    presets={
        "small": SMALL
        | dict(features=150, embedding_features=100, dropout=(0.3,), batch_size=25)
        | dict(epochs=12, patience=4, average="always", average_after=2),
        # The paper on untied LSTMs (Section Semantic Relatedness), and Tai et al. (2015); needs
        # --embeddings.
        "paper": dict(features=150, train_embeddings=False, unknown_rate=0.0, optimizer="adagrad")
        | dict(learning_rate=0.03, weight_decay=1e-4, batch_size=25, epochs=10),
    },
    model="dynamic:3",
    columns=columns_of("pearson", "r", ".4f")
    | {"test_spearman": ("test ρ", ".4f"), "test_mse": ("test MSE", ".4f")}
    | {"test_read_fraction": ("words read", ".1%")},
    read="dynskip_jax.experiments.sentence_task:read_pair",
    sample_text="a man is playing a guitar\ta man is not playing a guitar",
)
