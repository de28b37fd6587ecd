"""Build the learner, the optimizer and the schedule of a model from its specification."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import optax

from dynskip_jax.experiments.experiment import Data, Experiment, StoredVocabulary
from dynskip_jax.experiments.model_spec import ModelSpec, of_each
from dynskip_jax.tasks import Learner
from dynskip_jax.training.loop import FitSettings
from dynskip_jax.training.optimizer import make_optimizer


class Training(NamedTuple):
    """A model's specification, the learner that trains it, and the settings of training."""

    spec: ModelSpec
    learner: Learner
    settings: FitSettings


def make_trainings(
    experiment: Experiment, specs: Sequence[ModelSpec], data: Data, vocabulary: StoredVocabulary | None
) -> list[Training]:
    """Return the learner and the training settings of each model in `specs`."""
    trainings = []
    for spec in specs:
        learner = make_learner(experiment, spec, data, vocabulary)
        trainings.append(Training(spec, learner, make_fit_settings(experiment, spec, learner)))
    return trainings


def make_learner(
    experiment: Experiment, spec: ModelSpec, data: Data | None, vocabulary: StoredVocabulary | None
) -> Learner:
    """Return the learner that trains all seeds and sweep values of a model together.

    Without `data`, the learner can read single texts, but cannot train or evaluate.
    """
    return Learner(
        experiment.task(spec, data, vocabulary),
        spec.all_seeds,
        objective=spec.objective,
        sweep=spec.sweep,
        epochs=experiment.settings.training.epochs,
        evaluation_mode=spec.evaluation_mode,
    )


def make_fit_settings(experiment: Experiment, spec: ModelSpec, learner: Learner) -> FitSettings:
    """Return the training settings of a model: seeds, epochs, optimizer, learning rates and stopping rule."""
    training = experiment.settings.training
    rate: Any = training.learning_rate
    if "learning_rate" in spec.values[0]:
        rate = np.array(of_each(spec.values, "learning_rate", len(spec.seeds)))
    return FitSettings(
        seeds=spec.all_seeds,
        epochs=training.epochs,
        optimizer=direction_of_descent(experiment, spec),
        learning_rate=experiment.schedule(spec, rate),
        patience=training.patience,
        max_skipped=training.max_skipped,
        **experiment.fit_options(spec, learner),
    )


def direction_of_descent(experiment: Experiment, spec: ModelSpec) -> optax.GradientTransformation:
    """Return the optimizer of a model.

    Gradients of agents that are trained only by a score function are clipped separately. With a relaxation,
    the agents' gradients are clipped together with the network's, like those of attention and of Skip RNN's
    gate.
    """
    settings, rate = experiment.settings, spec.agent_learning_rate
    return make_optimizer(
        **experiment.optimizer_options(spec),
        clip=settings.training.clip,
        agents_apart=spec.skip.is_stochastic and spec.objective.relaxation == "none",
        agent_learning_rate=rate,
        learning_rate=1.0 if rate is None else settings.training.learning_rate,
    )
