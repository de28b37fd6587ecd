"""What an experiment says of itself, and what follows from its settings for all of them alike."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Key

from dynskip_jax import functional as F
from dynskip_jax.analysis import plots
from dynskip_jax.analysis.reading import connections, distribution
from dynskip_jax.data import Vocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.rl import AgentObjective
from dynskip_jax.tasks import Forward, Learner, Task
from dynskip_jax.training.loop import FitSettings
from dynskip_jax.training.optimizer import make_optimizer
from dynskip_jax.training.schedule import Schedule, decay_after
from dynskip_jax.training.sweep import Sweep
from experiments.command_line import Command
from experiments.controls import controlled, learnt_rates
from experiments.settings import Settings, replace, sweep_of

if TYPE_CHECKING:
    from experiments.trained import Trained

FORMAT = 2  # of run folders
PRECISIONS = {"f32": jnp.float32, "bf16": jnp.bfloat16}
_OF_AGENTS = ("mix", "max_skip")  # what a sweep may set for models that choose,
_OF_SAMPLERS = ("entropy_coef", "temperature")  # for those that sample,
_OF_SKIPPERS = ("update_cost",)  # and for those that learn by gradient what to leave out


class TextReading(NamedTuple):
    """What a model makes of a text.

    Attributes:
        words: as the model reads them.
        unknown: those of the text that it does not know.
        skips: the top layer's `connections`; 0 without choices to show.
        probabilities: of what is predicted, or of the words themselves; NaN where there is nothing to say.
        says: the prediction, in one line.
        backward: k of the layer that reads from the end, where the model reads in both directions.
        weights: returns how probable each k was to the agent of the top layer, or how heavy to its attention,
            (words, K); None where it has neither. Only to be called where it is shown.
        backward_weights: the same of the layer that reads from the end.
    """

    words: list[str]
    unknown: list[str]
    skips: list[int]
    probabilities: list[float]
    says: str
    backward: list[int] | None = None
    weights: Callable[[], Float[np.ndarray, "words K"] | None] = lambda: None
    backward_weights: Callable[[], Float[np.ndarray, "words K"] | None] = lambda: None


class Data(Protocol):
    """What is trained on; any object with these attributes."""

    name: str
    sizes: Mapping[str, int]
    fingerprint: str
    source: str


class Kept(Protocol):
    """A vocabulary, as a run folder keeps it."""

    def to_json(self) -> Any:
        """Returns what JSON can hold."""

    @classmethod
    def from_json(cls, kept: Any) -> "Kept":
        """Returns what `to_json` described."""


class Experiment:
    """One command's models, data and tables; an experiment of one's own is a class like this.

    Args:
        settings: all of them, resolved.

    Attributes:
        command: the command line.
        columns: metrics of the printed table, with their headings and formats.
        curves: metrics drawn as learning curves.
        samples: how many predictions are averaged in the last evaluation.
        final_rows: rows read side by side in the last evaluation; None: as the task thinks best.
        sample_text: what `explain` reads where it is given nothing.
        vocabulary_type: of what `vocabulary` returns.
    """

    command: ClassVar[Command]
    columns: ClassVar[Mapping[str, tuple[str, str]]]
    curves: ClassVar[tuple[str, ...]] = ()
    samples: ClassVar[int] = 16
    final_rows: ClassVar[int | None] = None
    sample_text: ClassVar[str | None] = None
    vocabulary_type: ClassVar[type[Kept]] = Vocabulary

    def __init__(self, settings: Settings):
        self.settings = settings
        self.check()
        if settings.agent.control_of is not None:
            self.settings = replace(settings, rates=learnt_rates(settings.agent.control_of, self.name))

    @property
    def name(self) -> str:
        """As in `python -m experiments.<name>`."""
        return self.command.name

    # --- What an experiment writes ---

    def load_data(self) -> Data:
        """Returns the data."""
        raise NotImplementedError

    def about_data(self, data: Data) -> Sequence[str]:
        """Returns what else is to be said of the data before training."""
        return ()

    def vocabulary(self, data: Data) -> Kept | None:
        """Returns what a run folder keeps so that its models can be used without the data."""
        return None

    def task(self, model: str, data: Data | None, vocabulary: Vocabulary | None) -> Task:
        """Returns the task of a model; without data it is only used."""
        raise NotImplementedError

    def schedule(self, model: str, rate: Any) -> Schedule:
        """Returns the learning rates, from the initial one or one for each model."""
        return decay_after(rate, 1.0, 0)

    def decayed_once_sampled(self, model: str, rate: Any, decay: float) -> Schedule:
        """Returns learning rates that fall by a factor an epoch after the relaxed ones, if there are any."""
        relaxed = self.objective(model).relaxed_epochs
        return decay_after(rate, decay if relaxed else 1.0, relaxed)

    def more_metrics(self, model: str, learner: Learner, params: Any, keys: Key[Array, " seeds"]) -> dict:
        """Returns metrics of the selected parameters that evaluation does not give, (seeds,)."""
        return {}

    def draw(
        self, model: str, learner: Learner, params: Any, keys: Key[Array, " seeds"], folder: Path, member: int
    ) -> None:
        """Draws what the agent of one of the models trained together chose; by default by position."""
        skip = self.skip(model)
        if not skip.has_agent:
            return
        counts = np.zeros((1, skip.max_skip), int)
        for batch, chosen in learner.choices(params, "dev", keys, layer=-1):
            own, ends = chosen[member], batch.seq_lengths
            counts = np.pad(counts, ((0, max(0, own.shape[1] - len(counts))), (0, 0)))
            where = np.ones(own.shape, bool) if ends is None else np.arange(own.shape[1]) < ends[:, None]
            rows, steps = np.nonzero(where & batch.mask[:, None])
            np.add.at(counts, (steps, own[rows, steps] - 1), 1)
        plots.action_distribution(
            counts,
            folder / "skips_by_position.png",
            f"{model}: how far back the agent reaches at each position",
            note=f"dev, greedy, seed {self.all_seeds(model)[member]}",
        )

    def published(self, models: Sequence[str], data: Data) -> Sequence[tuple[str, Mapping[str, float]]]:
        """Returns published rows: a name, and values for some of `columns`."""
        return []

    def note(self, models: Sequence[str], data: Data) -> str:
        """Returns a line under the table, or an empty string."""
        return ""

    def warnings(self, model: str, learner: Learner) -> list[str]:
        """Returns what is likely not meant, though it can be trained, each in a line."""
        skip, epochs, lines = self.skip(model), self.settings.training.epochs, []
        objective = self.objective(model)
        if skip.is_stochastic and objective.relaxation != "none" and not objective.relaxed_epochs:
            lines.append(
                f"--relaxation {objective.relaxation} changes nothing: choices are relaxed in no epoch; give "
                "--relaxed-epochs"
            )
        if skip.is_stochastic and objective.relaxed_epochs >= epochs:
            lines.append(
                f"choices are relaxed in all {epochs} epochs, and in none they are sampled, as evaluation "
                "takes them: more --epochs, or fewer --relaxed-epochs"
            )
        enters = self.choices_matter(model) or self.copies_in_expectation(model)
        if skip.is_stochastic and not enters:
            lines.append(
                f"λ = 0: no state enters by a choice of {model}, which changes nothing; give --mix, or, in "
                "language models, --copy"
            )
        longest = learner.task.max_length
        if longest is not None and skip.max_skip > longest:
            lines.append(
                f"K = {skip.max_skip} is beyond every sequence of train, the longest of which has {longest} "
                "steps: what lies before a sequence is the initial state"
            )
        return lines

    def check(self) -> None:
        """Raises a `UserError` where settings make no sense together."""
        agent = self.settings.agent
        if agent.control == "histogram" and agent.rates is None and agent.control_of is None:
            raise UserError("--control histogram needs to know the rates: give --control-of DIR, or --rates")
        if agent.control_of is not None and agent.control != "histogram":
            raise UserError(
                "--control-of names the run whose rates are drawn from: give --control histogram, too"
            )
        if agent.control_of is not None and agent.rates is not None:
            raise UserError("--control-of and --rates both say how often each k is drawn: leave one out")
        self.objective_settings()
        for mix in _each(agent.mix):
            F.parse_time_skip("dynamic:1", mix=mix)
        self.recurrent_options()

    def split(self, text: str) -> list[str]:
        """Returns the words of a line of text; none where there is nothing to read."""
        return text.split()

    def typed(self, vocabulary: Any, text: str) -> str:
        """Returns a text as people type it, as a line that `encode` reads."""
        return " ".join(self.words_of_typed(vocabulary, text))

    def words_of_typed(self, vocabulary: Any, text: str) -> list[str]:
        """Returns the words of a text as people type it, as the data writes them; by default as `split`."""
        return self.split(text)

    def encode(self, vocabulary: Vocabulary | None, text: str) -> tuple[Any, list[str]]:
        """Returns the ids of a line of text, each array (time, ...), and what each stands for.

        Raises:
            UserError: it cannot be read.
        """
        tokens = vocabulary.encode(self.split(text))
        return tokens, vocabulary.decode(tokens)

    def says(self, vocabulary: Vocabulary | None, predicted: Any, probability: float) -> str:
        """Returns the prediction of one line of text, as people read it.

        Args:
            vocabulary: of the run.
            predicted: what the task predicts.
            probability: of the likeliest class, at the step where that is smallest.
        """
        values = " ".join(str(value) for value in np.atleast_1d(predicted))
        return f"{values}  ({probability:.3f})"

    def read(self, trained: "Trained", text: str) -> TextReading:
        """Reads a text with a trained model, and predicts.

        Raises:
            UserError: the text cannot be read.
        """
        inputs, words = self.encode(trained.vocabulary, text)
        read, predicted = trained.learner.read(trained.params, inputs, len(words), trained.policy)
        certain = np.exp(np.atleast_1d(np.asarray(read.log_probs).max(axis=-1)))
        probabilities = [math.nan] * (len(words) - len(certain)) + certain.tolist()
        skips, weights = [0] * len(words), lambda: None
        if trained.shows_choices:
            forward = [i for i, back in enumerate(trained.learner.reverse) if not back]
            skips = np.asarray(connections(read.decisions[forward[-1]])).tolist()
            weights = partial(self.weights, trained, read, forward[-1])
        # What is longer than the model reads ends where its words end.
        unknown = [word for word, kept in zip(self.split(text), words, strict=False) if word != kept]
        says = self.says(trained.vocabulary, predicted, float(certain.min()))
        return TextReading(words, unknown, skips, probabilities, says, weights=weights)

    def weights(self, trained: "Trained", read: Forward, layer: int) -> Float[np.ndarray, "words K"] | None:
        """Returns the `distribution` over k of a layer of a text that was read; None where there is none."""
        if read.observations is None:
            return None
        cell = trained.model.stack.cells[layer]
        reverse = trained.learner.reverse[layer]
        found = distribution(cell, read.observations[layer], trained.policy, reverse=reverse)
        return None if found is None else np.asarray(found)

    # --- What follows from it ---

    def skip(self, model: str) -> F.TimeSkip:
        """Returns the time skip that a model's name stands for under these settings.

        Raises:
            UserError: there is no such model.
        """
        agent = self.settings.agent
        return controlled(F.parse_time_skip(model, **self.skip_options()), agent.control, agent.rates)

    def beyond_name(self, model: str) -> dict[str, Any]:
        """Returns what of a model its name does not say: another transition than the LSTM, a skip over depth,
        what its agent chooses by and among, and what it is a control of."""
        own = [(self.settings.model, {"transition": "lstm", "depth_skip": None})]
        if isinstance(F.parse_time_skip(model), F.Dynamic):
            own.append((self.settings.agent, {"agent": "mlp", "stride": 1, "control": "none"}))
        K = self.settings.agent.max_skip
        limited = {"max_skip": K} if isinstance(K, int) and self.reach(model) == K else {}
        return limited | {
            name: getattr(group, name)
            for group, plain in own
            for name, usual in plain.items()
            if getattr(group, name) != usual
        }

    def reach(self, model: str) -> int:
        """Returns how far back a model may choose: K, or --max-skip where that is one smaller number."""
        skip, limit = self.skip(model), self.settings.agent.max_skip
        return min(skip.max_skip, limit) if skip.has_agent and isinstance(limit, int) else skip.max_skip

    def is_untrained(self, model: str) -> bool:
        """Returns whether a model's agent stays as it was drawn."""
        return self.settings.agent.control == "untrained" and isinstance(self.skip(model), F.Dynamic)

    def choices_matter(self, model: str, **selected: Any) -> bool:
        """Returns whether sampled choices make a model say something else: with λ = 0 none enters.

        Args:
            model: its name.
            **selected: of a sweep the value that is asked for; by default any.
        """
        skip = self.skip(model)
        weightless = skip.takes_max_skip and not any(_each(selected.get("mix", self.settings.agent.mix)))
        return skip.is_stochastic and not weightless

    def copies_in_expectation(self, model: str) -> bool:
        """Returns whether a model copies words by the probabilities of all its choices."""
        return False

    def evaluation_mode(self, model: str) -> str:
        """Returns how a model chooses on dev and test: an agent that was never trained samples."""
        return "sample" if self.is_untrained(model) else self.settings.agent.evaluation_mode

    def skip_options(self) -> dict[str, Any]:
        """Returns what time skips are made with; each takes what it has."""
        agent = self.settings.agent
        names = ("agent", "agent_input", "empty_slots", "stride", "first_step", "rates")
        return {"mix": _each(agent.mix)[0]} | {name: getattr(agent, name) for name in names}

    def values(self, model: str) -> tuple[dict[str, Any], ...]:
        """Returns what a sweep sets for a model, value by value; one empty dictionary without a sweep."""
        skip = self.skip(model)
        names = ["learning_rate", *(_OF_AGENTS if skip.has_agent else ())]
        names += _OF_SAMPLERS if skip.is_stochastic else ()
        return sweep_of(self.settings, [*names, *(_OF_SKIPPERS if _pays_for_updates(skip) else ())])

    def check_models(self, models: Sequence[str]) -> None:
        """Raises a `UserError` where a control, or a sweep, is of what none of the models has."""
        agent = self.settings.agent
        choosing = [F.parse_time_skip(model, **self.skip_options()) for model in models]
        if agent.control != "none" and not any(isinstance(skip, F.Dynamic) for skip in choosing):
            raise UserError(
                f"--control {agent.control} takes the place of a dynamic skip, and {', '.join(models)} has "
                "none: name a model such as dynamic:5"
            )
        drawn = agent.control == "histogram" or any(isinstance(skip, F.Random) for skip in choosing)
        if agent.rates is not None and not drawn:
            raise UserError(
                f"--rates are of random:k or of --control histogram, and {', '.join(models)} is neither"
            )
        for model, skip in zip(models, choosing, strict=True):
            if isinstance(skip, F.Dynamic) and skip.stride > 1 and skip.stride >= skip.max_skip:
                raise UserError(
                    f"--stride {skip.stride} leaves {model} nothing but k = 1: choose a smaller one"
                )
        if isinstance(self.settings.training.learning_rate, tuple) and any(map(self._own_rate, models)):
            raise UserError(
                "a sweep over --learning-rate needs agents that share the network's optimizer: give "
                "--agent-learning-rate none"
            )
        depth_skip = self.recurrent_options()["depth_skip"]
        layers = getattr(self.settings.model, "num_layers", 1)
        if depth_skip is not None and layers <= depth_skip.layers_below:
            raise UserError(
                f"--depth-skip {self.settings.model.depth_skip} joins a layer with the one "
                f"{depth_skip.layers_below} below: it needs {depth_skip.layers_below + 1} layers or more, "
                f"got {layers}"
            )
        known = (*_OF_AGENTS, *_OF_SAMPLERS, *_OF_SKIPPERS)
        swept = [name for name in known if isinstance(getattr(agent, name), tuple)]
        if agent.max_skip is not None and "max_skip" not in swept:
            swept.append("max_skip")
        for name in swept:
            if not any(name in value for model in models for value in self._values_with_K(model)):
                raise UserError(
                    f"{', '.join(models)} has no {name} to be swept over: name a model that has, such as "
                    f"{'skip_rnn' if name in _OF_SKIPPERS else 'dynamic:10'}"
                )

    def _values_with_K(self, model: str) -> tuple[dict[str, Any], ...]:
        """The values of a sweep; a single K is one of one value."""
        K = self.settings.agent.max_skip
        alone = {"max_skip": K} if isinstance(K, int) and self.skip(model).has_agent else {}
        return tuple({**alone, **value} for value in self.values(model))

    def all_seeds(self, model: str) -> tuple[int, ...]:
        """Returns the seed of each model that is trained: all seeds with the first value, then the second."""
        run = self.settings.run
        return tuple(range(run.seed, run.seed + run.seeds)) * len(self.values(model))

    def sweep(self, model: str) -> Sweep:
        """Returns in what else than their seeds these models differ.

        Raises:
            UserError: a value is beyond what the model can do.
        """
        values, K = self._values_with_K(model), self.skip(model).max_skip
        if any(value.get("max_skip", 0) > K for value in values):
            largest = max(value["max_skip"] for value in values)
            raise UserError(f"--max-skip {largest} is beyond {model}: name a larger k")
        return Sweep(**{name: self._of_each(values, name) for name in Sweep._fields})

    def _of_each(self, values: Sequence[Mapping[str, Any]], name: str) -> tuple | None:
        if name not in values[0]:
            return None
        return tuple(value[name] for value in values for _ in range(self.settings.run.seeds))

    def objective_settings(self) -> AgentObjective:
        """Returns how agents are rewarded, with the first value of what is swept.

        Raises:
            UserError: the settings make no sense together.
        """
        return self.settings.agent.objective()

    def objective(self, model: str) -> AgentObjective:
        """Returns how a model's agents are rewarded; without any, nothing is gained from rollouts, and what
        cannot be relaxed is not."""
        objective, skip = self.objective_settings(), self.skip(model)
        if not skip.is_stochastic:
            return AgentObjective(reward=objective.reward, update_cost=objective.update_cost)
        if objective.relaxed_epochs and (
            self.is_untrained(model) or not skip.differentiable(objective.relaxation, False)
        ):
            unrelaxed = dict(relaxation="none", relaxed_epochs=0)
            unrelaxed |= dict(relaxed_entropy_coef=None, relaxed_entropy_coef_final=None)
            objective = dataclasses.replace(objective, **unrelaxed)
        return dataclasses.replace(objective, rl_coef=0.0) if self.is_untrained(model) else objective

    @property
    def dtype(self) -> Any:
        """In which matrices are multiplied."""
        return PRECISIONS[self.settings.model.precision]

    def recurrent_options(self) -> dict[str, Any]:
        """Returns the transition and the skip over depth of every layer."""
        model = self.settings.model
        return dict(
            transition=F.parse_transition(model.transition),
            depth_skip=None if model.depth_skip is None else F.parse_depth_skip(model.depth_skip),
        )

    def cell_options(self) -> dict[str, Any]:
        """Returns the options of `SkipCell` in layers with a time skip."""
        agent = self.settings.agent
        options = dict(agent_features=agent.agent_features, forget_bias=self.settings.model.forget_bias)
        if agent.agent_init == "normal":
            options["agent_kernel_init"] = nnx.initializers.normal(0.3)
            options["agent_bias_init"] = nnx.initializers.constant(0.1)
        return options

    def learner(self, model: str, data: Data | None, vocabulary: Vocabulary | None) -> Learner:
        """Returns what is trained together for a model."""
        return Learner(
            self.task(model, data, vocabulary),
            self.all_seeds(model),
            objective=self.objective(model),
            sweep=self.sweep(model),
            epochs=self.settings.training.epochs,
            evaluation_mode=self.evaluation_mode(model),
        )

    def fit_settings(self, model: str, learner: Learner) -> FitSettings:
        """Returns how it is trained."""
        training = self.settings.training
        rates = self._of_each(self.values(model), "learning_rate")
        return FitSettings(
            seeds=self.all_seeds(model),
            epochs=training.epochs,
            optimizer=self.make_optimizer(model),
            learning_rate=self.schedule(model, training.learning_rate if rates is None else np.array(rates)),
            patience=training.patience,
            max_skipped=training.max_skipped,
        )

    def make_optimizer(self, model: str) -> optax.GradientTransformation:
        """Returns the direction of descent.

        Agents are clipped by a norm of their own where a score function alone trains them. While choices are
        relaxed their gradient is a part of the network's. Attention is a part of it like any other, and so is
        Skip RNN's gate.
        """
        training, rate = self.settings.training, self._own_rate(model)
        alone = self.skip(model).is_stochastic and self.settings.agent.relaxation == "none"
        return make_optimizer(
            **self.optimizer_options(model),
            clip=training.clip,
            agents_apart=alone,
            agent_learning_rate=rate,
            learning_rate=1.0 if rate is None else training.learning_rate,
        )

    def optimizer_options(self, model: str) -> dict[str, Any]:
        """Returns what `make_optimizer` is told of the network: the kind of optimizer, and more."""
        return {"kind": "adam"}

    def _own_rate(self, model: str) -> float | None:
        """The agents' own learning rate, where the model has agents that sample."""
        return self.settings.agent.agent_learning_rate if self.skip(model).is_stochastic else None

    def config(self, model: str, data: Data) -> dict[str, Any]:
        """Returns what a run folder has to agree with, to be resumed."""
        return {
            "format": FORMAT,
            "experiment": self.name,
            "code": self.command.experiment,
            "model": model,
            "dataset": {"name": data.name, "fingerprint": data.fingerprint},
            "settings": self.settings.kept(),
        }


def evaluations(mode: str, *, is_stochastic: bool, samples: int) -> dict[tuple[str, str], tuple]:
    """Returns what is evaluated: from a split and a suffix of metrics to split, mode and samples.

    Args:
        mode: of the metrics without a suffix.
        is_stochastic: whether there are agents that sample, and metrics `_greedy`, `_sampled`, `_averaged`.
        samples: how many predictions are averaged.
    """
    modes = {"": (mode, 1)}
    if is_stochastic:
        modes |= {"_greedy": ("greedy", 1), "_sampled": ("sample", 1), "_averaged": ("sample", samples)}
    return {(split, suffix): (split, *how) for suffix, how in modes.items() for split in ("dev", "test")}


def metrics_in_every_mode(
    evaluate: Callable[..., dict[str, np.ndarray]], modes: Mapping[tuple[str, str], tuple]
) -> dict[str, np.ndarray]:
    """Returns the metrics of all `evaluations`.

    Args:
        evaluate: from a split, `mode` and `samples` to metrics; each combination is asked for once.
        modes: what `evaluations` returns.
    """
    done = {at: evaluate(at[0], mode=at[1], samples=at[2]) for at in dict.fromkeys(modes.values())}
    return {f"{name}{suffix}": value for (_, suffix), at in modes.items() for name, value in done[at].items()}


def _pays_for_updates(skip: F.TimeSkip) -> bool:
    return not skip.writes_all and skip.differentiable("sample", False)


def _each(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)
