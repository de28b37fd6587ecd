"""Number prediction: Gui et al. (2019), Table 5.

    python -m experiments.number_prediction --compare lstm,dynamic:10 --epochs 10 --patience 2
    python -m experiments.number_prediction --length 201 --model dynamic:200
    python -m experiments.number_prediction explain --run-dir DIR --text "3 1 4 1 5 9 2 6 5 3 4"

The last symbol of a sequence says where the answer stands: one hop, at length 11 and any other up
to 501. At length 21 it says where the position of the answer stands: two hops.

    relaxed   the default: relaxed epochs, then rollouts;
              length 11: dynamic:10 100.00 %, lstm 76.24 ± 1.09 %
    two_hops  the default at length 21: digits come with the number of their step
    far       the default beyond: 64 units
    rollouts  four rollouts per example, and nothing relaxed
    paper     Eq. 5 as printed
    released  as the authors' code does it
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from dynskip_jax.config.experiment import Experiment, Published
from dynskip_jax.config.flags import Bounds, Count, Positive
from dynskip_jax.config.settings import Data, Settings, Training, with_groups
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.layers_config import LayersModel

TWO_HOPS = 21  # the length at which the task takes two hops

# A leave-one-out baseline over four rollouts of each example (Kool et al. 2019), and the exact
# entropy.
ROLLOUTS: dict[str, Any] = dict(rollouts=4, baseline="rollouts", entropy="exact")
# One hop over a long distance, K = 50 to 200: like `relaxed`, without an entropy bonus, which is a
# sum over all steps, of which only the last one matters. A policy made deterministic early keeps
# wrong choices.
FAR: dict[str, Any] = (
    dict(features=64, batch_size=64, learning_rate=0.003, sampled_decay=0.5)
    | dict(relaxation="soft", relaxed_entropy_coef=(0.0,), entropy_coef=0.0)
    | ROLLOUTS
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticData(Data):
    """The examples."""

    length: Annotated[int, Bounds(1, 10_000)] = 11
    """Length of the longest sequence."""
    train_examples: Count = 100_000
    """Number of training examples."""

    def __post_init__(self) -> None:
        """Refuse --data."""
        if self.data is not None:
            raise UserError("the examples are generated, and nothing is read: leave --data out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberModel(LayersModel):
    """What the network is made of."""

    recipe: Literal["none", "released", "two_hops"] = "none"
    """Details that have no flag: released (the code of Gui et al. 2019), two_hops (the step in the
    input).
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class RelaxedTraining(Training):
    """For how long and how fast."""

    sampled_decay: Positive = 1.0
    """Multiply the learning rate by this once an epoch, after the relaxed epochs."""


def preset_of_length(given: Mapping[str, Any]) -> str:
    """Return the name of the preset that solves the task at the given length."""
    length = given.get("length", 11)
    if length < TWO_HOPS:
        return "relaxed"
    return "two_hops" if length == TWO_HOPS else "far"


_PUBLISHED = {  # Gui et al. (2019), Table 5
    11: [
        ("", "paper: LSTM", 0.696, 0.704),
        ("", "paper: attention", 0.713, 0.725),
        ("", "paper: dynamic skip, λ=1, K=10", 0.796, 0.805),
        ("", "paper: dynamic skip, λ=0.5, K=10", 0.904, 0.905),
    ],
    21: [
        ("", "paper: LSTM", 0.262, 0.264),
        ("", "paper: attention", 0.267, 0.269),
        ("", "paper: dynamic skip, λ=1, K=10", 0.776, 0.777),
        ("", "paper: dynamic skip, λ=0.5, K=10", 0.877, 0.885),
    ],
}

EXPERIMENT = Experiment(
    name="number_prediction",
    about=__doc__,
    task="dynskip_jax.experiments.number_prediction.task:NumberPrediction",
    settings=with_groups(
        Settings, data=SyntheticData(), model=NumberModel(), training=RelaxedTraining()
    ),
    presets={
        "rollouts": ROLLOUTS | dict(batch_size=128, entropy_coef=0.02, epochs=25, patience=5),
        # In relaxed epochs the gradient shows which states would reduce the loss. The weight of the
        # entropy falls below zero: the policy becomes nearly deterministic, so sampled choices
        # change little.
        "relaxed": dict(
            relaxation="soft",
            relaxed_epochs=3,
            relaxed_entropy_coef=(0.02, -0.04),
            sampled_decay=0.5,
        )
        | (ROLLOUTS | dict(batch_size=128, entropy_coef=0.005, epochs=25, patience=3)),
        # The number of the step lets the agent distinguish the links of a chain of choices.
        "two_hops": dict(
            recipe="two_hops", features=100, agent_features=100, mix=1.0, batch_size=128
        )
        | dict(clip=1.0, learning_rate=0.002, sampled_decay=0.6, epochs=10)
        | dict(relaxation="soft", relaxed_epochs=5)
        | (ROLLOUTS | dict(entropy_coef=0.02, entropy_coef_final=0.0)),
        # The cost of relaxed epochs grows with K; the large learning rate keeps their number small.
        "far": FAR | dict(train_examples=50_000, relaxed_epochs=2, epochs=4),
        # Gui et al. (2019), Section Number Prediction with Skips, which gives no batch size and
        # epochs.
        "paper": dict(batch_size=128, epochs=20),
        # Like `paper`, with the settings of the authors' released code.
        "released": dict(batch_size=128, epochs=20, recipe="released", mix=1.0, agent_features=10)
        | dict(reward="correct", entropy_coef=0.0, evaluation_mode="sample"),
    },
    default_preset=preset_of_length,
    model="dynamic:10",
    published=tuple(
        Published(f"number_prediction/length_{length}", ["dev_accuracy", "test_accuracy"], rows)
        for length, rows in _PUBLISHED.items()
    ),
    measure="dynskip_jax.experiments.number_prediction.task:measure_choices",
    draw="dynskip_jax.experiments.number_prediction.task:draw_choices",
    sample_text="3 1 4 1 5 9 2 6 5 3 4",
)
