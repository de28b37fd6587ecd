"""Load finished runs: models of any experiment with their parameters, vocabulary and settings."""

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.analysis.reading import Reading, connections, distribution
from dynskip_jax.config.experiment import Dataset, Experiment, experiment_of, imported
from dynskip_jax.config.settings import Settings, replace
from dynskip_jax.config.stored import from_config
from dynskip_jax.errors import UserError
from dynskip_jax.runs.learner import VOCABULARY, make_learner
from dynskip_jax.runs.pieces import NotImported
from dynskip_jax.runs.spec import ModelSpec, make_spec
from dynskip_jax.storage.files import read_json
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.storage.results import FinishedModel, finished_runs
from dynskip_jax.tasks.learner import Learner, padded
from dynskip_jax.training.resume import selected_params
from dynskip_jax.training.step import evaluation_keys

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A trained model: one seed, with the selected value of a sweep."""

    run: RunDir | None
    experiment: Experiment
    settings: Settings
    vocabulary: Any
    spec: ModelSpec  # of all seeds and sweep values that were trained together
    learner: Learner  # of all; of a loaded run, without data
    all_params: nnx.State  # of all: the selected parameters, in the learner's order
    member: int = 0  # index of this model among all

    @property
    def name(self) -> str:
        """The model's name, as on the command line, such as `dynamic:5`."""
        return self.spec.name

    @property
    def seed(self) -> int:
        """The seed of the model."""
        return self.learner.seeds[self.member]

    @property
    def keys(self) -> jax.Array:
        """Evaluation keys of all models that were trained together."""
        return evaluation_keys(self.spec.all_seeds)

    @property
    def note(self) -> str:
        """Line below pictures of the model's choices on dev."""
        return f"dev, greedy, seed {self.seed}"

    @functools.cached_property
    def params(self) -> nnx.State:
        """The parameters of the best epoch on dev."""
        return self._own(self.all_params)

    @functools.cached_property
    def policy(self) -> F.Policy:
        """How agents choose in evaluation, with the selected λ and K of a sweep."""
        return self._own(self.learner.policy())

    def _own(self, together: Any) -> Any:
        """Return this model's part of arrays; they are kept, so they must not be traced."""
        with jax.ensure_compile_time_eval():
            return jax.tree.map(lambda leaf: jnp.asarray(leaf)[self.member], together)

    @functools.cached_property
    def model(self) -> nnx.Module:
        """The Flax module with the parameters, in evaluation mode."""
        with jax.ensure_compile_time_eval():
            model = self.learner.model(self.params)
        model.eval()
        return model

    @property
    def seeds(self) -> slice:
        """Slice of all that were trained together: the seeds with the selected value."""
        count = len(self.spec.seeds)
        return slice(self.member // count * count, (self.member // count + 1) * count)

    def of_seed(self, seed: int | None) -> "Trained":
        """Return the model of another seed; None for the first one."""
        own = self.spec.seeds
        if seed is not None and seed not in own:
            known = ", ".join(map(str, own))
            raise UserError(f"{self.run.path} has the seeds {known}: there is no seed {seed}")
        member = self.seeds.start + (0 if seed is None else own.index(seed))
        return dataclasses.replace(self, member=member)

    def of_value(self, number: int, data: Dataset) -> "Trained":
        """Return the models of one value of a sweep, as if others had not been trained."""
        count = len(self.spec.seeds)
        of_all = slice(number * count, (number + 1) * count)
        spec = self.spec.of_value(number)
        learner = make_learner(self.experiment, self.settings, spec, data, self.vocabulary)
        params = jax.tree.map(lambda leaf: leaf[of_all], self.all_params)
        return dataclasses.replace(self, spec=spec, learner=learner, all_params=params)

    # --- Data ---

    def data(self, folder: str | Path | None = None) -> Dataset:
        """Return the data that the run was trained on, and fail if it has changed.

        By default `folder` is the last --data of the run if it still exists, and otherwise the
        places where the experiment looks for data. The run folder may be a stranger's: the paths
        that it names are logged before they are read.
        """
        trained_on = self.run.config()["dataset"]
        of_data = vars(self.settings.data).items()
        named = {name: path for name, path in of_data if isinstance(path, Path)}
        last = named.get("data")
        if folder is None and last is not None and os.path.exists(last):
            folder = last
        else:
            named.pop("data", None)
        for name, path in named.items():
            logger.info("%s: reading %s, which %s names", name, path, self.run.path)
        changed: dict[str, Any] = {"data": None if folder is None else Path(folder)}
        if folder is None and getattr(self.settings.data, "dataset", "") is None:
            # Without a name, which corpus is found depends on the files that exist now.
            changed["dataset"] = trained_on["name"]
        data = self.experiment.task_class.load(replace(self.settings, **changed))
        if trained_on["fingerprint"] != data.fingerprint:
            raise UserError(
                f"{self.run.path} was trained on other data ({trained_on['name']}) than "
                f"{data.source}: name its folder with --data"
            )
        return data

    def learner_with(self, data: Dataset) -> Learner:
        """Return a learner that reads `data`, of all models that were trained together."""
        return make_learner(self.experiment, self.settings, self.spec, data, self.vocabulary)

    # --- Texts ---

    def split(self, text: str) -> list[str]:
        """Return the words of a line of text, as they were found in train."""
        return self.learner.task.split(text)

    def encode(self, text: str) -> tuple[Any, list[str]]:
        """Return the ids of a line of text, arrays of shape (time, ...), and their words."""
        return self.learner.task.encode(text)

    def read(self, text: str) -> Reading:
        """Read a text, and return the model's prediction and choices."""
        return imported(self.experiment.read)(self, text)

    def choices(self, decisions: Any, observations: Any, count: int) -> dict[str, Any]:
        """Return the fields of `Reading` with the top layer's choices at `count` words.

        `decisions` of each layer and direction have leaves (time,); `observations` are the agents'
        inputs.
        """
        fields: dict[str, Any] = {"skips": [0] * count}
        names = {"forward": ("skips", "weights"), "backward": ("backward", "backward_weights")}
        for direction, layer in self.learner.top_layers.items():
            skip = self.learner.skips[layer]
            reverse = self.learner.reverse[layer]
            fields["is_attention"] = skip.has_agent and not skip.is_stochastic
            chosen = connections(decisions[layer], reverse=reverse).tolist()
            # A fixed k is no choice. The k of a skip of one's own may be one, without an agent.
            if skip.has_agent or not skip.writes_all or len(set(chosen)) > 1:
                fields[names[direction][0]] = chosen
            if observations is not None:
                weights = self._distribution(layer, observations[layer], reverse)
                if weights is not None:
                    fields[names[direction][1]] = weights
        return fields

    def _distribution(self, layer: int, observation: Any, reverse: bool) -> np.ndarray | None:
        """Return `distribution`, computed at a padded length: each length would be a program."""
        order = -1 if reverse else 1
        count = len(observation[0])
        ordered = [np.asarray(leaf)[::order] for leaf in observation]
        cell = self.model.stack.cells[layer]
        weights = distribution(cell, tuple(map(padded, ordered)), self.policy)
        return None if weights is None else np.asarray(weights)[:count][::order]


def load_run(
    run_dir: str | Path,
    model: str | None = None,
    seed: int | None = None,
    command: str | None = None,
) -> Trained:
    """Load one trained model of a finished run.

    Example::

        trained = load_run("runs/ptb/dynamic-5-20261101-101500")
        output = trained.model(ids, policy=trained.policy, rngs=jax.random.key(0))

    Args:
        run_dir: Finished run folder, of one model or of several compared models.
        model: Name of the model, as on the command line; by default the last one of the folder.
        seed: Seed of the model; by default the first one that was trained.
        command: Command that the run's experiment must have; by default none.
    """
    runs = finished_runs(run_dir)
    name = model or list(runs)[-1]
    return _load_named(runs, run_dir, name, command).of_seed(seed)


def load_models(
    run_dir: str | Path,
    model: str | None = None,
    seed: int | None = None,
    command: str | None = None,
) -> dict[str, Trained]:
    """Load the finished models of a run folder, or the named one, by name, as `load_run` does."""
    runs = finished_runs(run_dir)
    names = runs if model is None else [model]
    return {name: _load_named(runs, run_dir, name, command).of_seed(seed) for name in names}


def _load_named(
    runs: Mapping[str, FinishedModel], run_dir: str | Path, name: str, command: str | None
) -> Trained:
    """Load a model of a folder, with its first seed, if the folder and the command fit."""
    if name not in runs:
        raise UserError(f"{run_dir} has {', '.join(runs)}: there is no --model {name}")
    finished = runs[name]
    kind = experiment_of(finished.config, finished.run.path)
    if command is not None and command not in kind.commands:
        raise UserError(
            f"{run_dir} is a run of {kind.name}, which has no command {command}: use another"
        )
    return _load(finished, kind, name)


def _load(finished: FinishedModel, experiment: Experiment, name: str) -> Trained:
    run = finished.run
    row = finished.row
    try:
        settings = from_config(experiment.settings, finished.config)
        spec = make_spec(name, settings)
        value = list(spec.values).index(row.get("selected", {}))
        if spec.all_seeds != tuple(row["seeds"]) * len(spec.values):
            raise ValueError("its seeds are not those of the settings")
    except NotImported:
        raise
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UserError(
            f"{run.path} holds a config.json or result.json that this version does not understand "
            f"({error}): restore it, or train again"
        ) from error
    vocabulary = _vocabulary(run)
    learner = make_learner(experiment, settings, spec, None, vocabulary)
    params = selected_params(run, learner.abstract_params(), len(learner.seeds))
    return Trained(
        run, experiment, settings, vocabulary, spec, learner, params, value * len(spec.seeds)
    )


def _vocabulary(run: RunDir) -> Any:
    """Return a run's vocabulary; None if it has none."""
    if VOCABULARY not in run.files:
        return None
    from dynskip_jax.data.vocabularies import Vocabulary  # only tasks of words have one

    return Vocabulary.from_json(read_json(run.path / VOCABULARY))
