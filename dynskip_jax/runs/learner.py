"""Build the learner, the optimizer and the schedule of a model from its specification."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from dynskip_jax.config.experiment import Dataset, Experiment
from dynskip_jax.config.settings import Settings
from dynskip_jax.errors import UserError
from dynskip_jax.runs.spec import ModelSpec, of_each
from dynskip_jax.storage.results import finished_runs
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.training import optimizer
from dynskip_jax.training.asgd import averaging_rule
from dynskip_jax.training.loop import FitSettings
from dynskip_jax.training.resume import selected_params

VOCABULARY = "vocabulary.json"  # file of a run folder

_PLATEAU = dict(threshold=1.0, floor=0.005)  # of the released language model of Gui et al. (2019)


def make_learner(
    experiment: Experiment,
    settings: Settings,
    spec: ModelSpec,
    data: Dataset | None,
    vocabulary: Any,
) -> Learner:
    """Return the learner of all models trained together; without `data` it reads texts only."""
    return experiment.learner_class(
        experiment.task_class(spec, settings, data, vocabulary),
        spec.all_seeds,
        objective=spec.objective,
        mixes=spec.mixes,
        epochs=settings.training.epochs,
        evaluation_mode=spec.evaluation_mode,
    )


def make_fit_settings(settings: Settings, spec: ModelSpec, learner: Learner) -> FitSettings:
    """Return how a model is trained: seeds, epochs, optimizer, learning rates and stopping rule."""
    training = settings.training
    start = None
    if training.start_from is not None:
        start = _start(spec, learner, training.start_from)
    return FitSettings(
        seeds=spec.all_seeds,
        epochs=getattr(training, training.length),
        optimizer=_optimizer(settings, spec),
        learning_rate=_learning_rate(settings, spec),
        patience=training.patience,
        average=averaging_rule(training.average, after=training.average_after),
        start=start,
    )


def _learning_rate(settings: Settings, spec: ModelSpec) -> optimizer.Schedule:
    """Return the schedule of the learning rate: constant, or with the settings' decay."""
    training = settings.training
    rate: Any = training.learning_rate
    if "learning_rate" in spec.values[0]:
        rate = np.array(of_each(spec.values, "learning_rate", len(spec.seeds)))
    if training.inverse_decay is not None:
        return optimizer.inverse_time(rate, training.inverse_decay)
    if training.sampled_decay is not None:  # constant without relaxed epochs
        relaxed = spec.objective.relaxed_epochs
        return optimizer.decay_after(rate, training.sampled_decay if relaxed else 1.0, relaxed)
    if training.decay_after == "plateau":
        return optimizer.decay_on_plateau(rate, 1 / training.decay, **_PLATEAU)
    return optimizer.decay_after(rate, 1 / training.decay, training.decay_after)


def _optimizer(settings: Settings, spec: ModelSpec) -> optax.GradientTransformation:
    """Return the optimizer of a model.

    Gradients of agents that are trained only by a score function are clipped separately. Untrained
    agents are frozen: without rewards, weight decay and copying would still change them.
    """
    training = settings.training
    rate = spec.agent_learning_rate
    frozen = ("agent",) if spec.is_untrained else ()
    if not settings.model.train_embeddings:
        frozen += ("embedding",)
    return optimizer.make_optimizer(
        training.optimizer,
        weight_decay=training.weight_decay,
        frozen=frozen,
        clip=training.clip,
        agents_apart=spec.skip.is_stochastic and spec.objective.relaxation == "none",
        agent_learning_rate=rate,
        learning_rate=1.0 if rate is None else training.learning_rate,
    )


def _start(spec: ModelSpec, learner: Learner, run_dir: Path) -> Any:
    """Return the selected parameters of a finished run of the same model with as many seeds.

    Of a sweep they are those of the selected value; each value of this run's own sweep begins with
    them.
    """
    runs = finished_runs(run_dir)
    if spec.name not in runs:
        raise UserError(f"--start-from {run_dir} holds no finished run of {spec.name}")
    run = runs[spec.name].run
    row = runs[spec.name].row
    words = json.dumps(learner.task.corpus.vocabulary.to_json())
    if json.loads((run.path / VOCABULARY).read_text(encoding="utf-8")) != json.loads(words):
        raise UserError(
            f"--start-from {run_dir} was trained on other words than those of this data"
        )
    values = [each["value"] for each in row.get("sweep", [])] or [{}]
    count = len(row["seeds"])
    if count != len(spec.seeds):
        raise UserError(
            f"--start-from {run_dir} has {count} seeds: train as many, not {len(spec.seeds)}"
        )
    try:
        params = selected_params(run, learner.abstract_params(), count * len(values))
    except UserError as error:
        raise UserError(f"--start-from: {error}") from error
    first = values.index(row.get("selected", {})) * count
    chosen = jax.tree.map(lambda leaf: leaf[first : first + count], params)
    return jax.tree.map(lambda leaf: np.concatenate([leaf] * len(spec.values)), chosen)
