"""The base class `Experiment`: its hooks define the data, models, tables and texts of a task."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from jaxtyping import Int

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.model_spec import ModelSpec, each, learnt_rates
from dynskip_jax.experiments.settings import Settings, replace
from dynskip_jax.lazy import LazyModule

if TYPE_CHECKING:
    from jaxtyping import Array, Key

    from dynskip_jax.analysis.reading import Reading
    from dynskip_jax.data import Vocabulary
    from dynskip_jax.tasks import Learner, Task
    from dynskip_jax.trained import Trained
    from dynskip_jax.training.schedule import Schedule

F = LazyModule("dynskip_jax.functional")
data_package = LazyModule("dynskip_jax.data")
plots = LazyModule("dynskip_jax.analysis.plots")
reading = LazyModule("dynskip_jax.analysis.reading")
schedules = LazyModule("dynskip_jax.training.schedule")


class Data(Protocol):
    """Training data: any object with these attributes.

    Attributes:
        name: Name of the data.
        sizes: Sizes by name, such as the number of examples of each split.
        fingerprint: Hash that identifies the data.
        source: Place where the data was found, as a phrase.
    """

    name: str
    sizes: Mapping[str, int]
    fingerprint: str
    source: str


class StoredVocabulary(Protocol):
    """A vocabulary that a run folder stores."""

    def to_json(self) -> Any:
        """Return the vocabulary as a value that JSON can represent."""

    @classmethod
    def from_json(cls, stored: Any) -> StoredVocabulary:
        """Return the vocabulary that `to_json` described."""


class Experiment:
    """The settings, data, models and tables of one task. A new task is a subclass.

    The docstring of the subclass's module is the text of `--help`; its first line appears in the list of all
    experiments. The module must not import JAX at its top level, so that `--help` is fast.

    Args:
        settings: All settings, resolved.

    Attributes:
        name: Name of the experiment, as in `dynskip <name>`.
        settings_type: Class of the settings.
        presets: Values of each preset, by the names of the preset and of the setting.
        default_model: Model that is trained by default.
        commands: Names of the commands other than training, each a function of `dynskip_jax.commands`.
        columns: Heading and format of each metric in the printed table, by the metric's name.
        curves: Metrics that are drawn as learning curves.
        samples: Number of predictions that are averaged in the final evaluation.
        final_rows: Number of rows in a batch of the final evaluation; None for the task's default.
        sample_text: Text that `explain` reads by default.
        published_sizes: Sizes of the splits of each published corpus, by its name. Published rows are shown
            only next to results on data of these sizes.
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Settings]] = Settings
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": {}}
    default_model: ClassVar[str] = "dynamic:5"
    commands: ClassVar[tuple[str, ...]] = ()
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
        """Return the name of the preset to use with the flags in `given`: here the first preset."""
        return next(iter(cls.presets))

    # --- Data ---

    def load_data(self) -> Data:
        """Load and return the data."""
        raise NotImplementedError

    def fingerprint(self, data: Data) -> str:
        """Return a hash of everything that a run reads; by default the fingerprint of the data."""
        return data.fingerprint

    def describe_data(self, data: Data) -> Sequence[str]:
        """Return lines about the data that are printed before training."""
        return ()

    def vocabulary(self, data: Data) -> StoredVocabulary | None:
        """Return the vocabulary that a run folder stores, so that models can be used without the data."""
        return None

    def vocabulary_type(self) -> type[StoredVocabulary]:
        """Return the class of the vocabulary that `vocabulary` returns."""
        return data_package.Vocabulary

    # --- Training ---

    def check(self) -> None:
        """Raise a `UserError` if settings contradict each other."""
        agent = self.settings.agent
        if agent.control == "histogram" and agent.rates is None and agent.control_of is None:
            raise UserError("--control histogram needs to know the rates: give --control-of DIR, or --rates")
        if agent.control_of is not None and agent.rates is not None:
            raise UserError("--control-of and --rates both say how often each k is drawn: leave one out")
        agent.objective()
        for mix in each(agent.mix):
            F.parse_time_skip("dynamic:1", mix=mix)

    def task(self, spec: ModelSpec, data: Data | None, vocabulary: Vocabulary | None) -> Task:
        """Return the task of a model; without `data` it has no splits to train on."""
        raise NotImplementedError

    def schedule(self, spec: ModelSpec, rate: Any) -> Schedule:
        """Return the schedule of the learning rate; `rate` is the initial rate, of all models or of each."""
        return schedules.decay_after(rate, 1.0, 0)

    def optimizer_options(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the options of `make_optimizer` that concern the network, such as the kind of optimizer."""
        return {"kind": "adam"}

    def fit_options(self, spec: ModelSpec, learner: Learner) -> dict[str, Any]:
        """Return further options of `FitSettings`, such as `average` and `start`."""
        return {}

    def warnings(self, spec: ModelSpec, learner: Learner) -> list[str]:
        """Return warnings about settings that are valid but probably unintended, one line each."""
        return _warnings(spec, learner, self.settings.training.epochs)

    # --- Results ---

    def extra_metrics(
        self, spec: ModelSpec, learner: Learner, params: Any, keys: Key[Array, " seeds"]
    ) -> dict[str, np.ndarray]:
        """Return further metrics of the selected parameters, each (seeds,), in addition to the task's."""
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
        """Draw the choices of one model's agent; by default, how often it chooses each k at each position.

        For a model that reads in both directions, draw one picture for each direction.

        Args:
            spec: Specification of the models.
            learner: Learner of the models, with data.
            params: Parameters of all models that are trained together, (seeds, ...).
            keys: Evaluation keys, (seeds,).
            folder: Folder of the plots.
            member: Index of the model to draw, along the leading axis of `params`.
        """
        if not spec.skip.has_agent:
            return
        top = learner.top_layers
        for direction, layer in top.items():
            counts = _skips_by_position(learner, params, keys, layer, member)
            name, who = "skips_by_position", "back the agent reaches"
            if len(top) > 1:
                name, who = f"{name}_{direction}", f"the {direction} layer reaches"
            plots.action_distribution(
                counts,
                folder / f"{name}.png",
                f"{spec.name}: how far {who} at each position",
                note=f"dev, greedy, seed {spec.all_seeds[member]}",
            )

    def published(self, models: Sequence[str], data: Data) -> Sequence[tuple[str, Mapping[str, float]]]:
        """Return rows of published results: a name, and values for some of `columns`."""
        return []

    def note(self, models: Sequence[str], data: Data) -> str:
        """Return a line to print under the table, or an empty string."""
        return ""

    def differs_from_published(self, data: Data) -> str:
        """Return a phrase with the split sizes that differ from the published corpus; empty if none does."""
        sizes = self.published_sizes.get(data.name, {})
        differs = [name for name, size in sizes.items() if data.sizes.get(name) != size]
        return ", ".join(
            f"{name} has {data.sizes.get(name, 0):,} instead of {sizes[name]:,}" for name in differs
        )

    # --- Texts ---

    def split(self, text: str) -> list[str]:
        """Return the words of a line of text, or an empty list."""
        return text.split()

    def tokenize(self, vocabulary: Any, text: str) -> str:
        """Convert raw text into a line that `encode` can read."""
        return " ".join(self.split(text))

    def encode(self, vocabulary: Vocabulary | None, text: str) -> tuple[Any, list[str]]:
        """Return the ids of a line of text, as arrays of shape (time, ...), and the word of each id.

        Raises:
            UserError: If the text cannot be read.
        """
        tokens = vocabulary.encode(self.split(text))
        return tokens, vocabulary.decode(tokens)

    def format_prediction(self, vocabulary: Vocabulary | None, predicted: Any, probability: float) -> str:
        """Format the prediction for one line of text.

        Args:
            vocabulary: Vocabulary of the run.
            predicted: Prediction of the task.
            probability: Probability of the most likely class, at the step where it is smallest.
        """
        values = " ".join(str(value) for value in np.atleast_1d(predicted))
        return f"{values}  ({probability:.3f})"

    def read(self, trained: Trained, text: str) -> Reading:
        """Read a text with a trained model, and return its prediction and its choices.

        Raises:
            UserError: If the text cannot be read.
        """
        inputs, words = self.encode(trained.vocabulary, text)
        found, predicted = trained.learner.read(trained.params, inputs, len(words), trained.policy)
        certain = np.exp(np.atleast_1d(np.asarray(found.log_probs).max(axis=-1)))
        probabilities = [math.nan] * (len(words) - len(certain)) + certain.tolist()
        # A text may be longer than the model reads, so `words` may be shorter.
        unknown = [word for word, known in zip(self.split(text), words, strict=False) if word != known]
        prediction = self.format_prediction(trained.vocabulary, predicted, float(certain.min()))
        return reading.Reading(
            words,
            unknown=unknown,
            probabilities=probabilities,
            prediction=prediction,
            is_of_predictions=True,
            **trained.choices(found.decisions, found.observations, len(words)),
        )


def _skips_by_position(
    learner: Learner, params: Any, keys: Key[Array, " seeds"], layer: int, member: int
) -> Int[np.ndarray, "positions K"]:
    """Return how often one model chooses each k in a layer at each position of dev."""
    counts = np.zeros((1, learner.skips[layer].max_skip), int)
    for batch, chosen in learner.choices(params, "dev", keys, layer=layer):
        own, ends = chosen[member], batch.seq_lengths
        counts = np.pad(counts, ((0, max(0, own.shape[1] - len(counts))), (0, 0)))
        valid = np.ones(own.shape, bool) if ends is None else np.arange(own.shape[1]) < ends[:, None]
        rows, steps = np.nonzero(valid & batch.mask[:, None])
        np.add.at(counts, (steps, own[rows, steps] - 1), 1)
    return counts


def decay_once_sampled(spec: ModelSpec, rate: Any, decay: float) -> Schedule:
    """Return a schedule that multiplies the rate by `decay` once an epoch, after the relaxed epochs.

    Without relaxed epochs the rate is constant.
    """
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
