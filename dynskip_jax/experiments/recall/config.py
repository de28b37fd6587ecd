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
from typing import Annotated, Any, ClassVar, Literal

from dynskip_jax.config import Bounds, Count, For, Positive
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Experiment
from dynskip_jax.settings import Agent, Data, Model, Settings, Training
from dynskip_jax.training.model_names import COPYING

PRESETS: dict[str, dict[str, Any]] = {
    "relaxed": dict(
        features=64,
        mix=0.0,
        agent="content",
        agent_features=64,
        relaxation="soft",
        relaxed_epochs=5,
        rl_coef=0.0,
        entropy_coef=0.0,
        batch_size=64,
        learning_rate=0.003,
        clip=1.0,
        epochs=5,
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallData(Data):
    """The rows."""

    length: Annotated[int, Bounds(1, 10_000)] = 64
    """Number of words in a row."""
    train_examples: Count = 20_000
    """Number of training examples."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallModel(Model):
    """What the network is made of."""

    copy: Annotated[Literal["none", "chosen", "expected"], For(COPYING)] = "chosen"
    """Copy words of the last k steps: the one after the chosen state, or all by probability (expected)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallAgent(Agent):
    """Skips over time, their agents, and how these are trained."""

    empty_slots: ClassVar[str] = "masked"  # agents do not choose what lies before the row


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallTraining(Training):
    """For how long and how fast."""

    sampled_decay: Positive = 1.0
    """Multiply the learning rate by this once an epoch, after the relaxed epochs."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallSettings(Settings):
    """All settings of associative recall."""

    data: RecallData = RecallData()
    model: RecallModel = RecallModel()
    agent: RecallAgent = RecallAgent()
    training: RecallTraining = RecallTraining()

    def __post_init__(self) -> None:
        """Check that settings do not contradict each other."""
        super().__post_init__()
        if self.data.data is not None:
            raise UserError("rows are generated, and nothing is read: leave --data out")


EXPERIMENT = Experiment(
    name="recall",
    about=__doc__,
    task="dynskip_jax.experiments.recall.task",
    settings=RecallSettings,
    presets=PRESETS,
    model="dynamic:128",
    commands=("explain",),
    columns={
        "dev_accuracy": ("dev accuracy", ".2%"),
        "test_accuracy": ("test accuracy", ".2%"),
        "test_accuracy_twice": ("test, twice as long", ".2%"),
    },
)
