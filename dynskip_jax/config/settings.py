"""Settings that all experiments share, in groups, and how presets and flags set them."""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from dynskip_jax.config.flags import (
    MAX_SEED,
    Bounds,
    Count,
    Natural,
    Positive,
    Seed,
    Share,
    Size,
    Weight,
    hints_of,
    short,
)
from dynskip_jax.errors import UserError

# Settings of which several values may be trained together.
SWEPT = ("mix", "learning_rate")

_MOST_SEEDS = 1000  # trained together


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """Which models are trained, and where the results are kept."""

    model: str | None = None
    """The skip over time: previous or lstm (none), fixed:k, attention:k, content:k, sparse:k,
    dynamic:k, log_dynamic:k, log_attention:k, segment_dynamic:k, segment_attention:k, mean:k,
    random:k, skip_rnn, skim_rnn or lstm_jump; k is the longest skip. Your own:
    my_module:MySkip(16).
    """
    compare: str | None = None
    """Train several models, separated by commas, into one table; a resumed run may gain some."""
    preset: str | None = None
    """Use a named set of settings, listed above; explicit flags take precedence."""
    run_dir: Path | None = None
    """Run folder; the same command resumes it. By default runs/<task>/<model>-<time>."""
    seed: Seed = 0
    """The first seed."""
    seeds: Annotated[int, Bounds(1, _MOST_SEEDS)] | tuple[Seed, ...] = 1
    """Train this many seeds, from --seed on, or these seeds (1,5,9), in one program."""

    @property
    def all_seeds(self) -> Sequence[int]:
        """Seeds that are trained together."""
        return (
            self.seeds
            if isinstance(self.seeds, tuple)
            else range(self.seed, self.seed + self.seeds)
        )

    def models(self, default: str) -> tuple[str, ...]:
        """Return the names of the models to train; `default` without --model and --compare."""
        return names_in(self.compare if self.compare is not None else self.model or default)


def names_in(text: str) -> tuple[str, ...]:
    """Return the names between commas; commas inside parentheses belong to a name."""
    return tuple(name.strip() for name in re.split(r",(?![^()]*\))", text))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """What is read."""

    data: Path | None = None
    """Folder or file of the data; by default it is looked for."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """What the network is made of."""

    # What only some experiments can set.
    num_layers: ClassVar[int] = 1
    recipe: ClassVar[str] = "none"
    copy: ClassVar[str] = "none"
    train_embeddings: ClassVar[bool] = True

    features: Size = 200
    """Size of every layer's state."""
    transition: str = "lstm"
    """The recurrent cell: lstm, peephole, full_gate, plstm, ulstm, gru, slstm, min_lstm, min_gru,
    ind_rnn, skim_lstm:N (for skim_rnn), rhn or rhn:L (L layers deep). Your own:
    my_module:MyTransition.
    """
    depth_skip: str | None = None
    """What a layer receives from the one two below: gates, internal, gated_internal, output or
    gated_output; highway: from the one below; dense or attention: from all below.
    """
    precision: Literal["f32", "bf16"] = "f32"
    """bf16: multiply matrices in bfloat16; sums, states and parameters stay float32."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agent:
    """Skips over time, their agents, and how these are trained."""

    mix: Share | tuple[Share, ...] = 0.5
    """λ, the weight of the skipped-to state against the previous one."""
    agent: Literal["mlp", "content", "both"] = "mlp"
    """How agents score states: by an MLP, which knows how far each is; by the dot product of a
    query with each (content); or by the sum (both).
    """
    agent_keys: Literal["states", "followed"] = "states"
    """What the query is compared with (content, both): states, or also the inputs that followed
    them.
    """
    agent_features: Size = 50
    """Number of the agent's hidden units."""
    stride: Count = 1
    """Distance between the states that may be chosen: k = 1, 1 + stride, 1 + 2 stride, …"""
    top: Count = 5
    """Number of states that enter: those with the best scores."""
    agent_learning_rate: Positive | None = None
    """Give agents, and attention that copies words, their own Adam with this rate; by default they
    share the network's optimizer.
    """
    evaluation_mode: Literal["greedy", "sample"] = "greedy"
    """How agents choose on dev and test."""
    control: Literal["none", "untrained", "histogram", "mean"] = "none"
    """Replace the choice by a control: an untrained agent, draws with the rates of --control-of
    (histogram), or the mean of the last k states.
    """
    control_of: tuple[Share, ...] | Path | None = None
    """The rates of each k, or a finished run folder of one model with an agent that gives them."""
    reward: Literal["log_likelihood", "probability", "correct"] = "log_likelihood"
    """Reward agents by log-likelihood (the paper) or probability (the paper's taggers) of the
    truth, or by 1 and -1 for right and wrong.
    """
    rl_coef: Weight = 1.0
    """Weight of the agents' loss J_2."""
    entropy_coef: Weight = 1.0
    """β, weight of the entropy in J_2 (the paper's is 1)."""
    entropy_coef_final: Weight | None = None
    """β of the last epoch, reached linearly; by default β stays."""
    entropy: Literal["sampled", "exact"] = "sampled"
    """sampled: -log π of the actions taken, inside the return (Eq. 5); exact: each step's entropy,
    differentiated directly.
    """
    discount: Share = 1.0
    """Discount of later rewards, per step (the paper's is 1)."""
    baseline: Literal["none", "batch", "rollouts"] = "none"
    """Subtract from the return the mean of the other examples (batch) or of the example's other
    rollouts.
    """
    rollouts: Annotated[int, Bounds(1, 1000)] = 1
    """M, number of samples of each training example's actions."""
    relaxation: Literal["none", "soft", "gumbel_softmax", "straight_through", "reinmax"] = "none"
    """Relax choices in the first epochs, in place of the estimator."""
    relaxed_epochs: Natural = 0
    """Number of relaxed epochs."""
    relaxed_entropy_coef: tuple[float, ...] | None = None
    """β of the exact entropy in relaxed epochs, or of the first and the last one; by default as
    later.
    """
    update_cost: Weight = 0.0
    """Cost of each word read: λ of Skip RNN (Campos et al. 2018, Eq. 8)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """For how long and how fast."""

    # Name of the setting that says how long to train.
    length: ClassVar[str] = "epochs"
    # What only some experiments can set.
    decay: ClassVar[float] = 1.0
    decay_after: ClassVar[int | str] = 0
    inverse_decay: ClassVar[float | None] = None
    sampled_decay: ClassVar[float | None] = None
    weight_decay: ClassVar[float] = 0.0
    average: ClassVar[str] = "none"
    average_after: ClassVar[int] = 0
    start_from: ClassVar[Path | None] = None

    epochs: Count = 1
    """Passes over the training data; a resumed run may have more."""
    batch_size: Count = 20
    """Examples per training step."""
    learning_rate: Positive | tuple[Positive, ...] = 0.001
    """Initial learning rate."""
    optimizer: Literal["adam", "adagrad", "sgd", "momentum"] = "adam"
    """Optimizer of the network; momentum: gradient descent with momentum 0.9."""
    clip: Positive | None = None
    """Largest norm of the gradient, or none; agents that learn from rewards are clipped
    separately.
    """
    patience: Natural = 0
    """Stop after this many epochs without a better dev result; 0: never."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """Where it runs; a run may be resumed on other devices."""

    devices: Annotated[int, Bounds(1, 100_000)] | None = None
    """Devices to train on. Default: 1; on a CPU, the number of virtual devices over which seeds are
    split.
    """
    parallel: Literal["jit", "pmap"] = "jit"
    """One program over a mesh, or one replica per device."""
    coordinator: str | None = None
    """HOST:PORT of process 0, for several processes; auto on TPU pods, Slurm, Open MPI,
    Kubernetes.
    """
    process: str | None = None
    """Number of this process and number of all of them, as in 0/4; process 0 writes the run and
    prints.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting, in groups; experiments have groups with more fields or other defaults."""

    run: Run = Run()
    data: Data = Data()
    model: Model = Model()
    agent: Agent = Agent()
    training: Training = Training()
    devices: Devices = Devices()

    @property
    def most_models(self) -> int:
        """An upper limit of the number of models that are trained together."""
        swept = (get(self, name) for name in SWEPT)
        sizes = [len(value) for value in swept if isinstance(value, tuple)]
        return len(self.run.all_seeds) * math.prod(sizes)

    def __post_init__(self) -> None:
        """Check that settings do not contradict each other."""
        run = self.run
        agent = self.agent
        if run.model is not None and run.compare is not None:
            raise UserError("give either --model or --compare, not both")
        names = run.models("lstm")
        if len({*names}) < len(names):
            raise UserError("--compare names a model twice: leave one out")
        if max(run.all_seeds) > MAX_SEED:
            raise UserError(f"seeds lie between 0 and {MAX_SEED:,}: lower --seed or --seeds")
        if agent.control == "histogram" and agent.control_of is None:
            raise UserError("--control histogram needs the rates of a run: give --control-of DIR")
        if agent.control != "histogram" and agent.control_of is not None:
            raise UserError("--control-of has no effect without --control histogram: leave it out")
        if agent.baseline == "rollouts" and agent.rollouts == 1:
            raise UserError("a baseline from the other rollouts needs at least 2 rollouts, got 1")
        if agent.relaxation == "none" and agent.relaxed_epochs > 0:
            raise UserError(
                f"{agent.relaxed_epochs} relaxed epochs need a relaxation: choose soft, "
                "gumbel_softmax, straight_through or reinmax"
            )
        if len(agent.relaxed_entropy_coef or ()) > 2:
            raise UserError(
                "--relaxed-entropy-coef takes one number, or those of the first and last epoch"
            )


def with_groups(kind: type[Settings], **groups: Any) -> type[Settings]:
    """Return a class of settings that has the given groups, with their classes and defaults."""
    fields = [(name, type(group), group) for name, group in groups.items()]
    return dataclasses.make_dataclass(
        kind.__name__, fields, bases=(kind,), frozen=True, kw_only=True
    )


def groups_of(kind: type[Settings]) -> dict[str, type]:
    """Return the class of each group of settings, by name."""
    return {name: hint for name, hint in hints_of(kind).items() if dataclasses.is_dataclass(hint)}


@functools.cache
def fields_of(kind: type[Settings]) -> Mapping[str, tuple[str, Any, Any]]:
    """Return the group, type and default of every setting; names are unique over groups."""
    usual = kind()
    return {
        name: (group, hint, getattr(getattr(usual, group), name))
        for group, of in groups_of(kind).items()
        for name, hint in hints_of(of).items()
    }


def get(settings: Settings, name: str) -> Any:
    """Return the value of a setting by its name."""
    return getattr(getattr(settings, fields_of(type(settings))[name][0]), name)


def first(value: Any) -> Any:
    """Return the first value of a setting that may be swept."""
    return value[0] if isinstance(value, tuple) else value


def replace(settings: Settings, /, **values: Any) -> Settings:
    """Return a copy of the settings with other values, by name."""
    fields = fields_of(type(settings))
    groups = {}
    for name, value in values.items():
        if name not in fields:
            raise UserError(f"there is no setting {short(name)}")
        groups.setdefault(fields[name][0], {})[name] = value
    changed = {
        group: dataclasses.replace(getattr(settings, group), **of) for group, of in groups.items()
    }
    return dataclasses.replace(settings, **changed)


# --- Presets, flags and files ---


@dataclasses.dataclass(frozen=True)
class Resolved:
    """Settings, and where each comes from."""

    settings: Settings
    sources: Mapping[str, str]  # by name: `default`, `preset NAME`, `flag`, or a file
    preset_epochs: int
    notes: tuple[str, ...] = ()  # lines on what data have changed

    def changed(self, source: str, **values: Any) -> "Resolved":
        """Return the settings with other values, by name, which come from `source`."""
        sources = {**self.sources, **dict.fromkeys(values, source)}
        return dataclasses.replace(self, settings=replace(self.settings, **values), sources=sources)


def resolve(
    kind: type[Settings],
    presets: Mapping[str, Mapping[str, Any]],
    default: str,
    given: Mapping[str, Any],
) -> Resolved:
    """Resolve all settings from a preset, and those that the command line gives in addition."""
    preset = given.get("preset") or default
    if preset not in presets:
        raise UserError(f"there is no preset {short(preset)}: choose one of {', '.join(presets)}")
    values = {**presets[preset]}
    for name, other in (("compare", "model"), ("model", "compare")):
        if name in given:
            values.pop(other, None)
    if "seed" in given and isinstance(given.get("seeds"), tuple):
        raise UserError("--seed has no effect beside a list of --seeds: leave one out")
    sources = dict.fromkeys(fields_of(kind), "default") | dict.fromkeys(values, f"preset {preset}")
    settings = replace(kind(), **{**values, **given, "preset": preset})
    epochs = values.get("epochs", kind().training.epochs)
    return Resolved(settings, sources | dict.fromkeys(given, "flag"), epochs)
