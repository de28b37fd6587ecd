"""Resolve a model's name and the settings into one specification, `ModelSpec`."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.config.settings import SWEPT, Agent, Settings, fields_of, get
from dynskip_jax.errors import UserError
from dynskip_jax.runs.pieces import make_time_skip, make_transition


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """One model of a run."""

    name: str
    skip: F.TimeSkip  # of the top layer: the named one, or what replaces it in a control
    transition: F.Transition
    depth_skip: F.DepthSkip | None
    copy: str  # how a language model copies words of the past: `none`, `chosen` or `expected`
    objective: Agent
    values: tuple[dict[str, Any], ...]  # settings of each value of a sweep; one {} without one
    mixes: tuple[float, ...] | None  # λ of each model that is trained together, if swept
    seeds: tuple[int, ...]  # of each value of the sweep
    evaluation_mode: str
    is_untrained: bool  # whether the agents keep their initial parameters, as a control
    agent_learning_rate: float | None  # of the agents' own Adam; None: the network's optimizer
    dtype: Any
    has_skip: tuple[bool, ...]  # whether each layer has the time skip, bottom first
    cell_options: Mapping[str, Any]  # of `SkipCell` in a layer with the time skip

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Seed of each model that is trained together, in the order of the values of a sweep."""
        return self.seeds * len(self.values)

    def layer_options(self) -> dict[str, Any]:
        """Return the options of a model's layers."""
        skips = tuple(self.skip if has_skip else F.Previous() for has_skip in self.has_skip)
        return dict(
            skip=skips, transition=self.transition, depth_skip=self.depth_skip, dtype=self.dtype
        )

    def of_value(self, number: int) -> "ModelSpec":
        """Return the specification of one value of a sweep, for its seeds only."""
        count = len(self.seeds)
        own = slice(number * count, (number + 1) * count)
        mixes = self.mixes
        if mixes is not None:
            mixes = mixes[own]
        return dataclasses.replace(self, values=(self.values[number],), mixes=mixes)

    def choices_matter(self, member: int | None = None) -> bool:
        """Return whether sampled choices change the output of any model, or of one by index.

        With λ = 0 no chosen state enters, so choices matter only if words are copied by them.
        """
        if not self.skip.is_stochastic:
            return False
        if self.copy == "chosen" or not self.skip.writes_all:
            return True
        values = self.values if member is None else [self.values[member // len(self.seeds)]]
        return any(value.get("mix", self.skip.mix) for value in values)


def make_spec(name: str, settings: Settings, *, may_import: bool = False) -> ModelSpec:
    """Return a model's specification by its name: `dynamic:5`, `my_pieces:LogSpaced(16)`.

    With `may_import` user-defined skips and transitions are imported: for those of a command line
    only.
    """
    agent = settings.agent
    model = settings.model
    named = make_time_skip(name, settings, may_import)
    skip = _controlled(named, settings)
    transition = make_transition(settings, may_import)
    depth_skip = None
    if model.depth_skip is not None:
        depth_skip = F.parse_depth_skip(model.depth_skip)

    values = _swept_values(skip, settings)
    seeds = tuple(settings.run.all_seeds)
    mixes = None
    if "mix" in values[0]:
        mixes = of_each(values, "mix", len(seeds))
    agent_learning_rate = _agent_learning_rate(skip, settings)
    if isinstance(settings.training.learning_rate, tuple) and agent_learning_rate is not None:
        raise UserError(
            "a sweep over --learning-rate includes agents: give --agent-learning-rate none"
        )

    is_untrained = agent.control == "untrained" and isinstance(named, F.Dynamic)
    return ModelSpec(
        name=name,
        skip=skip,
        transition=transition,
        depth_skip=depth_skip,
        copy=_copy(skip, settings),
        objective=_objective(skip, settings, is_untrained=is_untrained),
        values=values,
        mixes=mixes,
        seeds=seeds,
        evaluation_mode=agent.evaluation_mode,  # of a control, too: both are compared in one mode
        is_untrained=is_untrained,
        agent_learning_rate=agent_learning_rate,
        dtype={"f32": jnp.float32, "bf16": jnp.bfloat16}[model.precision],
        has_skip=tuple(layer == model.num_layers for layer in range(1, model.num_layers + 1)),
        cell_options=_cell_options(settings),
    )


def _copy(skip: F.TimeSkip, settings: Settings) -> str:
    """Return how a model with this skip copies words: without a distribution over k, not at all."""
    can_copy = skip.max_skip > 1 and skip.has_distribution
    return settings.model.copy if can_copy else "none"


def _agent_learning_rate(skip: F.TimeSkip, settings: Settings) -> float | None:
    """Return the rate of the Adam of agents, and of attention that points at words to copy.

    The network's gradient descent does not teach a pointer. Attention that only mixes states is
    part of the network.
    """
    points = skip.has_agent and _copy(skip, settings) != "none"
    if skip.is_stochastic or points:
        return settings.agent.agent_learning_rate
    return None


def _controlled(skip: F.TimeSkip, settings: Settings) -> F.TimeSkip:
    """Return the skip that replaces a dynamic skip in a control, or this one."""
    control = settings.agent.control
    if control not in ("histogram", "mean") or not isinstance(skip, F.Dynamic):
        return skip
    alike = dict(max_skip=skip.max_skip, mix=skip.mix, first_step=skip.first_step)
    if control == "mean":
        return F.Mean(**alike)
    return F.Random(**alike, rates=settings.agent.control_of)


def _objective(skip: F.TimeSkip, settings: Settings, *, is_untrained: bool) -> Agent:
    """Return the objective of a model, without the settings that do not apply to its skip.

    Skips that do not sample have only a reward and an update cost. Relaxed epochs are removed for
    untrained agents and for skips that cannot be relaxed.
    """
    objective = settings.agent
    if not skip.is_stochastic:
        return Agent(reward=objective.reward, update_cost=objective.update_cost)
    relaxes = not is_untrained and objective.relaxation != "none"
    relaxes = relaxes and skip.differentiable(objective.relaxation, False)
    if objective.relaxed_epochs and not relaxes:
        none = dict(relaxation="none", relaxed_epochs=0, relaxed_entropy_coef=None)
        # Agents in environments have no number of relaxed epochs.
        fields = {field.name for field in dataclasses.fields(objective)}
        objective = dataclasses.replace(
            objective, **{name: value for name, value in none.items() if name in fields}
        )
    if is_untrained:
        return dataclasses.replace(objective, rl_coef=0.0)
    return objective


def _swept_values(skip: F.TimeSkip, settings: Settings) -> tuple[dict[str, Any], ...]:
    """Return the settings of each value of a sweep: all combinations; one {} without a sweep."""
    applies = dict(mix=skip.has_agent, learning_rate=True)
    given = {name: get(settings, name) for name in SWEPT if applies[name]}
    swept = {name: values for name, values in given.items() if isinstance(values, tuple)}
    return tuple(
        dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())
    )


def of_each(values: Sequence[Mapping[str, Any]], name: str, num_seeds: int) -> tuple:
    """Return the value of a swept setting for each model that is trained together."""
    return tuple(value[name] for value in values for _ in range(num_seeds))


def _cell_options(settings: Settings) -> dict[str, Any]:
    recipe = settings.model.recipe
    forget_bias = 1.0 if recipe in ("released", "two_hops") else 0.0
    options = dict(agent_features=settings.agent.agent_features, forget_bias=forget_bias)
    if recipe == "released":
        kernel = nnx.initializers.normal(0.3)
        bias = nnx.initializers.constant(0.1)
        options["agent_init"] = F.Initializers(kernel, bias=bias)
    return options


def variant_of(spec: ModelSpec, settings: Settings) -> dict[str, Any]:
    """Return settings, without defaults, that distinguish a model from others of its name."""
    variant = {}
    fields = fields_of(Settings)
    kind = F.TIME_SKIPS.get(spec.name.partition(":")[0])  # None: a class of the user's own
    chooses = kind is None or issubclass(kind, F.Dynamic)
    has_effect = {
        "transition": True,
        "depth_skip": True,
        "agent": chooses,
        "agent_keys": chooses,
        "stride": chooses or spec.skip.has_agent,
        "control": chooses,
        "top": kind in (None, F.SparseAttention),
    }
    for name in filter(has_effect.get, has_effect):
        _, _, usual = fields[name]
        value = get(settings, name)
        if value != usual:
            variant[name] = value
    if spec.copy != "none":
        variant["copy"] = spec.copy
    return variant
