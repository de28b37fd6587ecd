"""Finished runs of `experiments.ptb`, read back: settings, vocabulary, models with their parameters."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from dynskip_jax.data import Vocabulary
from dynskip_jax.errors import UserError
from dynskip_jax.models import LanguageModel
from dynskip_jax.runs.run_dir import RunDir
from dynskip_jax.runs.trained import finished_runs, selected_params
from dynskip_jax.tasks.language_modelling import LanguageModellingSettings, abstract_model
from experiments.ptb_settings import Settings

VOCABULARY = "vocabulary.json"


class FinishedModel(NamedTuple):
    """All that were trained together as one model of a run folder.

    Attributes:
        run: its folder.
        name: as on the command line, such as `dynamic:5`.
        settings: as resolved by the command that trained it.
        vocabulary: its words.
        seeds: the seeds that were trained.
        value: of a sweep the number of the selected value, else 0.
    """

    run: RunDir
    name: str
    settings: Settings
    vocabulary: Vocabulary
    seeds: list[int]
    value: int

    def task_settings(self) -> LanguageModellingSettings:
        """Returns what its task needs to know."""
        return self.settings.task_settings(self.name)

    def params(self) -> nnx.State:
        """Returns the selected parameters of all seeds, of each value of a sweep, as the task orders them."""
        like = nnx.state(abstract_model(self.vocabulary.tokens, self.task_settings()))
        return selected_params(self.run, like, len(self.settings.all_seeds(self.name)))

    @property
    def members(self) -> slice:
        """Those of all parameters that have the selected value, in the order of the seeds."""
        return slice(self.value * len(self.seeds), (self.value + 1) * len(self.seeds))


class Trained(NamedTuple):
    """One trained language model.

    Attributes:
        model: the language model with the parameters that were selected.
        vocabulary: its words.
        has_agent: whether its top layer has choices to show.
        policy_mask: of a sweep over K, which skips the selected value leaves to the agent.
    """

    model: LanguageModel
    vocabulary: Vocabulary
    has_agent: bool
    policy_mask: Any


def vocabulary_file(vocabulary: Vocabulary) -> str:
    """Returns the content of the file in which a run folder keeps its vocabulary."""
    return json.dumps(vocabulary.tokens, ensure_ascii=False) + "\n"


def finished_models(run_dir: str | Path) -> dict[str, FinishedModel]:
    """Reads what a run folder holds, but for the parameters.

    Raises:
        UserError: there is no finished run, or one of something else.
    """
    return {name: _finished_model(run, name) for name, run in finished_runs(run_dir).items()}


def _finished_model(run: RunDir, name: str) -> FinishedModel:
    config, result = run.config(), run.result()
    try:
        vocabulary = Vocabulary(tuple(json.loads((run.path / VOCABULARY).read_text(encoding="utf-8"))))
    except (OSError, ValueError):
        raise UserError(
            f"{run.path} lacks {VOCABULARY}: it was written by another experiment or version"
        ) from None
    names = {field.name for field in dataclasses.fields(Settings)}
    settings = Settings(**{key: _tuples(value) for key, value in config.items() if key in names})
    value = list(settings.values(name)).index(result.get("selected", {}))
    return FinishedModel(run, name, settings, vocabulary, result["seeds"], value)


def load(run_dir: str | Path, seed: int | None) -> dict[str, Trained]:
    """Reads one trained model of each in a run folder; `seed` says which, by default the first.

    Raises:
        UserError: there are none, or none of that seed.
    """
    return {name: _load(found, seed) for name, found in finished_models(run_dir).items()}


def _load(found: FinishedModel, seed: int | None) -> Trained:
    seeds = found.seeds
    if seed is not None and seed not in seeds:
        raise UserError(
            f"{found.run.path} has the seeds {', '.join(map(str, seeds))}: there is no --seed {seed}"
        )
    member = found.members.start + (0 if seed is None else seeds.index(seed))
    own = jax.tree.map(lambda leaf: leaf[member], found.params())
    selected = found.settings.values(found.name)[found.value]
    settings = dataclasses.replace(found.settings, mix=selected.get("mix", found.settings.mix))
    skip, mask = settings.skip(found.name), None
    if "max_skip" in selected:
        mask = jnp.arange(1, skip.max_skip + 1) <= selected["max_skip"]
    abstract = abstract_model(found.vocabulary.tokens, settings.task_settings(found.name))
    return Trained(nnx.merge(nnx.graphdef(abstract), own), found.vocabulary, skip.has_agent, mask)


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
