"""Settings that all experiments share, presets and sweeps; importing this module does not import JAX."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.settings import ON, allows, check, check_needs, field_types, path_setting, setting
from dynskip_jax.training.agent_settings import AgentSettings
from dynskip_jax.training.model_names import CHOOSING, REWARDED, WITH_AGENT, WITH_K, is_one_of

MAX_SEED = 2**32 - 1  # for larger seeds JAX would repeat the keys of smaller ones
Numbers = float | tuple[float, ...]  # a number, or several values of a sweep
WholeNumbers = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Which models are trained, and where the results are kept."""

    model: str | None = setting(
        None,
        "The skip over time: lstm (none), fixed:k, attention:k, content:k, sparse:k, dynamic:k, "
        "log_dynamic:k, log_attention:k, segment_dynamic:k, segment_attention:k, mean:k, random:k, "
        "skip_rnn, skim_rnn or lstm_jump; k is the longest skip. Your own: my_module:MySkip(16).",
    )
    compare: str | None = setting(
        None, "Train several models, separated by commas, into one table; a resumed run may gain some."
    )
    preset: str | None = setting(
        None, "Use a named set of settings, listed below; explicit flags take precedence."
    )
    config: str | None = path_setting(
        None, "Take the settings of a run from its config.json; explicit flags take precedence."
    )
    run_dir: str | None = path_setting(
        None, "Run folder; the same command resumes it. By default runs/<task>/<model>-<time>."
    )
    seed: int = setting(0, "The first seed.", at_least=0)
    seeds: WholeNumbers = setting(
        1,
        "Train this many seeds, from --seed on, or these seeds (1,5,9), in one program.",
        at_least=0,
        several=True,
    )
    tensorboard: bool = setting(
        False, "Write metrics while training, as TensorBoard event files, to the run folder's tensorboard/."
    )

    def __post_init__(self) -> None:
        """Check what bounds cannot express."""
        if self.model is not None and self.compare is not None:
            raise UserError("give either --model or --compare, not both")
        if self.model is not None and len(_names(self.model)) > 1:
            raise UserError(f"--model takes one model; use --compare {self.model} for several")
        if self.seeds == 0:
            raise UserError("--seeds must be at least 1, got 0")
        if max(self.all_seeds) > MAX_SEED:
            raise UserError(f"seeds lie between 0 and {MAX_SEED:,}, got {self.seed} and {self.seeds} of them")

    @property
    def all_seeds(self) -> Sequence[int]:
        """Seeds that are trained together."""
        if isinstance(self.seeds, tuple):
            return self.seeds
        return range(self.seed, self.seed + self.seeds)

    def models(self, default: str) -> tuple[str, ...]:
        """Return the names of the models to train; `default` if neither --model nor --compare is given.

        Raises:
            UserError: If a model is named twice.
        """
        given = self.compare if self.compare is not None else self.model
        names = _names(default if given is None else given)
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"--compare names {name} twice: leave one out")
        return names


def _names(text: str) -> tuple[str, ...]:
    """Return the names between commas; commas inside parentheses belong to a name."""
    return tuple(name.strip() for name in re.split(r",(?![^()]*\))", text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is read."""

    data: str | None = shared.data(None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What the network is made of."""

    features: int = shared.features(200)
    transition: str = setting(
        "lstm",
        "The recurrent cell: lstm, peephole, full_gate, plstm, ulstm, gru, slstm, min_lstm, min_gru, "
        "ind_rnn, rhn or rhn:L (L layers deep). Your own: my_module:MyTransition.",
    )
    depth_skip: str | None = setting(
        None,
        "What a layer receives from the one two below: gates, internal, gated_internal, output or "
        "gated_output; highway: from the one below; dense or attention: from all below.",
    )
    dropout: float = shared.dropout(0.0)
    forget_bias: float = setting(0.0, "Add this to the forget gate's bias in layers with a skip over time.")
    precision: Literal["f32", "bf16"] = setting(
        "f32", "bf16: multiply matrices in bfloat16; sums, states and parameters stay float32."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent(AgentSettings):
    """Skips over time, their agents, and how these are trained."""

    mix: Numbers = shared.mix(1.0)
    max_skip: WholeNumbers | None = setting(
        None,
        "Let agents choose no k beyond this; K stays the model's own.",
        at_least=1,
        sweep=True,
        needs={"model": WITH_AGENT},
    )
    agent: Literal["mlp", "content"] = setting(
        "mlp",
        "How agents score states: by an MLP, or by the dot product of a query with each (content).",
        needs={"model": tuple(name for name in WITH_AGENT if name != "content:k")},
    )
    agent_features: int = setting(
        50, "Number of the agent's hidden units.", at_least=1, needs={"model": WITH_AGENT}
    )
    agent_input: Literal["previous", "mean"] = setting(
        "previous",
        "What the agent sees beside the input: the previous state, or the mean of the last K.",
        needs=({"model": WITH_AGENT}, {"agent": "mlp"}),
    )
    agent_init: Literal["lecun", "normal"] = shared.agent_init("lecun")
    empty_slots: Literal["initial", "masked"] = setting(
        "initial",
        "Before K steps: let agents choose the initial state, or mask it.",
        needs={"model": WITH_AGENT},
    )
    stride: int = setting(
        1,
        "Distance between the states that may be chosen: k = 1, 1 + stride, 1 + 2 stride, …",
        at_least=1,
        needs={"model": WITH_AGENT},
    )
    top: int = setting(
        5, "Number of states that enter: those with the best scores.", at_least=1, needs={"model": "sparse:k"}
    )
    first_step: Literal["agent", "carried"] = setting(
        "agent",
        "Who chooses at the first step: the agent, or nobody (carried, as in the released code).",
        needs={"model": WITH_K},
    )
    agent_learning_rate: float | None = setting(
        None,
        "Give agents their own Adam with this rate; by default they share the network's optimizer.",
        above=0,
        needs={"model": REWARDED},
    )
    evaluation_mode: Literal["greedy", "sample"] = setting(
        "greedy", "How agents choose on dev and test.", needs={"model": (*REWARDED, "random:k")}
    )
    control: Literal["none", "untrained", "histogram", "mean"] = setting(
        "none",
        "Replace the choice by a control: an untrained agent, draws with fixed rates (histogram), or the "
        "mean of the last k states.",
        needs={"model": CHOOSING},
    )
    control_of: str | None = path_setting(
        None,
        "A finished run folder of one model with an agent, which gives the rates.",
        needs={"control": "histogram"},
    )
    rates: tuple[float, ...] | None = setting(
        None,
        "How often each k is drawn, one number for each; by default equally often.",
        at_least=0,
        needs={"control": "histogram", "model": "random:k"},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvenAgent(Agent):
    """Skips over time, their agents, and how these are trained."""

    mix: Numbers = shared.mix(0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """For how long and how fast."""

    epochs: int = shared.epochs(1)
    batch_size: int = shared.batch_size(20)
    learning_rate: Numbers = shared.learning_rate(0.001)
    clip: float | None = shared.clip(None)
    patience: int = shared.patience(0)
    max_skipped: int = setting(
        100, "End the run after this many steps in a row that are not finite.", at_least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Where it runs; a run may be resumed on other devices."""

    devices: int | None = setting(
        None,
        "Devices to train on: by default 1; on a CPU, the number of virtual devices that share the seeds. "
        "Devices split the seeds if these divide evenly, otherwise each batch.",
        at_least=1,
    )
    parallel: Literal["jit", "pmap"] = setting("jit", "One program over a mesh, or one replica per device.")
    coordinator: str | None = setting(
        None,
        "HOST:PORT of process 0, to train with several processes; auto on TPU pods, Slurm and Open MPI.",
    )
    process_id: int | None = setting(
        None, "Number of this process; process 0 writes the run and prints.", at_least=0
    )
    process_count: int | None = setting(None, "Number of processes.", at_least=1)
    heartbeat_seconds: int = setting(
        60,
        "Stop when a process has not been heard of for this long.",
        at_least=1,
        needs={"coordinator": ON},
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting, in groups; experiments give groups of their own, with more fields or other defaults."""

    run: Run = dataclasses.field(default_factory=Run)
    data: Data = dataclasses.field(default_factory=Data)
    model: Model = dataclasses.field(default_factory=Model)
    agent: Agent = dataclasses.field(default_factory=Agent)
    training: Training = dataclasses.field(default_factory=Training)
    devices: Devices = dataclasses.field(default_factory=Devices)

    def to_config(self) -> dict[str, Any]:
        """Return the settings that a run's configuration contains, by group and name.

        It leaves out the names of the models, paths, devices and `tensorboard`. Paths of data may change,
        because the fingerprint of the data covers the content.
        """
        config: dict[str, Any] = {}
        left_out = {*path_fields(type(self)), ("run", "model"), ("run", "compare"), ("run", "tensorboard")}
        for group, field, _ in fields_of(type(self)):
            if group != "devices" and (group, field.name) not in left_out:
                config.setdefault(group, {})[field.name] = getattr(getattr(self, group), field.name)
        return config


def fields_of(kind: type[Settings]) -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yield the group, the field and the type of every setting. Names are unique over all groups."""
    for group, group_type in field_types(kind).items():
        for field in dataclasses.fields(group_type):
            yield group, field, field_types(group_type)[field.name]


def path_fields(kind: type[Settings]) -> Iterator[tuple[str, str]]:
    """Yield the group and the name of every setting that is a path."""
    for group, field, _ in fields_of(kind):
        if field.metadata["path"]:
            yield group, field.name


def fill(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Create settings with the given values, by name; all other settings have their defaults.

    Raises:
        UserError: If a value is invalid, or there is no such setting.
    """
    groups: dict[str, dict[str, Any]] = {group: {} for group in field_types(kind)}
    rest = dict(values)
    for group, field, _ in fields_of(kind):
        if field.name in rest:
            groups[group][field.name] = rest.pop(field.name)
    if rest:
        raise UserError(f"there is no setting {next(iter(rest))}")
    made = kind(**{group: field_types(kind)[group](**own) for group, own in groups.items()})
    check(made, flag)
    return made


def absent_values(kind: type[Settings]) -> dict[str, Any]:
    """Return the values that newer settings have in older runs, by name, if these are not the defaults."""
    found = {field.name: field.metadata["absent"] for _, field, _ in fields_of(kind)}
    return {name: value for name, value in found.items() if value is not dataclasses.MISSING}


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Settings, and the source of each.

    Attributes:
        settings: All settings.
        sources: Source of each setting, by name: `default`, `preset NAME`, `config FILE` or `flag`.
    """

    settings: Settings
    sources: Mapping[str, str]


def continued(resolved: Resolved, config: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return the settings with which a command resumes a run that may be older than some of the settings.

    Such a setting has the value that fits older runs, unless a flag sets it; see `absent_values`.

    Args:
        resolved: Settings of the command.
        config: Settings of the run, as returned by `Settings.to_config`.
    """
    absent = absent_values(type(resolved.settings))
    groups = (group for group in config.values() if isinstance(group, Mapping))  # others raise later
    stored = absent | {name: value for group in groups for name, value in group.items()}
    # A run that was resumed before has the setting in its configuration, with the value for older runs.
    older = {
        name: value
        for name, value in absent.items()
        if stored[name] == value and resolved.sources[name] != "flag"
    }
    return replace(resolved.settings, **older) if older else resolved.settings


def resolve(
    kind: type[Settings],
    presets: Mapping[str, Mapping[str, Any]],
    default_preset: str,
    given: Mapping[str, Any],
    stored: Mapping[str, Any] | None = None,
) -> Resolved:
    """Resolve all settings from a preset and the flags given in addition to it.

    Args:
        kind: Class of the settings.
        presets: Values of each preset, by its name.
        default_preset: Preset to use if the command line names none.
        given: Settings that the command line gives, by name.
        stored: Settings of a run, by name, in place of a preset's; see `stored_settings`.

    Raises:
        UserError: If the preset is unknown, or a value is invalid.
    """
    if stored is None:
        preset = given.get("preset") or default_preset
        if preset not in presets:
            raise UserError(f"unknown preset {preset!r}: choose one of {', '.join(presets)}")
        values, source = {**presets[preset]}, f"preset {preset}"
        named = {"preset": preset}
    else:
        values, source, named = dict(stored), f"config {given['config']}", {}
    for name, other in (("compare", "model"), ("model", "compare"), ("control_of", "rates")):
        if name in given:
            values.pop(other, None)
    settings = fill(kind, {**values, **given, **named})
    sources = {field.name: "default" for _, field, _ in fields_of(kind)}
    sources |= dict.fromkeys(values, source)
    sources |= dict.fromkeys(given, "flag")
    return Resolved(settings, sources)


def check_effects(resolved: Resolved, default_model: str) -> None:
    """Check that each flag has an effect with the other settings; those of presets and files need not.

    Args:
        resolved: Settings, and which of them are flags.
        default_model: Model that is trained by default.

    Raises:
        UserError: If a flag has no effect.
    """
    settings = resolved.settings
    models = settings.run.models(default_model)

    def holds(name: str, allowed: Any) -> bool:
        if name == "model":
            names = allowed if isinstance(allowed, tuple) else (allowed,)
            return any(is_one_of(model, names) for model in models)
        return allows(allowed, get(settings, name))

    given = {name: get(settings, name) for name, source in resolved.sources.items() if source == "flag"}
    if "seed" in given and isinstance(settings.run.seeds, tuple):
        raise UserError("--seed has no effect beside a list of --seeds: leave one out")
    check_needs([field for _, field, _ in fields_of(type(settings))], given, holds, flag)


def sweep_of(settings: Settings, names: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Return the settings of each value of a sweep; one empty dictionary if none of `names` is swept.

    Several swept settings give all combinations of their values.
    """
    axes = []
    for _, field, _ in fields_of(type(settings)):
        value = get(settings, field.name)
        if field.name in names and isinstance(value, tuple):
            axes.append([{field.name: each} for each in value])
    return tuple({k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes))


def get(settings: Settings, name: str) -> Any:
    """Return the value of a setting by its name."""
    for group, field, _ in fields_of(type(settings)):
        if field.name == name:
            return getattr(getattr(settings, group), name)
    raise KeyError(name)


def replace(settings: Settings, **values: Any) -> Settings:
    """Return a copy of the settings with other values, by name."""
    old = {field.name: get(settings, field.name) for _, field, _ in fields_of(type(settings))}
    return fill(type(settings), {**old, **values})


def flag(name: str) -> str:
    """Return the name of a setting on the command line."""
    return f"--{name.replace('_', '-')}"
