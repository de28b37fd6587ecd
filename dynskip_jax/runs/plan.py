"""Decide a run once: its settings, its models, and how each is trained."""

from pathlib import Path
from typing import Any, NamedTuple

from dynskip_jax.config.experiment import Dataset, Experiment
from dynskip_jax.config.settings import Resolved, Settings
from dynskip_jax.config.small_data import fit_to_size
from dynskip_jax.errors import UserError
from dynskip_jax.runs.learner import make_fit_settings, make_learner
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.pieces import check_names
from dynskip_jax.runs.spec import ModelSpec, make_spec
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.storage.results import learnt_rates
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.training.loop import FitSettings


class PlannedModel(NamedTuple):
    """A model: its specification, the learner that trains it, and how it is trained."""

    spec: ModelSpec
    learner: Learner
    fit: FitSettings


class Plan(NamedTuple):
    """A run that is decided. Nothing in it changes while it runs."""

    experiment: Experiment
    settings: Settings
    data: Dataset
    models: tuple[PlannedModel, ...]

    def trained(self, model: PlannedModel, run: RunDir | None, params: Any) -> Trained:
        """Return a model with its trained parameters."""
        return Trained(
            run,
            self.experiment,
            self.settings,
            self.data.vocabulary,
            model.spec,
            model.learner,
            params,
        )


def with_files(experiment: Experiment, resolved: Resolved) -> Resolved:
    """Return the settings with those that files give: by word vectors, or a control's run."""
    for name, value in experiment.task_class.settings_of_files(resolved.settings).items():
        if resolved.sources[name] != "flag":
            resolved = resolved.changed("a file", **{name: value})
    control_of = resolved.settings.agent.control_of
    if isinstance(control_of, Path):
        rates = learnt_rates(control_of, experiment.name)
        resolved = resolved.changed("rates of that run", control_of=rates)
    return resolved


def read_data(experiment: Experiment, resolved: Resolved) -> tuple[Resolved, Dataset]:
    """Load the data, and return them with the settings that fit their size."""
    settings = resolved.settings
    check_names(settings.run.models(experiment.model), settings)
    data = experiment.task_class.load(settings)
    size = data.sizes.get("train", 0)
    return fit_to_size(resolved, size, experiment.least_updates), data


def plan(experiment: Experiment, resolved: Resolved, data: Dataset) -> Plan:
    """Return the run of these settings on these data; refuse what cannot be run."""
    settings = resolved.settings
    names = settings.run.models(experiment.model)
    specs = [make_spec(name, settings, may_import=True) for name in names]
    if isinstance(settings.agent.mix, tuple) and not any("mix" in s.values[0] for s in specs):
        raise UserError(f"{', '.join(names)} has no mix to be swept over: name a model that has")
    models = []
    for spec in specs:
        learner = make_learner(experiment, settings, spec, data, data.vocabulary)
        models.append(PlannedModel(spec, learner, make_fit_settings(settings, spec, learner)))
    return Plan(experiment, settings, data, tuple(models))
