"""Multi-query associative recall: Arora et al. (2023), a test of memory on which LSTMs fail.

    python -m experiments.recall --compare lstm,dynamic:128
    python -m experiments.recall --model dynamic:128 --control untrained
    python -m experiments.recall --length 256 --model dynamic:512

A row begins with pairs of a key and a value, one pair for 16 words. Each key returns once, and the model
predicts its value. The agent compares a query with all earlier states, and copies the word that followed the
state it chose. Training weighs all states; evaluation takes the most probable one.

Presets: `relaxed` (the default).
"""

import dataclasses
from typing import Annotated, ClassVar, Literal

from dynskip_jax.config import For
from dynskip_jax.experiment import Experiment
from dynskip_jax.experiments.agreement.config import Generated, MaskedAgent
from dynskip_jax.experiments.number_prediction.config import RelaxedTraining, SyntheticData
from dynskip_jax.settings import Model, Settings
from dynskip_jax.training.model_names import COPYING


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallModel(Model):
    """What the network is made of."""

    copy: Annotated[Literal["none", "chosen", "expected"], For(COPYING)] = "chosen"
    """Copy words of the last k steps: the one after the chosen state, or all by probability (expected)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallSettings(Generated, Settings):
    """All settings of associative recall."""

    made: ClassVar[str] = "rows are generated"
    data: SyntheticData = SyntheticData(length=64, train_examples=100_000)
    model: RecallModel = RecallModel()
    agent: MaskedAgent = MaskedAgent()
    training: RelaxedTraining = RelaxedTraining()


EXPERIMENT = Experiment(
    name="recall",
    about=__doc__,
    task="dynskip_jax.experiments.recall.task",
    settings=RecallSettings,
    presets={
        "relaxed": dict(
            features=64, mix=0.0, agent="content", agent_features=64, rl_coef=0.0, entropy_coef=0.0
        )
        | dict(relaxation="soft", relaxed_epochs=2, epochs=2, batch_size=64, learning_rate=0.003, clip=1.0)
    },
    model="dynamic:128",
    commands=("explain",),
    columns={
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_twice": ("test, twice as long", ".2%"),
    },
)
