"""Number prediction: Gui et al. (2019), Table 5.

    python -m experiments.number_prediction --length 11 --model dynamic:10 --mix 0.5
    python -m experiments.number_prediction explain --run-dir DIR --text "3 1 4 1 5 9 2 6 5 3 4"

The last symbol of a sequence says where the answer stands (length 11, and any other but 21), or where the
position of the answer stands (length 21). Presets: `relaxed` (the default: a few relaxed epochs, then four
rollouts per example), `two_hops` (the default at length 21: the number of the step stands beside each digit),
`far` (the default beyond: 64 units), `rollouts` (nothing relaxed), `paper` (Eq. 5 as printed), `released` (as
the authors' code does it). RESULTS.md has what came out, and how long it took.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from dynskip_jax.settings import path_setting, setting
from experiments.ceiling_flags import CEILING
from experiments.command_line import Command
from experiments.settings import Data, EvenAgent, Model, Settings, Training
from experiments.text import EXPLAIN, PREDICT

TWO_HOPS = 21  # the length at which it takes two

# How agents are trained once their choices are sampled: leave-one-out over four rollouts of each example
# (Kool et al. 2019), and the exact entropy.
_ROLLOUTS = dict(rollouts=4, baseline="rollouts", entropy="exact")

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's model, its agent trained on four rollouts per example with a leave-one-out baseline (Kool et
    # al. 2019) and the exact entropy at a small weight. The plain LSTM learns slowly and for long: hence the
    # many epochs, and early stopping on dev for those that need few.
    "rollouts": dict(**_ROLLOUTS, entropy_coef=0.02, epochs=25, patience=5),
    # As `rollouts`, after a few relaxed epochs, in which the gradient says which states would have helped.
    # The entropy first keeps the policy open and then closes it, so that choosing one state changes little.
    "relaxed": dict(
        relaxation="soft",
        relaxed_epochs=3,
        relaxed_entropy_coef=0.02,
        relaxed_entropy_coef_final=-0.04,
        **_ROLLOUTS,
        entropy_coef=0.005,
        sampled_decay=0.5,
        epochs=25,
        patience=3,
    ),
    # Two hops take a chain of choices: the number of the step lets the agent tell its links apart, and the
    # entropy keeps the policy open until rollouts choose. Closing it before (as in `relaxed`) ends at 95 %.
    # Half as many units as the paper's.
    "two_hops": dict(
        positions="input",
        agent_init="one_hot",
        agent_features=100,
        forget_bias=1.0,
        mix=1.0,
        features=100,
        learning_rate=0.002,
        sampled_decay=0.6,
        clip=1.0,
        relaxation="soft",
        relaxed_epochs=5,
        **_ROLLOUTS,
        entropy_coef=0.02,
        entropy_coef_final=0.0,
        epochs=10,
    ),
    # One hop from far away, K = 50 to 200: as `relaxed`, without any entropy. Its bonus is a sum over all
    # steps, of which only the last one matters, and closing the policy early fixes wrong choices: 80 % at
    # length 51. The large learning rate makes the relaxed epochs, whose cost grows with K, few.
    "far": dict(
        features=64,
        batch_size=64,
        train_examples=50_000,
        learning_rate=0.003,
        relaxation="soft",
        relaxed_epochs=2,
        relaxed_entropy_coef=0.0,
        **_ROLLOUTS,
        entropy_coef=0.0,
        sampled_decay=0.5,
        epochs=4,
    ),
    # Gui et al. (2019), Section Number Prediction with Skips; batch size and epochs are not given there.
    "paper": {},
    # As `paper`, with the choices of the authors' released code.
    "released": dict(
        mix=1.0,
        agent_features=10,
        agent_input="mean",
        agent_init="normal",
        first_step="carried",
        forget_bias=1.0,
        reward="correct",
        entropy_coef=0.0,
        evaluation_mode="sample",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberData(Data):
    """The examples."""

    data: str | None = path_setting(
        None, "A folder in which the examples are kept, and made if they are not there; by default in memory."
    )
    length: int = setting(
        11,
        "11: one hop, y = x[x[10]]. 21: two hops, y = x[x'] with x' = x[x[20]] < x[20]. Any other T up to "
        "501: one hop, y = x[x[T-1]], to anywhere in the sequence.",
    )
    train_examples: int = setting(100_000, "Training examples; the paper's are 100,000.", at_least=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberModel(Model):
    """What the network is made of."""

    positions: Literal["none", "input"] = setting(
        "none",
        "input: the number of the step stands beside each symbol, for network and agent; none (the paper).",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberAgent(EvenAgent):
    """Skips over time, the agents that choose them, and how these are trained."""

    agent_init: Literal["lecun", "normal", "one_hot"] = setting(
        "lecun",
        "lecun; normal: N(0, 0.3) and biases 0.1; one_hot: lecun, by how many features of the input are 1.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberTraining(Training):
    """For how long and how fast."""

    epochs: int = setting(20, "Passes over the training data; a run folder's may grow.", at_least=1)
    batch_size: int = setting(128, "Sequences of a training step.", at_least=1)
    sampled_decay: float = setting(
        1.0,
        "Factor on the learning rate, once an epoch after the relaxed epochs; without these the rate stays.",
        above=0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NumberSettings(Settings):
    """All settings of number prediction; batch size and epochs are not given in the paper."""

    data: NumberData = dataclasses.field(default_factory=NumberData)
    model: NumberModel = dataclasses.field(default_factory=NumberModel)
    agent: NumberAgent = dataclasses.field(default_factory=NumberAgent)
    training: NumberTraining = dataclasses.field(default_factory=NumberTraining)


def default_preset(given: Mapping[str, Any]) -> str:
    """Returns the preset that solves the task of a length."""
    length = given.get("length", 11)
    if length == TWO_HOPS:
        return "two_hops"
    return "relaxed" if length < TWO_HOPS else "far"


COMMAND = Command(
    name="number_prediction",
    about=__doc__,
    settings=NumberSettings,
    presets=PRESETS,
    default_model="dynamic:10",
    experiment="experiments.number_prediction_experiment:NumberPrediction",
    default_preset=default_preset,
    subcommands={"predict": PREDICT, "explain": EXPLAIN, "ceiling": CEILING},
)

if __name__ == "__main__":
    from experiments import cli, number_prediction

    cli.run_main(lambda: cli.main(number_prediction.COMMAND))
