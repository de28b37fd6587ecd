"""A memory for agents: POPGym (Morad et al. 2023), trained by PPO.

    python -m experiments.popgym --env RepeatPreviousHard --model dynamic:72
    python -m experiments.popgym --env AutoencodeEasy --compare lstm,dynamic:104 --seeds 3
    python -m experiments.popgym watch --run-dir DIR

An agent sees a part of its environment at each step. The layer goes back to an earlier step, with a
choice that is relaxed while it trains, and hard afterwards. --env also takes any id of Gymnasium's
registry with Discrete or MultiDiscrete actions. An environment of the table has its own preset, so
that --env and --model train its row.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from dynskip_jax.config.experiment import Experiment, columns_of
from dynskip_jax.config.flags import Bounds, Count, Layers, Positive, Share, Weight
from dynskip_jax.config.settings import Agent, Data, Model, Settings, Training, with_groups
from dynskip_jax.errors import UserError

Steps = Annotated[int, Bounds(1, 10**9)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Environment(Data):
    """What is played."""

    data: ClassVar[None] = None

    env: str = "RepeatPreviousEasy"
    """Environment of POPGym, such as RepeatPreviousHard, or an id of Gymnasium's registry."""
    time: bool = False
    """Read the time, too: sine and cosine of the number of the step."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgentModel(Model):
    """What the network is made of."""

    num_layers: Layers = 1
    """Number of layers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyAgent(Agent):
    """Skips over time, and how their choices and the actions are credited."""

    # Without an effect: choices are part of the policy that PPO trains.
    reward: ClassVar[str] = "log_likelihood"
    entropy: ClassVar[str] = "exact"
    entropy_coef_final: ClassVar[None] = None
    baseline: ClassVar[str] = "none"
    rollouts: ClassVar[int] = 1
    relaxed_entropy_coef: ClassVar[None] = None
    relaxed_epochs: ClassVar[Any] = property(lambda self: int(self.relaxation != "none"))
    evaluation_mode: ClassVar[str] = "train"

    relaxation: Literal["none", "soft"] = "soft"
    """soft: while training, all states enter, weighed by their probability; none: choices are
    sampled, and their probability is part of the action's.
    """
    rl_coef: Weight = 1.0
    """Weight of the log-probability of sampled choices in PPO's ratio."""
    discount: Share = 0.99
    """γ, the discount of later rewards, per step."""
    gae_lambda: Share = 0.95
    """λ of generalized advantage estimation."""
    entropy_coef: Weight = 0.01
    """Weight of the entropy of actions and of sampled choices."""
    cool_after: Steps | None = None
    """Environment steps after which the temperature of relaxed choices falls; none: never."""
    halving_steps: Steps = 250_000
    """Environment steps in which that temperature halves."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPO(Training):
    """For how long and how fast."""

    length: ClassVar[str] = "steps"
    epochs: ClassVar[int] = 1
    patience: ClassVar[int] = 0

    steps: Steps = 1_000_000
    """Environment steps; a resumed run may have more."""
    batch_size: Count = 64
    """Episodes in an update."""
    passes: Count = 4
    """Passes over the episodes of an update, PPO's epochs."""
    minibatches: Count = 4
    """Minibatches of a pass, each of whole episodes."""
    clip_ratio: Positive = 0.2
    """ε, by which PPO clips the ratio of probabilities."""
    value_coef: Weight = 5.0
    """Weight of the squared error of the value."""

    def __post_init__(self) -> None:
        """Refuse episodes that cannot be divided evenly."""
        if self.batch_size % self.minibatches:
            raise UserError(
                f"--batch-size {self.batch_size} is no multiple of --minibatches "
                f"{self.minibatches}: change one of them"
            )


# Credit of a step's own reward only. In the environments that ask for what was seen, no action
# changes what follows.
_OWN_STEP: dict[str, Any] = dict(discount=0.0, gae_lambda=0.0)
_PLAYED_BACK = _OWN_STEP | dict(time=True)

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "RepeatPreviousEasy": _OWN_STEP | dict(steps=200_000),
    "RepeatPreviousMedium": _OWN_STEP | dict(steps=500_000),
    "RepeatPreviousHard": _OWN_STEP | dict(steps=500_000),
    "AutoencodeEasy": _PLAYED_BACK | dict(steps=1_500_000, cool_after=750_000),
    "AutoencodeMedium": _PLAYED_BACK | dict(steps=2_500_000, cool_after=1_500_000),
    "AutoencodeHard": _PLAYED_BACK | dict(steps=4_000_000, cool_after=2_500_000),
    "ConcentrationEasy": _OWN_STEP | dict(steps=5_000_000),
    "CountRecallEasy": _OWN_STEP | dict(steps=5_000_000),
    # One card decides all rewards of an episode, so it takes many small steps.
    "RepeatFirstMedium": _OWN_STEP | dict(steps=1_500_000, minibatches=16),
}


def preset_of(given: Mapping[str, Any]) -> str:
    """Return the preset of the environment that is played."""
    env = given.get("env", Environment.env)
    return env if env in PRESETS else "default"


EXPERIMENT = Experiment(
    name="popgym",
    about=__doc__,
    task="dynskip_jax.experiments.popgym.task:PopGym",
    learner="dynskip_jax.agents.trainer:AgentLearner",
    settings=with_groups(
        Settings,
        data=Environment(),
        model=AgentModel(features=64),
        agent=PolicyAgent(agent="both", mix=1.0),
        training=PPO(learning_rate=0.001, clip=0.5),
    ),
    presets={
        name: values if name == "default" else {"env": name} | values
        for name, values in PRESETS.items()
    },
    default_preset=preset_of,
    model="dynamic:8",
    commands=("popgym.watch",),
    measure="dynskip_jax.experiments.popgym.task:measure_training",
    draw=None,  # `watch` draws an episode
    columns=columns_of("return", "return", ".3f")
    | {
        "train_return_best": ("best in training", ".3f"),
        "train_steps_to_0.9": ("steps to 0.9", ",.0f"),
    },
)
