"""Multi-query associative recall: Arora et al. (2023), a test of memory on which LSTMs fail.

    python -m experiments.recall --compare lstm,dynamic:128
    python -m experiments.recall --model dynamic:128 --control untrained
    python -m experiments.recall --length 256 --model dynamic:512

A row begins with pairs of a key and a value, one pair for 16 words. Each key returns once, and the
model predicts its value. The agent copies the word that followed the state it chose. Training
weighs all states; evaluation takes the most probable one.
"""

import dataclasses
from typing import Literal

from dynskip_jax.config.experiment import ACCURACY, Experiment
from dynskip_jax.config.settings import Model, Settings, with_groups
from dynskip_jax.experiments.agreement.config import MaskedAgent
from dynskip_jax.experiments.number_prediction.config import RelaxedTraining, SyntheticData


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallModel(Model):
    """What the network is made of."""

    copy: Literal["none", "chosen", "expected"] = "chosen"
    """Copy words of the last k steps: the one after the chosen state, or all by probability
    (expected).
    """


EXPERIMENT = Experiment(
    name="recall",
    about=__doc__,
    task="dynskip_jax.experiments.recall.task:Recall",
    settings=with_groups(
        Settings,
        data=SyntheticData(length=64, train_examples=100_000),
        model=RecallModel(),
        agent=MaskedAgent(),
        training=RelaxedTraining(),
    ),
    presets={
        # λ = 0: the state never enters the cell, so that only copying is learnt by the choice.
        "relaxed": dict(
            features=64, mix=0.0, agent="content", agent_features=64, rl_coef=0.0, entropy_coef=0.0
        )
        | dict(
            relaxation="soft",
            relaxed_epochs=2,
            epochs=2,
            batch_size=64,
            learning_rate=0.003,
            clip=1.0,
        )
    },
    model="dynamic:128",
    commands=("explain",),
    read="dynskip_jax.experiments.language_task:read_words",
    sample_text="17 4500 23 5100 42 6200 99 7300 301 2222 42 888 17 3111 99 4040 23 5100",
    measure="dynskip_jax.experiments.recall.task:measure_longer",
    columns=ACCURACY
    | {
        "test_accuracy_twice": ("test, twice as long", ".2%"),
        "test_accuracy_twice_greedy": ("twice, greedy", ".2%"),
        "test_accuracy_twice_sampled": ("twice, sampled", ".2%"),
    },
)
