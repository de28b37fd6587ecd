"""Resolve a model's name and the settings into one specification, `ModelSpec`."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.own_pieces import is_own_piece, make_own_piece
from dynskip_jax.settings import Settings, sweep_of
from dynskip_jax.training.agent_settings import AgentSettings
from dynskip_jax.training.sweep import Sweep

# Settings that a sweep may vary: of models with an agent or attention, of models that sample, and of models
# that learn by gradient which tokens to read.
_OF_CHOICES = ("mix", "max_skip")
_OF_SAMPLING = ("entropy_coef",)
_OF_UPDATES = ("update_cost",)

# Settings that are passed to time skips; each kind of skip uses those that it has.
_SKIP_SETTINGS = ("agent", "empty_slots", "stride", "top", "max_jump", "read_steps", "max_jumps")


@dataclasses.dataclass(frozen=True)
class ModelSpec:
    """One model of a run.

    Attributes:
        name: Name on the command line, such as `dynamic:5`.
        named_skip: Time skip that the name describes.
        skip: Time skip of the top layer: `named_skip`, or the skip that replaces it in a control.
        transition: Transition of every layer.
        depth_skip: Depth skip of every layer, or None.
        copy: How a language model copies words of the past: `none`, `chosen` or `expected`.
        objective: Objective that trains the agents.
        values: Settings of each value of a sweep, by name; one empty mapping without a sweep.
        sweep: The swept settings, with one value for each model that is trained together.
        seeds: Seeds of each value of the sweep.
        evaluation_mode: How the agents choose on dev and test.
        is_untrained: Whether the agents keep their initial parameters, as a control.
        agent_learning_rate: Rate of the agents' own Adam; None if they share the network's optimizer.
        dtype: Dtype of matrix products.
        cell_options: Options of `SkipCell` in the layer with the time skip.
        max_skip: Limit on k that `--max-skip` sets; None without a limit, or if a sweep varies it.
        variant: Settings that distinguish the model from others of its name in result rows.
    """

    name: str
    named_skip: F.TimeSkip
    skip: F.TimeSkip
    transition: F.Transition
    depth_skip: F.DepthSkip | None
    copy: str
    objective: AgentSettings
    values: tuple[dict[str, Any], ...]
    sweep: Sweep
    seeds: tuple[int, ...]
    evaluation_mode: str
    is_untrained: bool
    agent_learning_rate: float | None
    dtype: Any
    cell_options: Mapping[str, Any]
    max_skip: int | None
    variant: Mapping[str, Any]

    @property
    def all_seeds(self) -> tuple[int, ...]:
        """Seed of each model that is trained together, in the order of the values of a sweep."""
        return self.seeds * len(self.values)

    def of_one(self, member: int) -> "ModelSpec":
        """Return the specification of one of the models that are trained together.

        Args:
            member: Index of the model, in the order of `all_seeds`.
        """
        value, seed = divmod(member, len(self.seeds))
        return dataclasses.replace(
            self,
            values=(self.values[value],),
            sweep=self.sweep.of_one(member),
            seeds=(self.seeds[seed],),
        )

    @property
    def recurrent_options(self) -> dict[str, Any]:
        """Options of a model that apply to every layer."""
        return dict(transition=self.transition, depth_skip=self.depth_skip)

    @property
    def reach(self) -> int:
        """Largest k that the model may choose: K, or the limit of `--max-skip` if that is smaller."""
        K = self.skip.max_skip
        return min(K, self.max_skip) if self.skip.has_agent and self.max_skip is not None else K

    @property
    def copies_in_expectation(self) -> bool:
        """Whether words are copied with the probabilities of all choices, rather than by a sampled choice."""
        return self.copy == "expected"

    @property
    def mixes(self) -> tuple[float, ...]:
        """λ of each value of the sweep."""
        return tuple(value.get("mix", self.skip.mix) for value in self.values)

    def choices_matter(self, value: Mapping[str, Any] | None = None) -> bool:
        """Return whether sampled choices change the model's output.

        With λ = 0 no chosen state enters, so choices matter only if words are copied by them.

        Args:
            value: The value of a sweep to check; by default, whether choices matter for any value.
        """
        if not self.skip.is_stochastic:
            return False
        if self.copy == "chosen" or not self.skip.writes_all:
            return True
        return any(self.mixes) if value is None else bool(value.get("mix", self.skip.mix))


def make_spec(name: str, settings: Settings, may_import: Collection[str] = ()) -> ModelSpec:
    """Return the specification of a model, from its name and the settings.

    Args:
        name: Name on the command line, such as `dynamic:5` or `my_pieces:LogSpaced(16)`.
        settings: All settings.
        may_import: Names of user-defined skips and transitions whose modules may be imported, because they
            were typed on the command line.

    Raises:
        UserError: If there is no such model, or a setting does not fit it.
    """
    agent, model = settings.agent, settings.model
    named = _named_skip(name, settings, may_import)
    skip = _controlled(named, agent.control, settings.rates)
    is_untrained = agent.control == "untrained" and isinstance(named, F.Dynamic)
    values = _swept_values(skip, settings)
    K = agent.max_skip if isinstance(agent.max_skip, int) and skip.has_agent else None
    limited = tuple({**({} if K is None else {"max_skip": K}), **value} for value in values)
    largest = max(value.get("max_skip", 0) for value in limited)
    if largest > skip.max_skip:
        raise UserError(f"--max-skip {largest} is beyond {name}: name a larger k")
    seeds = tuple(settings.run.all_seeds)
    spec = ModelSpec(
        name=name,
        named_skip=named,
        skip=skip,
        transition=_transition(settings, may_import),
        depth_skip=None if model.depth_skip is None else F.parse_depth_skip(model.depth_skip),
        copy=_copy(skip, settings),
        objective=_objective(skip, settings, is_untrained=is_untrained),
        values=values,
        sweep=_sweep(limited, len(seeds)),
        seeds=seeds,
        evaluation_mode="sample" if is_untrained else agent.evaluation_mode,
        is_untrained=is_untrained,
        agent_learning_rate=agent.agent_learning_rate if skip.is_stochastic else None,
        dtype={"f32": jnp.float32, "bf16": jnp.bfloat16}[model.precision],
        cell_options=_cell_options(settings),
        max_skip=agent.max_skip if isinstance(agent.max_skip, int) else None,
        variant={},
    )
    return dataclasses.replace(spec, variant=_variant(spec, settings))


def check_specs(specs: Sequence[ModelSpec], settings: Settings) -> None:
    """Raise a `UserError` if the models and the settings do not fit together."""
    for spec in specs:
        skip = spec.named_skip
        stride = settings.agent.stride
        if isinstance(skip, F.Dynamic) and stride > 1 and skip.num_candidates == 1:
            raise UserError(f"--stride {stride} leaves {spec.name} nothing but k = 1: choose a smaller one")
    if isinstance(settings.training.learning_rate, tuple) and any(spec.agent_learning_rate for spec in specs):
        raise UserError(
            "a sweep over --learning-rate needs agents that share the network's optimizer: give "
            "--agent-learning-rate none"
        )
    depth_skip, layers = specs[0].depth_skip, getattr(settings.model, "num_layers", 1)
    if depth_skip is not None and layers <= depth_skip.layers_below:
        raise UserError(
            f"--depth-skip {settings.model.depth_skip} joins a layer with the one {depth_skip.layers_below} "
            f"below: it needs {depth_skip.layers_below + 1} layers or more, got {layers}"
        )
    _check_sweep(specs, settings)


def _check_sweep(specs: Sequence[ModelSpec], settings: Settings) -> None:
    agent, names = settings.agent, ", ".join(spec.name for spec in specs)
    known = (*_OF_CHOICES, *_OF_SAMPLING, *_OF_UPDATES)
    swept = [name for name in known if isinstance(getattr(agent, name), tuple)]
    for name in swept:
        if not any(name in value for spec in specs for value in spec.values):
            example = "skip_rnn" if name in _OF_UPDATES else "dynamic:10"
            raise UserError(
                f"{names} has no {name} to be swept over: name a model that has, such as {example}"
            )


def _named_skip(name: str, settings: Settings, may_import: Collection[str]) -> F.TimeSkip:
    """Return the time skip that a model's name describes, before a control replaces it."""
    agent = settings.agent
    options = {key: getattr(agent, key) for key in _SKIP_SETTINGS if hasattr(agent, key)}
    options["mix"] = each(agent.mix)[0]
    if _recipe(settings) == "released":
        options |= dict(agent_input="mean", first_step="carried")
    if is_own_piece(name, F.TIME_SKIPS):
        return make_own_piece(name, F.TimeSkip, options, may_import=name in may_import)
    return F.parse_time_skip(name, **options)


def _controlled(skip: F.TimeSkip, control: str, rates: tuple[float, ...] | None) -> F.TimeSkip:
    """Return the skip that replaces a dynamic skip in a control; other skips stay unchanged.

    The control `untrained` changes only how the agent is trained, so it also leaves the skip unchanged.
    """
    if not isinstance(skip, F.Dynamic):
        return skip
    alike = dict(max_skip=skip.max_skip, mix=skip.mix, first_step=skip.first_step)
    if control == "histogram":
        return F.Random(**alike, rates=rates)
    return F.Mean(**alike) if control == "mean" else skip


def _transition(settings: Settings, may_import: Collection[str]) -> F.Transition:
    name = settings.model.transition
    if is_own_piece(name, F.TRANSITIONS):
        return make_own_piece(name, F.Transition, {}, may_import=name in may_import)
    return F.parse_transition(name)


def _copy(skip: F.TimeSkip, settings: Settings) -> str:
    """Return how a model copies words: `none` for skips without a distribution over several states."""
    chooses = skip.max_skip > 1 and skip.has_distribution
    return getattr(settings.model, "copy", "none") if chooses else "none"


def _objective(skip: F.TimeSkip, settings: Settings, *, is_untrained: bool) -> AgentSettings:
    """Return the objective of a model, without the settings that do not apply to its skip.

    Skips that do not sample have only a reward and an update cost. Relaxed epochs are removed for untrained
    agents and for skips that cannot be relaxed.
    """
    agent = settings.agent
    names = ("reward", "rl_coef", "entropy", "discount", "entropy_coef_final", "baseline", "rollouts")
    names += ("entropy_coef", "update_cost", "relaxation", "relaxed_epochs")
    relaxed = agent.relaxed_entropy_coef or (None,)
    objective = AgentSettings(
        **{name: each(getattr(agent, name))[0] for name in names},
        relaxed_entropy_coef=relaxed[0],
        relaxed_entropy_coef_final=relaxed[1] if len(relaxed) > 1 else None,
    )
    objective.check()
    if not skip.is_stochastic:
        return AgentSettings(reward=objective.reward, update_cost=objective.update_cost)
    relaxes = not is_untrained and skip.differentiable(objective.relaxation, False)
    if objective.relaxed_epochs and not relaxes:
        objective = dataclasses.replace(
            objective,
            relaxation="none",
            relaxed_epochs=0,
            relaxed_entropy_coef=None,
            relaxed_entropy_coef_final=None,
        )
    return dataclasses.replace(objective, rl_coef=0.0) if is_untrained else objective


def _swept_values(skip: F.TimeSkip, settings: Settings) -> tuple[dict[str, Any], ...]:
    names = ["learning_rate", *(_OF_CHOICES if skip.has_agent else ())]
    names += _OF_SAMPLING if skip.is_stochastic else ()
    pays_for_updates = not skip.writes_all and skip.differentiable("sample", False)
    return sweep_of(settings, [*names, *(_OF_UPDATES if pays_for_updates else ())])


def _sweep(values: Sequence[Mapping[str, Any]], num_seeds: int) -> Sweep:
    names = [name for name in Sweep._fields if name in values[0]]
    return Sweep(**{name: of_each(values, name, num_seeds) for name in names})


def of_each(values: Sequence[Mapping[str, Any]], name: str, num_seeds: int) -> tuple:
    """Return the value of a swept setting for each model that is trained together."""
    return tuple(value[name] for value in values for _ in range(num_seeds))


def _cell_options(settings: Settings) -> dict[str, Any]:
    forget_bias = 1.0 if _recipe(settings) in ("released", "two_hops") else 0.0
    options = dict(agent_features=settings.agent.agent_features, forget_bias=forget_bias)
    if _recipe(settings) == "released":
        kernel, bias = nnx.initializers.normal(0.3), nnx.initializers.constant(0.1)
        options["agent_init"] = F.Initializers(kernel, bias=bias)
    return options


def _recipe(settings: Settings) -> str:
    """Return the published system whose details are followed that have no setting of their own."""
    return getattr(settings.model, "recipe", "none")


def _variant(spec: ModelSpec, settings: Settings) -> dict[str, Any]:
    """Return the settings that distinguish a model from others of its name, unless they have their defaults.

    These are the limit on k, the transition, the depth skip, the agent, its stride, `top`, the control, and
    copying.
    """
    groups = [(settings.model, {"transition": "lstm", "depth_skip": None})]
    if isinstance(spec.named_skip, F.Dynamic):
        groups.append((settings.agent, {"agent": "mlp", "stride": 1, "control": "none"}))
    if isinstance(spec.named_skip, F.Attention):
        top = {"top": 5} if isinstance(spec.named_skip, F.SparseAttention) else {}
        groups.append((settings.agent, {"stride": 1} | top))
    limited = spec.max_skip is not None and spec.reach == spec.max_skip
    variant = {"max_skip": spec.max_skip} if limited else {}
    for group, usual in groups:
        given = {name: getattr(group, name) for name in usual}
        variant |= {name: value for name, value in given.items() if value != usual[name]}
    return variant | ({} if spec.copy == "none" else {"copy": spec.copy})


def each(value: Any) -> tuple:
    """Return the values of a setting that may be swept; a single value becomes a tuple of one."""
    return value if isinstance(value, tuple) else (value,)
