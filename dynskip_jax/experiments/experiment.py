"""The hooks of an experiment: what a task says about its data, model, tables and texts."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Float

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.experiments.model_spec import ModelSpec, each, learnt_rates
from dynskip_jax.experiments.settings import Settings, replace
from dynskip_jax.experiments.text_reading import TextReading
from dynskip_jax.lazy import LazyModule

if TYPE_CHECKING:
    from jaxtyping import Array, Key

    from dynskip_jax.data import Vocabulary
    from dynskip_jax.experiments.loaded import LoadedModel
    from dynskip_jax.tasks import Forward, Learner, Task
    from dynskip_jax.training.schedule import Schedule

F = LazyModule("dynskip_jax.functional")
data_package = LazyModule("dynskip_jax.data")
plots = LazyModule("dynskip_jax.analysis.plots")
reading = LazyModule("dynskip_jax.analysis.reading")
schedules = LazyModule("dynskip_jax.training.schedule")


class Data(Protocol):
    """What is trained on; any object with these attributes."""

    name: str
    sizes: Mapping[str, int]
    fingerprint: str
    source: str


class StoredVocabulary(Protocol):
    """A vocabulary that a run folder stores."""

    def to_json(self) -> Any:
        """Return what JSON can hold."""

    @classmethod
    def from_json(cls, stored: Any) -> StoredVocabulary:
        """Return what `to_json` described."""


class Experiment:
    """One task: its settings, data, models and tables. A task of your own is a subclass.

    The module of a subclass opens with the text that `--help` shows; its first line stands in the list of
    all experiments. Nothing at the module's top level imports JAX, so that `--help` is immediate.

    Args:
        settings: all settings, resolved.

    Attributes:
        name: as in `dynskip <name>`.
        settings_type: the groups of settings.
        presets: from a preset's name to values, by the settings' names.
        default_model: the model that is trained by default.
        commands: what stands beside training, by name.
        columns: metrics of the printed table, with their headings and formats.
        curves: metrics drawn as learning curves.
        samples: how many predictions are averaged in the last evaluation.
        final_rows: rows read side by side in the last evaluation; None: as the task thinks best.
        sample_text: what `explain` reads by default.
        published_sizes: from the name of a corpus to the sizes of its splits. Published rows stand only
            beside results on data of these sizes.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    default_model: ClassVar[str] = "dynamic:5"
    commands: ClassVar[Mapping[str, Subcommand]] = {}
    columns: ClassVar[Mapping[str, tuple[str, str]]]
    curves: ClassVar[tuple[str, ...]] = ()
    samples: ClassVar[int] = 16
    final_rows: ClassVar[int | None] = None
    sample_text: ClassVar[str | None] = None
    published_sizes: ClassVar[Mapping[str, Mapping[str, int]]] = {}

    def __init__(self, settings: Settings):
        self.settings = settings
        self.check()
        if settings.agent.control_of is not None:
            self.settings = replace(settings, rates=learnt_rates(settings.agent.control_of, self.name))

    @classmethod
    def about(cls) -> str:
        """Return the text of `--help`."""
        return sys.modules[cls.__module__].__doc__ or ""

    @classmethod
    def default_preset(cls, given: Mapping[str, Any]) -> str:
        """Return the preset that is used by default with the flags given, by name: the first one."""
        return next(iter(cls.presets))

    # --- Data ---

    def load_data(self) -> Data:
        """Return the data."""
        raise NotImplementedError

    def fingerprint(self, data: Data) -> str:
        """Return what identifies everything that is read: by default the fingerprint of the data."""
        return data.fingerprint

    def describe_data(self, data: Data) -> Sequence[str]:
        """Return lines about the data that are printed before training."""
        return ()

    def vocabulary(self, data: Data) -> StoredVocabulary | None:
        """Return what a run folder stores so that its models can be used without the data."""
        return None

    def vocabulary_type(self) -> type[StoredVocabulary]:
        """Return the type of what `vocabulary` returns."""
        return data_package.Vocabulary

    # --- Training ---

    def check(self) -> None:
        """Raise a `UserError` where settings do not fit each other."""
        agent = self.settings.agent
        if agent.control == "histogram" and agent.rates is None and agent.control_of is None:
            raise UserError("--control histogram needs to know the rates: give --control-of DIR, or --rates")
        if agent.control_of is not None and agent.rates is not None:
            raise UserError("--control-of and --rates both say how often each k is drawn: leave one out")
        agent.objective()
        for mix in each(agent.mix):
            F.parse_time_skip("dynamic:1", mix=mix)

    def task(self, spec: ModelSpec, data: Data | None, vocabulary: Vocabulary | None) -> Task:
        """Return the task of a model; without data it is only used."""
        raise NotImplementedError

    def schedule(self, spec: ModelSpec, rate: Any) -> Schedule:
        """Return the learning rates, from the initial one or one for each model."""
        return schedules.decay_after(rate, 1.0, 0)

    def optimizer_options(self, spec: ModelSpec) -> dict[str, Any]:
        """Return what `make_optimizer` is told of the network: the kind of optimizer, and more."""
        return {"kind": "adam"}

    def fit_options(self, spec: ModelSpec, learner: Learner) -> dict[str, Any]:
        """Return more options of `FitSettings`: an average of the iterates, parameters to start from."""
        return {}

    def warnings(self, spec: ModelSpec, learner: Learner) -> list[str]:
        """Return lines about settings that can be trained but are likely not meant."""
        return _warnings(spec, learner, self.settings.training.epochs)

    # --- Results ---

    def extra_metrics(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Key[Array, " seeds"]
    ) -> dict[str, np.ndarray]:
        """Return metrics of the selected parameters that evaluation does not give, (seeds,)."""
        return {}

    def draw(
        self,
        spec: ModelSpec,
        learner: Learner,
        params: Any,
        keys: Key[Array, " seeds"],
        folder: Path,
        member: int,
    ) -> None:
        """Draw what the agent of one of the models trained together chose; by default by position."""
        if not spec.skip.has_agent:
            return
        counts = np.zeros((1, spec.skip.max_skip), int)
        for batch, chosen in learner.choices(params, "dev", keys, layer=-1):
            own, ends = chosen[member], batch.seq_lengths
            counts = np.pad(counts, ((0, max(0, own.shape[1] - len(counts))), (0, 0)))
            valid = np.ones(own.shape, bool) if ends is None else np.arange(own.shape[1]) < ends[:, None]
            rows, steps = np.nonzero(valid & batch.mask[:, None])
            np.add.at(counts, (steps, own[rows, steps] - 1), 1)
        plots.action_distribution(
            counts,
            folder / "skips_by_position.png",
            f"{spec.name}: how far back the agent reaches at each position",
            note=f"dev, greedy, seed {spec.all_seeds[member]}",
        )

    def published(self, models: Sequence[str], data: Data) -> Sequence[tuple[str, Mapping[str, float]]]:
        """Return published rows: a name, and values for some of `columns`."""
        return []

    def note(self, models: Sequence[str], data: Data) -> str:
        """Return a line under the table, or an empty string."""
        return ""

    def differs_from_published(self, data: Data) -> str:
        """Return in what sizes the data differs from the published corpus of its name, in a few words."""
        sizes = self.published_sizes.get(data.name, {})
        differs = [name for name, size in sizes.items() if data.sizes.get(name) != size]
        return ", ".join(
            f"{name} has {data.sizes.get(name, 0):,} instead of {sizes[name]:,}" for name in differs
        )

    # --- Texts ---

    def split(self, text: str) -> list[str]:
        """Return the words of a line of text; none where there is nothing to read."""
        return text.split()

    def tokenize(self, vocabulary: Any, text: str) -> str:
        """Return raw text as a line that `encode` reads."""
        return " ".join(self.split(text))

    def encode(self, vocabulary: Vocabulary | None, text: str) -> tuple[Any, list[str]]:
        """Return the ids of a line of text, each array (time, ...), and the word of each id.

        Raises:
            UserError: the text cannot be read.
        """
        tokens = vocabulary.encode(self.split(text))
        return tokens, vocabulary.decode(tokens)

    def format_prediction(self, vocabulary: Vocabulary | None, predicted: Any, probability: float) -> str:
        """Return the prediction of one line of text, as people read it.

        Args:
            vocabulary: the vocabulary of the run.
            predicted: what the task predicts.
            probability: of the likeliest class, at the step where that is smallest.
        """
        values = " ".join(str(value) for value in np.atleast_1d(predicted))
        return f"{values}  ({probability:.3f})"

    def read(self, loaded: LoadedModel, text: str) -> TextReading:
        """Read a text with a trained model, and predict.

        Raises:
            UserError: the text cannot be read.
        """
        inputs, words = self.encode(loaded.vocabulary, text)
        found, predicted = loaded.learner.read(loaded.params, inputs, len(words), loaded.policy)
        certain = np.exp(np.atleast_1d(np.asarray(found.log_probs).max(axis=-1)))
        probabilities = [math.nan] * (len(words) - len(certain)) + certain.tolist()
        skips: list[int] = [0] * len(words)
        weights: Callable[[], Any] = lambda: None  # noqa: E731
        if loaded.shows_choices:
            forward = [i for i, back in enumerate(loaded.learner.reverse) if not back]
            skips = np.asarray(reading.connections(found.decisions[forward[-1]])).tolist()
            weights = partial(choice_weights, loaded, found, forward[-1])
        # A text longer than the model reads ends where its words end.
        unknown = [word for word, known in zip(self.split(text), words, strict=False) if word != known]
        prediction = self.format_prediction(loaded.vocabulary, predicted, float(certain.min()))
        return TextReading(words, unknown, skips, probabilities, prediction, weights=weights)


def choice_weights(loaded: LoadedModel, found: Forward, layer: int) -> Float[np.ndarray, "words K"] | None:
    """Return the `distribution` over k of a layer of a text that was read; None where there is none."""
    if found.observations is None:
        return None
    cell, reverse = loaded.model.stack.cells[layer], loaded.learner.reverse[layer]
    weights = reading.distribution(cell, found.observations[layer], loaded.policy, reverse=reverse)
    return None if weights is None else np.asarray(weights)


def decay_once_sampled(spec: ModelSpec, rate: Any, decay: float) -> Schedule:
    """Return learning rates that fall by a factor an epoch after the relaxed epochs, if there are any."""
    relaxed = spec.objective.relaxed_epochs
    return schedules.decay_after(rate, decay if relaxed else 1.0, relaxed)


def _warnings(spec: ModelSpec, learner: Learner, epochs: int) -> list[str]:
    skip, objective, lines = spec.skip, spec.objective, []
    if skip.is_stochastic and objective.relaxed_epochs >= epochs:
        lines.append(
            f"all {epochs} epochs use relaxed choices, but evaluation uses sampled or hard ones: raise "
            "--epochs or lower --relaxed-epochs"
        )
    if skip.is_stochastic and not spec.choices_matter() and not spec.copies_in_expectation:
        lines.append(
            f"λ = 0: no state enters by a choice of {spec.name}, which changes nothing; give --mix, or, in "
            "language models, --copy"
        )
    longest = learner.task.max_length
    if longest is not None and skip.max_skip > longest:
        lines.append(
            f"K = {skip.max_skip} is beyond every sequence of train, the longest of which has {longest} "
            "steps: what lies before a sequence is the initial state"
        )
    return lines
