"""Load finished runs: models with their parameters, vocabulary and settings, of any experiment."""

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.build import make_learner
from dynskip_jax.experiments.experiment import Data, Experiment, StoredVocabulary
from dynskip_jax.experiments.model_spec import ModelSpec, make_spec
from dynskip_jax.experiments.registry import experiment_of
from dynskip_jax.experiments.run import VOCABULARY
from dynskip_jax.experiments.settings import Settings, replace
from dynskip_jax.experiments.stored_settings import FORMAT, from_config, last_paths
from dynskip_jax.experiments.text_reading import TextReading
from dynskip_jax.runs.files import sha256_of
from dynskip_jax.runs.metrics import metrics_table
from dynskip_jax.runs.results import rows_of
from dynskip_jax.runs.run_dir import RunDir
from dynskip_jax.runs.trained import finished_runs, selected_params
from dynskip_jax.tasks import Learner

if TYPE_CHECKING:
    import pandas


class FinishedModel(NamedTuple):
    """All that were trained together as one model of a run folder.

    Attributes:
        run: its folder; None of a model that was trained without one.
        spec: the model's specification.
        experiment: with the settings it was trained with.
        vocabulary: what the run folder keeps of it; None where the experiment has none.
        learner: what trained it, without data.
        params: the selected parameters of all seeds, of each value of a sweep, as the learner orders them.
        seeds: the seeds that were trained.
        value: of a sweep the number of the selected value, else 0.
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
        """What the selected value of a sweep sets; nothing without a sweep."""
        return self.spec.values[self.value]

    def learner_with(self, data: Data) -> Learner:
        """Return what trained the model, with data to read."""
        return make_learner(self.experiment, self.spec, data, self.vocabulary)

    @property
    def members(self) -> slice:
        """Those of all parameters that have the selected value, in the order of the seeds."""
        return slice(self.value * len(self.seeds), (self.value + 1) * len(self.seeds))


class LoadedModel(NamedTuple):
    """One trained model.

    Attributes:
        model: with the parameters that were selected, as `.eval()` leaves it.
        params: these parameters.
        vocabulary: what its ids stand for; None where the experiment has none.
        settings: all that it was trained with.
        policy: how it chooses in evaluation, of a sweep with the selected λ and K.
        spec: the model's specification; its `name` is that of the command line, such as `dynamic:5`.
        seed: with which it was trained.
        experiment: which it belongs to.
        learner: what trained it, without data; its task reads batches.
        run: its folder.
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
        """What the run logged, and its final metrics: a row for each seed, epoch and split.

        Columns: `model`, `seed`, `epoch`, `split`, and one for each metric. `epoch` is empty in the rows of
        the final evaluation, which reads the parameters of the best epoch.
        """
        return metrics_table(self.run)

    def read(self, text: str) -> TextReading:
        """Read a text, and predict; see `TextReading`.

        Raises:
            UserError: the text cannot be read.
        """
        return self.experiment.read(self, text)

    def data(self, folder: str | None = None) -> Data:
        """Return the data that it was trained on; see `data_of`."""
        return data_of(self, folder)

    def learner_with(self, data: Data) -> Learner:
        """Return what trained the model, with data to read."""
        return make_learner(self.experiment, self.spec, data, self.vocabulary)

    @property
    def is_attention(self) -> bool:
        """Whether the last K states enter its top layer together, by weight."""
        skip = self.learner.skips[-1]
        return skip.has_agent and not skip.is_stochastic

    @property
    def shows_choices(self) -> bool:
        """Whether its top layer has choices to show: which state enters, or which words are read."""
        skip = self.learner.skips[-1]
        return skip.has_agent or not skip.writes_all


def load_run(
    run_dir: str | Path, model: str | None = None, seed: int | None = None, experiment: str | None = None
) -> LoadedModel:
    """Load one trained model of a finished run, from any directory.

    Example::

        loaded = load_run("runs/ptb/dynamic-5-20261101-101500")
        output = loaded.model(ids, policy=loaded.policy, rngs=jax.random.key(0))

    Args:
        run_dir: a finished run folder, of one model or of several compared.
        model: its name, as on the command line; by default the last one.
        seed: one of those that were trained; by default the first.
        experiment: the one that it has to be a run of; by default any.

    Raises:
        UserError: there is no such model, or no such seed, or another version or experiment wrote the folder.
    """
    found = finished_models(run_dir, experiment)
    name = model or list(found)[-1]
    if name not in found:
        raise UserError(f"{run_dir} has {', '.join(found)}: there is no --model {name}")
    return one_of(found[name], seed)


def load_all(
    run_dir: str | Path, seed: int | None = None, experiment: str | None = None
) -> dict[str, LoadedModel]:
    """Reads one trained model of each in a run folder; see `load_run`."""
    return {name: one_of(found, seed) for name, found in finished_models(run_dir, experiment).items()}


def finished_models(run_dir: str | Path, experiment: str | None = None) -> dict[str, FinishedModel]:
    """Reads all that a run folder holds.

    Args:
        run_dir: the folder.
        experiment: the one that it has to be a run of; by default any.

    Raises:
        UserError: there is no finished run, or one of another version or experiment.
    """
    return {name: _finished(run, name) for name, run in finished_runs(run_dir, experiment).items()}


def _finished(run: RunDir, name: str) -> FinishedModel:
    config, results = run.config(), run.result()
    if config.get("format") != FORMAT:
        raise UserError(
            f"{run.path} holds a run of format {config.get('format', 1)}, and this version reads format "
            f"{FORMAT}: train again, or read it with the version that wrote it"
        )
    kind = experiment_of(run)
    run.check_settings()
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
    """Return the settings of a run, with the paths that its command last named."""
    settings = from_config(kind.settings_type, config["settings"])
    paths = last_paths(kind.settings_type, config)
    return replace(settings, **paths) if paths else settings


def one_of(found: FinishedModel, seed: int | None) -> LoadedModel:
    """Returns the model of a seed, with the selected value of a sweep; by default of the first seed.

    Raises:
        UserError: there is none of that seed.
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
        found.spec,
        found.learner.seeds[member],
        found.experiment,
        found.learner,
        found.run,
    )


def data_of(model: FinishedModel | LoadedModel, folder: str | None) -> Data:
    """Reads the data that a run was trained on.

    Args:
        model: of the run.
        folder: where the data is; None: where the run was told, if that is still there, else where the
            experiment looks for it.

    Raises:
        UserError: it is other data.
    """
    experiment, settings = model.experiment, model.experiment.settings
    place = dataclasses.replace(settings.data, data=folder or _folder_of(model.run))
    if place.data is None and getattr(place, "dataset", "") is None:
        # Which corpus is found without its name depends on what else the machine has by now.
        place = dataclasses.replace(place, dataset=model.run.config()["dataset"]["name"])
    data = type(experiment)(dataclasses.replace(settings, data=place)).load_data()
    check_data(model, data)
    return data


def _folder_of(run: RunDir) -> str | None:
    """The folder that the run's --data last named, if it is there."""
    told = [about["data"] for about in run.config().get("about", ()) if about.get("data")]
    return told[-1] if told and Path(told[-1]).exists() else None


def check_data(model: FinishedModel | LoadedModel, data: Data) -> None:
    """Raises a `UserError` where a run was trained on other data."""
    trained_on = model.run.config()["dataset"]
    if trained_on["fingerprint"] != model.experiment.fingerprint(data):
        raise UserError(
            f"{model.run.path} was trained on other data ({trained_on['name']}) than {data.source}: name its "
            "folder with --data"
        )


def stored_vocabulary(run: RunDir, kind: type[StoredVocabulary]) -> Any:
    """Return the vocabulary that a run folder holds; None where it holds none.

    Raises:
        UserError: it cannot be read.
    """
    path = run.path / VOCABULARY
    if not path.exists():
        return None
    try:
        return kind.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or train again") from None
