"""Settings in groups that all experiments share, presets, and sweeps; nothing of JAX is imported."""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dynskip_jax.errors import UserError
from dynskip_jax.settings import check, field_types, path_setting, setting
from dynskip_jax.training.agent_settings import AgentSettings

MAX_SEED = 2**32 - 1  # beyond, JAX would repeat the keys of others
# What --clip is.
CLIP = "Largest norm of the gradient, and by itself of that of agents that reinforcement alone trains."
# The names in `functional.TIME_SKIPS`, to be known without JAX.
MODEL_NAMES = (
    *(
        "attention",
        "content",
        "dynamic",
        "fixed",
        "log_attention",
        "log_dynamic",
        "lstm",
        "lstm_jump",
        "mean",
    ),
    *("random", "segment_attention", "segment_dynamic", "skim_rnn", "skip_rnn", "sparse"),
)
Numbers = float | tuple[float, ...]  # a number, or several to be tried in one program
WholeNumbers = int | tuple[int, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Which models are trained, and where the results are kept."""

    model: str | None = setting(
        None,
        "lstm (no skip over time), fixed:k, attention:k, content:k (attention by content), dynamic:k, "
        "log_dynamic:k, segment_dynamic:k, sparse:k, mean:k, random:k, skip_rnn, skim_rnn or lstm_jump; k is "
        "how far back a skip may reach. Or a skip of your own, my_module:MySkip(16).",
    )
    compare: str | None = setting(
        None,
        "Several models, separated by commas, trained one after another into one table. A run folder "
        "that was begun with several may gain models.",
    )
    preset: str | None = setting(None, "A named set of settings, listed below; flags given beside it win.")
    run_dir: str | None = path_setting(
        None,
        "Run folder; the same command with the same folder resumes. By default runs/<task>/<model>-<time>.",
    )
    seed: int = setting(0, "The first seed.", at_least=0)
    seeds: WholeNumbers = setting(
        1,
        "How many seeds, from --seed on, or the seeds themselves, as in 1,5,9; all train in one program.",
        at_least=0,
        several=True,
    )
    tensorboard: bool = setting(
        False, "Write metrics while training, as TensorBoard event files, to the run folder's tensorboard/."
    )

    def __post_init__(self) -> None:
        """Checks what bounds cannot say."""
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
        """The seeds that train together."""
        if isinstance(self.seeds, tuple):
            return self.seeds
        return range(self.seed, self.seed + self.seeds)

    def models(self, default: str) -> tuple[str, ...]:
        """Returns the models asked for.

        Raises:
            UserError: one is named twice.
        """
        given = self.compare if self.compare is not None else self.model
        names = _names(default if given is None else given)
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"--compare names {name} twice: leave one out")
        return names


def _names(text: str) -> tuple[str, ...]:
    """Return the names between commas; those inside brackets belong to a name."""
    return tuple(name.strip() for name in re.split(r",(?![^()]*\))", text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is read."""

    data: str | None = path_setting(None, "Folder of the data.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What the network is made of."""

    features: int = setting(200, "Size of every layer's state.", at_least=1)
    transition: str = setting(
        "lstm",
        "How a cell turns input and state into the new state: lstm, peephole, full_gate, plstm, ulstm, "
        "gru, slstm, min_lstm, min_gru, ind_rnn, rhn or rhn:L (L layers deep). Or one of "
        "your own, my_module:MyTransition.",
    )
    depth_skip: str | None = setting(
        None,
        "What a layer receives from the one two below: gates, internal, gated_internal, output "
        "or gated_output; highway: from the one below; dense or attention: from all below.",
    )
    dropout: float = setting(0.0, "Rate on each layer's input and before the softmax.", at_least=0, below=1)
    forget_bias: float = setting(0.0, "Is added to the forget gate's bias in layers with a skip over time.")
    precision: Literal["f32", "bf16"] = setting(
        "f32",
        "bf16: matrices are multiplied in bfloat16; sums, states, losses and parameters stay float32.",
    )


# What every experiment's λ is, whatever it begins with.
_MIX: dict[str, Any] = dict(
    help="λ, the weight of the skipped-to state against the previous one.", at_least=0, at_most=1, sweep=True
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent(AgentSettings):
    """Skips over time, the agents that choose them, and how these are trained."""

    mix: Numbers = setting(1.0, **_MIX)
    max_skip: WholeNumbers | None = setting(
        None, "K, up to the model's own, kept through the policy.", at_least=1, sweep=True
    )
    agent: Literal["mlp", "content"] = setting(
        "mlp",
        "What an agent's choice is made of: an MLP over s(t), or by content: a query made of s(t) beside the "
        "stored states.",
    )
    agent_features: int = setting(50, "Hidden units of the agent.", at_least=1)
    agent_input: Literal["previous", "mean"] = setting(
        "previous", "What the agent sees beside the input: h of the step before, or the mean of the last K."
    )
    agent_init: Literal["lecun", "normal"] = setting("lecun", "lecun, or normal: N(0, 0.3) and biases 0.1.")
    empty_slots: Literal["initial", "masked"] = setting(
        "initial", "Before K steps have passed: the initial state may be chosen, or it may not."
    )
    stride: int = setting(
        1, "Only every so many-th of the last k states may be chosen: the newest is the first.", at_least=1
    )
    first_step: Literal["agent", "carried"] = setting(
        "agent", "Who chooses at the first step; carried: nobody, as in the released code."
    )
    agent_learning_rate: float | None = setting(
        None,
        "Gives agents an Adam of their own with this rate; by default they share the network's optimizer.",
        above=0,
    )
    evaluation_mode: Literal["greedy", "sample"] = setting("greedy", "How agents choose on dev and test.")
    control: Literal["none", "untrained", "histogram", "mean"] = setting(
        "none",
        "What dynamic:k is put to the test with. untrained: its agent never learns, and samples on dev and "
        "test too; histogram: k is drawn with the rates of a trained agent (--control-of) or others "
        "(--rates); mean: that of the last k states enters. Others, of trained models: see `oracle`.",
    )
    control_of: str | None = path_setting(
        None, "A finished run folder of one model with an agent, whose rates on dev are those of histogram."
    )
    rates: tuple[float, ...] | None = setting(
        None, "Rates of histogram and of random:k, one for each k; by default all alike.", at_least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvenAgent(Agent):
    """Skips over time, the agents that choose them, and how these are trained."""

    mix: Numbers = setting(0.5, **_MIX)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """For how long and how fast."""

    epochs: int = setting(1, "Passes over the training data; a run folder's may grow.", at_least=1)
    batch_size: int = setting(20, "Sequences of a training step.", at_least=1)
    learning_rate: Numbers = setting(0.001, "Initial learning rate.", above=0, sweep=True)
    clip: float | None = setting(None, CLIP, above=0)
    patience: int = setting(
        0, "Stop after this many epochs without a better dev result; 0 never stops.", at_least=0
    )
    max_skipped: int = setting(
        100, "Steps in a row that may be skipped because they are not finite before the run ends.", at_least=0
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Where it runs; results are the same up to rounding, and a run may be resumed on others."""

    devices: int | None = setting(
        None,
        "Devices to train on; if not given 1, or as many parts of a CPU as can share the seeds. Each has "
        "seeds of its own if their number divides that of the seeds, else a share of every batch.",
        at_least=1,
    )
    parallel: Literal["jit", "pmap"] = setting("jit", "One program over a mesh, or one replica per device.")
    coordinator: str | None = setting(
        None,
        "HOST:PORT where process 0 is found, if several processes train together with all their devices; "
        "each is given the same command but for --process-id. TPU pods, Slurm, Open MPI: auto.",
    )
    process_id: int | None = setting(
        None, "Number of this process; process 0 writes the run folder and prints.", at_least=0
    )
    process_count: int | None = setting(None, "How many processes there are.", at_least=1)
    heartbeat_seconds: int = setting(
        60, "A process that has not been heard of for so long is lost: the others end.", at_least=1
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
        """Return what a run's configuration holds: all but the models' names, paths, devices and event files.

        What a path leads to is a part of the data's fingerprint; the path itself may change.
        """
        config: dict[str, Any] = {}
        left_out = {*path_fields(type(self)), ("run", "model"), ("run", "compare"), ("run", "tensorboard")}
        for group, field, _ in fields_of(type(self)):
            if group != "devices" and (group, field.name) not in left_out:
                config.setdefault(group, {})[field.name] = getattr(getattr(self, group), field.name)
        return config


def fields_of(kind: type[Settings]) -> Iterator[tuple[str, dataclasses.Field, Any]]:
    """Yields the group, the field and the type of every setting. Names are unique over all groups."""
    for group, group_type in field_types(kind).items():
        for field in dataclasses.fields(group_type):
            yield group, field, field_types(group_type)[field.name]


def path_fields(kind: type[Settings]) -> Iterator[tuple[str, str]]:
    """Yield the group and the name of every setting that is a path, or several."""
    for group, field, _ in fields_of(kind):
        if field.metadata["path"]:
            yield group, field.name


def fill(kind: type[Settings], values: Mapping[str, Any]) -> Settings:
    """Returns settings with these values, by name, and defaults elsewhere.

    Raises:
        UserError: a value makes no sense, or there is no such setting.
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


def from_config(kind: type[Settings], config: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return the settings that `Settings.to_config` described, read back from JSON.

    Raises:
        UserError: another version wrote them.
    """
    values = {name: value for group in config.values() for name, value in group.items()}
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return fill(kind, absent_values(kind) | values)


def absent_values(kind: type[Settings]) -> dict[str, Any]:
    """Return the values of settings in runs that are older than them, where these are not the defaults."""
    found = {field.name: field.metadata["absent"] for _, field, _ in fields_of(kind)}
    return {name: value for name, value in found.items() if value is not dataclasses.MISSING}


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Settings, and where each comes from.

    Attributes:
        settings: all of them.
        sources: `default`, `preset NAME` or `flag`, by name.
    """

    settings: Settings
    sources: Mapping[str, str]


def continued(resolved: Resolved, config: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return the settings with which a command goes on with a run that may be older than some of them.

    Args:
        resolved: the settings of the command.
        config: those of the run, as `Settings.to_config` described them.
    """
    absent = absent_values(type(resolved.settings))
    groups = (group for group in config.values() if isinstance(group, Mapping))  # else another error
    stored = absent | {name: value for group in groups for name, value in group.items()}
    # A run that went on once has the setting in its configuration, with the value that it had before.
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
) -> Resolved:
    """Fills settings from a preset and the flags given beside it.

    Args:
        kind: the settings to fill.
        presets: name to values.
        default_preset: the preset to use if the command line names none.
        given: what the command line says, by name.

    Raises:
        UserError: an unknown preset, or a value that makes no sense.
    """
    preset = given.get("preset") or default_preset
    if preset not in presets:
        raise UserError(f"unknown preset {preset!r}: choose one of {', '.join(presets)}")
    values = {**presets[preset]}
    if "compare" in given:  # in place of a preset's model
        values.pop("model", None)
    settings = fill(kind, {**values, **given, "preset": preset})
    sources = {field.name: "default" for _, field, _ in fields_of(kind)}
    sources |= dict.fromkeys(values, f"preset {preset}")
    sources |= dict.fromkeys(given, "flag")
    if "preset" not in given:
        sources["preset"] = "default"
    return Resolved(settings, sources)


def sweep_of(settings: Settings, names: Sequence[str]) -> tuple[dict[str, Any], ...]:
    """Returns what a sweep sets, value by value; one empty dictionary where none of these names is swept."""
    axes = []
    for _, field, _ in fields_of(type(settings)):
        value = get(settings, field.name)
        if field.name in names and isinstance(value, tuple):
            axes.append([{field.name: each} for each in value])
    return tuple({k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes))


def get(settings: Settings, name: str) -> Any:
    """Returns a setting by its name."""
    for group, field, _ in fields_of(type(settings)):
        if field.name == name:
            return getattr(getattr(settings, group), name)
    raise KeyError(name)


def replace(settings: Settings, **values: Any) -> Settings:
    """Returns settings with other values, by name."""
    old = {field.name: get(settings, field.name) for _, field, _ in fields_of(type(settings))}
    return fill(type(settings), {**old, **values})


def flag(name: str) -> str:
    """Returns what a setting is called on the command line."""
    return f"--{name.replace('_', '-')}"
