"""Load finished runs: models with their parameters, vocabulary and settings, of any experiment."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.build import make_learner
from dynskip_jax.experiments.experiment import Data, Experiment, StoredVocabulary
from dynskip_jax.experiments.model_spec import ModelSpec, make_spec
from dynskip_jax.experiments.registry import experiment_of
from dynskip_jax.experiments.run import VOCABULARY
from dynskip_jax.experiments.settings import Settings, replace
from dynskip_jax.experiments.stored_settings import from_config, last_paths
from dynskip_jax.tasks import Learner
from dynskip_jax.training.files import sha256_of
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.metrics import metrics_table
from dynskip_jax.training.results import rows_of
from dynskip_jax.training.trained import finished_runs, selected_params

if TYPE_CHECKING:
    import pandas


class FinishedModel(NamedTuple):
    """One model of a run folder, with the parameters of all its seeds and sweep values.

    Attributes:
        run: Run folder; None for a model that was trained without one.
        spec: Specification of the model.
        experiment: Experiment with the settings of the run.
        vocabulary: Vocabulary from the run folder; None if the experiment has none.
        learner: Learner of the model, without data.
        params: Selected parameters of all seeds, for each value of a sweep, in the learner's order.
        seeds: Seeds that were trained.
        value: Index of the selected value of a sweep; 0 without a sweep.
    """

    run: RunDir | None
    spec: ModelSpec
    experiment: Experiment
    vocabulary: Any
    learner: Learner
    params: nnx.State
    seeds: tuple[int, ...]
    value: int

    @property
    def name(self) -> str:
        """The model's name, as on the command line."""
        return self.spec.name

    @property
    def selected(self) -> dict[str, Any]:
        """Settings of the selected value of a sweep; empty without a sweep."""
        return self.spec.values[self.value]

    def learner_with(self, data: Data) -> Learner:
        """Return a learner that reads `data`, of all seeds and values of the sweep."""
        return make_learner(self.experiment, self.spec, data, self.vocabulary)

    @property
    def members(self) -> slice:
        """Slice of `params` with the selected value of the sweep, in the order of the seeds."""
        return slice(self.value * len(self.seeds), (self.value + 1) * len(self.seeds))


class LoadedModel(NamedTuple):
    """One trained model.

    Attributes:
        model: Flax module with the selected parameters, in evaluation mode.
        params: Parameters of `model`.
        vocabulary: Vocabulary of the ids; None if the experiment has none.
        settings: All settings of the run.
        policy: Policy of the agents in evaluation, with the selected λ and K of a sweep.
        spec: Specification of this one model; its `name` is that of the command line, such as `dynamic:5`.
        seed: Seed of the model.
        experiment: Experiment of the run.
        learner: Learner of all seeds and values of a sweep, without data; its task reads batches.
        run: Run folder; None for a model that was trained without one.
    """

    model: nnx.Module
    params: nnx.State
    vocabulary: Any
    settings: Settings
    policy: F.Policy
    spec: ModelSpec
    seed: int
    experiment: Experiment
    learner: Learner
    run: RunDir | None

    @property
    def name(self) -> str:
        """The model's name, as on the command line."""
        return self.spec.name

    @property
    def metrics(self) -> "pandas.DataFrame":
        """Logged and final metrics of the run: a row for each seed, epoch and split.

        Columns: `model`, `seed`, `epoch`, `split`, and one for each metric. `epoch` is NaN in the rows of the
        final evaluation, which uses the parameters of the best epoch.
        """
        return metrics_table(self.run)

    def read(self, text: str) -> Reading:
        """Read a text, and return the model's prediction and choices; see `Reading`.

        Raises:
            UserError: If the text cannot be read.
        """
        return self.experiment.read(self, text)

    def data(self, folder: str | None = None) -> Data:
        """Return the data that the model was trained on; see `data_of`."""
        return data_of(self, folder)

    def learner_with(self, data: Data) -> Learner:
        """Return a learner that reads `data`, of this one model: its seed, with the selected λ and K."""
        return make_learner(self.experiment, self.spec, data, self.vocabulary)


def load_run(
    run_dir: str | Path, model: str | None = None, seed: int | None = None, experiment: str | None = None
) -> LoadedModel:
    """Load one trained model of a finished run.

    Example::

        loaded = load_run("runs/ptb/dynamic-5-20261101-101500")
        output = loaded.model(ids, policy=loaded.policy, rngs=jax.random.key(0))

    Args:
        run_dir: Finished run folder, of one model or of several compared models.
        model: Name of the model, as on the command line; by default the last one of the folder.
        seed: Seed of the model; by default the first one that was trained.
        experiment: Name of the experiment that the run must belong to; by default any.

    Raises:
        UserError: If there is no such model or seed, or if another version or experiment wrote the folder.
    """
    found = finished_models(run_dir, experiment)
    name = model or list(found)[-1]
    if name not in found:
        raise UserError(f"{run_dir} has {', '.join(found)}: there is no --model {name}")
    return one_of(found[name], seed)


def load_all(
    run_dir: str | Path, seed: int | None = None, experiment: str | None = None
) -> dict[str, LoadedModel]:
    """Load one seed of each model in a run folder, by the model's name; see `load_run`."""
    return {name: one_of(found, seed) for name, found in finished_models(run_dir, experiment).items()}


def finished_models(run_dir: str | Path, experiment: str | None = None) -> dict[str, FinishedModel]:
    """Load all models of a run folder, by name.

    Args:
        run_dir: Run folder.
        experiment: Name of the experiment that the run must belong to; by default any.

    Raises:
        UserError: If there is no finished run, or if another version or experiment wrote the folder.
    """
    return {name: _finished(run, name) for name, run in finished_runs(run_dir, experiment).items()}


def _finished(run: RunDir, name: str) -> FinishedModel:
    config, results = run.config(), run.result()
    kind = experiment_of(run)
    try:
        (result,) = rows_of(results)
        experiment: Experiment = kind(_settings_of(kind, config))
        spec = make_spec(name, experiment.settings)
        dataset = config["dataset"]
        if not all(isinstance(text, str) for text in (dataset["name"], dataset["fingerprint"])):
            raise ValueError("its dataset has no name")
        value = list(spec.values).index(result.get("selected", {}))
        seeds = tuple(result["seeds"])
        if spec.all_seeds != seeds * len(spec.values):
            raise ValueError("its seeds are not those of the settings")
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UserError(
            f"{run.path} holds a config.json or result.json that this version does not understand ({error}): "
            "restore it, or train again"
        ) from error
    expected = result.get("vocabulary_sha256")
    has_vocabulary = kind.vocabulary is not Experiment.vocabulary
    vocabulary = stored_vocabulary(run, experiment.vocabulary_type()) if has_vocabulary else None
    if vocabulary is not None and expected not in (None, sha256_of(run.path / VOCABULARY)):
        raise UserError(
            f"{run.path / VOCABULARY} is not the file that the model was trained with: restore it, or train "
            "again"
        )
    if vocabulary is None and has_vocabulary:
        raise UserError(f"{run.path} has no {VOCABULARY}: restore it, or train again")
    learner = make_learner(experiment, spec, None, vocabulary)
    params = selected_params(run, learner.abstract_params(), len(learner.seeds))
    return FinishedModel(run, spec, experiment, vocabulary, learner, params, seeds, value)


def _settings_of(kind: type[Experiment], config: dict[str, Any]) -> Settings:
    """Return the settings of a run, with the paths of its last command."""
    settings = from_config(kind.settings_type, config["settings"])
    paths = last_paths(kind.settings_type, config)
    return replace(settings, **paths) if paths else settings


def one_of(found: FinishedModel, seed: int | None) -> LoadedModel:
    """Return the model of one seed, with the selected value of a sweep.

    Args:
        found: The model with all its seeds.
        seed: Seed to return; None for the first one.

    Raises:
        UserError: If the model was not trained with this seed.
    """
    if seed is not None and seed not in found.seeds:
        raise UserError(
            f"{found.run.path} has the seeds {', '.join(map(str, found.seeds))}: there is no seed {seed}"
        )
    member = found.members.start + (0 if seed is None else found.seeds.index(seed))
    everyones = found.params, found.learner.policy()
    params, policy = jax.tree.map(lambda leaf: jnp.asarray(leaf)[member], everyones)
    model = found.learner.model(params)
    model.eval()
    return LoadedModel(
        model,
        params,
        found.vocabulary,
        found.experiment.settings,
        policy,
        found.spec.of_one(member),
        found.learner.seeds[member],
        found.experiment,
        found.learner,
        found.run,
    )


def data_of(model: FinishedModel | LoadedModel, folder: str | None) -> Data:
    """Load the data that a run was trained on.

    Args:
        model: A model of the run.
        folder: Folder or file of the data. None for the last --data of the run if it still exists, else for
            the places where the experiment looks by default.

    Raises:
        UserError: If this is not the data of the run.
    """
    experiment, settings = model.experiment, model.experiment.settings
    place = dataclasses.replace(settings.data, data=folder or _folder_of(model.run))
    if place.data is None and getattr(place, "dataset", "") is None:
        # Without a name, which corpus is found depends on the files that exist now.
        place = dataclasses.replace(place, dataset=model.run.config()["dataset"]["name"])
    data = type(experiment)(dataclasses.replace(settings, data=place)).load_data()
    check_data(model, data)
    return data


def _folder_of(run: RunDir) -> str | None:
    """Return the last --data of a run's commands; None if there is none or it no longer exists."""
    told = [about["data"] for about in run.config().get("about", ()) if about.get("data")]
    return told[-1] if told and Path(told[-1]).exists() else None


def check_data(model: FinishedModel | LoadedModel, data: Data) -> None:
    """Raise a `UserError` if the model was trained on other data."""
    trained_on = model.run.config()["dataset"]
    if trained_on["fingerprint"] != model.experiment.fingerprint(data):
        raise UserError(
            f"{model.run.path} was trained on other data ({trained_on['name']}) than {data.source}: name its "
            "folder with --data"
        )


def stored_vocabulary(run: RunDir, kind: type[StoredVocabulary]) -> Any:
    """Return the vocabulary of a run folder, or None if the folder has none.

    Raises:
        UserError: If the file of the vocabulary cannot be read.
    """
    path = run.path / VOCABULARY
    if not path.exists():
        return None
    try:
        return kind.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or train again") from None
