"""Settings that all experiments share, the library objects they stand for, and how presets are filled in."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx

from dynskip_jax.errors import UserError
from dynskip_jax.functional import TimeSkip, parse_depth_skip, parse_time_skip, parse_transition
from dynskip_jax.training import objective
from dynskip_jax.training.stage import Sweep

COUNTS = (
    "epochs",
    "batch_size",
    "features",
    "agent_features",
    "seeds",
    "rollouts",
    "num_layers",
    "num_steps",
    "train_examples",
)
PRECISIONS = {"f32": jnp.float32, "bf16": jnp.bfloat16}
CHOICES = {
    "agent_input": ("previous", "mean"),
    "empty_slots": ("initial", "masked"),
    "first_step": ("agent", "carried"),
    **objective.CHOICES,
    "evaluation_mode": ("greedy", "sample"),
    "positions": ("none", "input"),
    "embedding": ("words", "characters"),
    "average": ("none", "non_monotone", "always"),
    "recurrent_init": ("uniform", "by_size", "orthogonal"),
    "precision": tuple(PRECISIONS),
    "agent_init": ("uniform", "lecun", "one_hot", "normal"),
}
MAX_SEED = 2**32 - 1  # beyond, JAX would repeat the keys of others
POSITIVE = (
    "learning_rate",
    "decay",
    "sampled_decay",
    "clip",
    "agent_learning_rate",
    "init_scale",
    "temperature",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommonSettings:
    """Every setting as resolved; the defaults are the paper's, where it says anything.

    `mixes` and `max_skips` are sweeps over λ and K: a model with an agent is then trained with each value (or
    pair of values), all in one program. `agent_init` is `uniform` or `lecun` (as the network's weights), or
    `normal`: N(0, 0.3) and biases 0.1.
    """

    preset: str
    features: int
    batch_size: int
    epochs: int
    learning_rate: float
    dropout: float = 0.0
    patience: int = 0
    seed: int = 0
    seeds: int = 1
    transition: str = "lstm"
    depth_skip: str | None = None
    mix: float = 1.0
    mixes: tuple[float, ...] = ()
    max_skips: tuple[int, ...] = ()
    agent_features: int = 50
    agent_input: str = "previous"
    agent_init: str
    empty_slots: str = "initial"
    first_step: str = "agent"
    forget_bias: float = 0.0
    reward: str = "log_likelihood"
    rl_coef: float = 1.0
    entropy_coef: float = 1.0
    entropy_coef_final: float | None = None
    entropy: str = "sampled"
    discount: float = 1.0
    baseline: str = "none"
    rollouts: int = 1
    estimator: str = "reinforce"
    relaxation: str = "none"
    relaxed_epochs: int = 0
    relaxed_entropy_coef: float | None = None
    relaxed_entropy_coef_final: float | None = None
    temperature: float = 1.0
    temperature_final: float | None = None
    evaluation_mode: str = "greedy"
    precision: str = "f32"

    def __post_init__(self) -> None:
        """Checks the values, with messages that name the flag.

        Raises:
            UserError: a value makes no sense.
        """
        for name in COUNTS:
            if getattr(self, name, 1) < 1:
                raise UserError(f"{_flag(name)} must be at least 1, got {getattr(self, name)}")
        for name in POSITIVE:
            value = getattr(self, name, None)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise UserError(f"{_flag(name)} must be positive and finite, got {value}")
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name != "mix" and isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{_flag(field.name)} must be a finite number, got {value}")
        for name, known in CHOICES.items():
            if getattr(self, name, known[0]) not in known:
                raise UserError(f"{_flag(name)} is {getattr(self, name)!r}: choose {' or '.join(known)}")
        if not 0.0 <= self.dropout < 1.0:
            raise UserError(f"--dropout lies in [0, 1), got {self.dropout}")
        for name in ("patience", "seed"):
            if getattr(self, name) < 0:
                raise UserError(f"{_flag(name)} must not be negative, got {getattr(self, name)}")
        if self.seed > MAX_SEED + 1 - self.seeds:
            raise UserError(f"seeds lie between 0 and {MAX_SEED:,}, got {self.seed} and {self.seeds} of them")
        # The rest is checked where it is used, by the classes that these make.
        for mix in self.mixes:
            dataclasses.replace(self.skip("dynamic:1"), mix=mix)
        if self.max_skips and min(self.max_skips) < 1:
            raise UserError(f"--max-skip must be at least 1, got {min(self.max_skips)}")
        self.skip("dynamic:1")
        self.recurrent_options()
        self.agent_objective(is_stochastic=True)

    def values(self, model: str) -> tuple[dict[str, Any], ...]:
        """Returns what a sweep sets for a model, value by value; one empty dictionary without a sweep."""
        if not self.skip(model).has_agent:
            return ({},)
        mixes = [{"mix": mix} for mix in self.mixes] or [{}]
        max_skips = [{"max_skip": K} for K in self.max_skips] or [{}]
        return tuple({**mix, **K} for mix, K in itertools.product(mixes, max_skips))

    def all_seeds(self, model: str) -> tuple[int, ...]:
        """Returns the seed of each model that is trained: all seeds with the first value, then the second."""
        seeds = range(self.seed, self.seed + self.seeds)
        return tuple(seeds) * len(self.values(model))

    def sweep(self, model: str) -> Sweep:
        """Returns in what else than their seeds these models differ.

        Raises:
            UserError: a value is beyond what the model can do.
        """
        values, K = self.values(model), self.skip(model).max_skip
        if any(value.get("max_skip", 0) > K for value in values):
            raise UserError(f"--max-skip {max(self.max_skips)} is beyond {model}: name a larger k")

        def each(name: str) -> tuple | None:
            if name not in values[0]:
                return None
            return tuple(value[name] for value in values for _ in range(self.seeds))

        return Sweep(mix=each("mix"), max_skip=each("max_skip"))

    @property
    def dtype(self) -> Any:
        """In which matrices are multiplied."""
        return PRECISIONS[self.precision]

    def recurrent_options(self) -> dict[str, Any]:
        """Returns the transition and the skip over depth of every layer."""
        return dict(
            transition=parse_transition(self.transition),
            depth_skip=None if self.depth_skip is None else parse_depth_skip(self.depth_skip),
        )

    def skip(self, model: str) -> TimeSkip:
        """Returns the time skip that a model's name stands for under these settings."""
        return parse_time_skip(
            model,
            mix=self.mix,
            agent_input=self.agent_input,
            empty_slots=self.empty_slots,
            first_step=self.first_step,
        )

    def agent_objective(self, is_stochastic: bool) -> objective.AgentObjective:
        """Returns how agents are rewarded; without any, nothing is gained from rollouts."""
        return objective.AgentObjective(
            reward=self.reward,
            rl_coef=self.rl_coef,
            entropy_coef=self.entropy_coef,
            entropy_coef_final=self.entropy_coef_final,
            entropy=self.entropy,
            discount=self.discount,
            baseline=self.baseline if is_stochastic else "none",
            rollouts=self.rollouts if is_stochastic else 1,
            estimator=self.estimator if is_stochastic else "reinforce",
            relaxation=self.relaxation if is_stochastic else "none",
            relaxed_epochs=self.relaxed_epochs if is_stochastic else 0,
            relaxed_entropy_coef=self.relaxed_entropy_coef if is_stochastic else None,
            relaxed_entropy_coef_final=self.relaxed_entropy_coef_final if is_stochastic else None,
            temperature=self.temperature if is_stochastic else 1.0,
            temperature_final=self.temperature_final if is_stochastic else None,
        )

    def cell_options(self) -> dict[str, Any]:
        """Returns the options of `SkipCell` that all experiments share."""
        options: dict[str, Any] = dict(agent_features=self.agent_features, forget_bias=self.forget_bias)
        if self.agent_init == "normal":
            options["agent_kernel_init"] = nnx.initializers.normal(0.3)
            options["agent_bias_init"] = nnx.initializers.constant(0.1)
        return options


def resolve(flags: Any, settings: type, presets: dict[str, dict[str, Any]], default_preset: str) -> Any:
    """Fills a settings dataclass from a preset and the flags given beside it.

    Args:
        flags: the command line, a dataclass; fields that are None do not count.
        settings: the dataclass to fill.
        presets: name to values.
        default_preset: the preset to use if the command line names none.

    Raises:
        UserError: an unknown preset, or a value that makes no sense.
    """
    preset = flags.preset or default_preset
    if preset not in presets:
        raise UserError(f"unknown preset {preset!r}: choose one of {', '.join(presets)}")
    names = {field.name for field in dataclasses.fields(settings)}
    given = {name: value for name, value in vars(flags).items() if name in names and value is not None}
    if flags.mix is not None:
        mixes = numbers("--mix", flags.mix, float)
        given["mix"], given["mixes"] = mixes[0], mixes if len(mixes) > 1 else ()
    if flags.max_skip is not None:
        given["max_skips"] = numbers("--max-skip", flags.max_skip, int)
    return settings(**{**presets[preset], **given, "preset": preset})


def numbers(flag: str, text: str | float, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    """Reads one number, or several separated by commas.

    Raises:
        UserError: something in between is no number, or a number is named twice.
    """
    try:
        values = tuple(kind(part) for part in str(text).split(","))
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"{flag} takes {what}, several separated by commas; got {text!r}") from None
    if len(set(values)) < len(values):
        raise UserError(f"{flag} names a value twice: {text}")
    return values


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
