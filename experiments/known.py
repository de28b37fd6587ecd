"""Which experiment a run folder belongs to: reading a folder never imports the code that it names."""

import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING

import experiments
from dynskip_jax.errors import UserError
from dynskip_jax.runs.run_dir import RunDir

if TYPE_CHECKING:
    from experiments.experiment import Experiment


def experiment_of(run: RunDir) -> "type[Experiment]":
    """Return the class of the experiment that a run folder belongs to.

    It is one of this package, or one of a module that the program has imported itself, as a program with a
    task of its own does.

    Args:
        run: the folder; its `config.json` names the class.

    Raises:
        UserError: the file names no experiment, or one that is neither.
    """
    from experiments.experiment import Experiment

    code = run.config().get("code")
    if not isinstance(code, str) or code.count(":") != 1:
        raise UserError(
            f"{run.path / 'config.json'} does not say which experiment wrote it: restore it, or train again"
        )
    module, name = code.split(":")
    if module in {f"experiments.{found.name}" for found in pkgutil.iter_modules(experiments.__path__)}:
        importlib.import_module(module)
    kind = getattr(sys.modules.get(module), name, None)
    if not (isinstance(kind, type) and issubclass(kind, Experiment)):
        raise UserError(
            f"{run.path / 'config.json'} is of the experiment {code[:100]!r}, not one of this package, and "
            "reading a run imports no code that it names: import yours first (report: --code MODULE)"
        )
    return kind
