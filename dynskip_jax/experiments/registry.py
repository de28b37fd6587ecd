"""Find experiments by name. Reading a run folder never imports code that the folder names."""

import importlib
from typing import TYPE_CHECKING

from dynskip_jax.errors import UserError

if TYPE_CHECKING:
    from dynskip_jax.experiments.experiment import Experiment
    from dynskip_jax.training.folder import RunDir

# Class of each experiment of this package, by the name of the experiment.
EXPERIMENTS = {
    "agreement": "Agreement",
    "classify": "Classify",
    "conll2003": "CoNLL2003",
    "imdb": "IMDB",
    "number_prediction": "NumberPrediction",
    "pos": "PartOfSpeech",
    "ptb": "PTB",
    "sick": "SICK",
    "sst": "SST",
}


def find_experiment(name: str) -> "type[Experiment]":
    """Return the class of an experiment: one of this package, or one that the program has imported.

    Raises:
        UserError: If there is no experiment of that name.
    """
    from dynskip_jax.experiments.experiment import Experiment

    if name in EXPERIMENTS:
        module = importlib.import_module(f"dynskip_jax.experiments.{name}")
        return getattr(module, EXPERIMENTS[name])
    for kind in _subclasses(Experiment):
        if getattr(kind, "name", None) == name:
            return kind
    raise UserError(
        f"there is no experiment {name[:100]!r} in this package, and reading a run imports no code that it "
        "names: import yours first (report: --code MODULE)"
    )


def experiment_of(run: "RunDir") -> "type[Experiment]":
    """Return the class of the experiment that a run folder belongs to.

    Raises:
        UserError: If its `config.json` names no experiment, or an unknown one.
    """
    name = run.config().get("experiment")
    if not isinstance(name, str):
        raise UserError(
            f"{run.path / 'config.json'} does not say which experiment wrote it: restore it, or train again"
        )
    try:
        return find_experiment(name)
    except UserError as error:
        raise UserError(f"{run.path}: {error}") from None


def _subclasses(kind: type) -> list[type]:
    found = kind.__subclasses__()
    return [*found, *(further for each in found for further in _subclasses(each))]
