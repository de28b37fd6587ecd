"""Describe runs for their folders: the configuration to match when resuming, the data, and the versions."""

import datetime
import importlib.metadata
import logging
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.experiment import Data, Experiment
from dynskip_jax.experiments.settings import path_fields
from dynskip_jax.training.folder import RunDir

logger = logging.getLogger(__name__)


def how_to_open(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return the options of `RunDir.open` for starting or resuming a run of an experiment."""
    kind = type(experiment.settings)
    # With --entropy-coef-final, which the last epoch reaches, more epochs would change those already trained.
    has_schedule = experiment.settings.agent.entropy_coef_final is not None
    paths = [f"settings.{group}.{name}" for group, name in path_fields(kind)]
    return dict(
        about=_about(experiment, data),
        may_grow=["models"] if has_schedule else ["models", "settings.training.epochs"],
        ignored=["code", "dataset.name", *paths],  # a folder of data may be renamed
    )


def run_config(experiment: Experiment, models: str | list[str], data: Data) -> dict[str, Any]:
    """Return the configuration that a run folder must match to be resumed.

    Args:
        experiment: The experiment, with its settings.
        models: Name of the model, or a list of the names of compared models.
        data: Training data.
    """
    return {
        "experiment": experiment.name,
        ("model" if isinstance(models, str) else "models"): models,
        "dataset": {"name": data.name, "fingerprint": experiment.fingerprint(data)},
        "settings": experiment.settings.to_config(),
    }


def describe_dataset(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return the description of the data for `result.json`."""
    return {
        "name": data.name,
        "sizes": dict(data.sizes),
        "fingerprint": experiment.fingerprint(data),
        "source": data.source,
    }


def warn_of_changes(run_dir: RunDir, about: Mapping[str, Any]) -> None:
    """Log a warning if a run is resumed with another commit or JAX version, which may change rounding."""
    entries = run_dir.config().get("about", [])
    if not run_dir.resumed or not entries:
        return
    before = entries[-1]
    for name in ("commit", "jax"):
        if before.get(name) not in (None, about[name]):
            logger.warning(
                "this run was last trained with %s %s, now it is %s: results may not be the same bit for bit",
                *(name, before[name], about[name]),
            )


def check_start(run_dir: RunDir, about: Mapping[str, Any]) -> None:
    """Check that a resumed run is given the parameters from which it began; see `--start-from`.

    Raises:
        UserError: If they are others.
    """
    entries = run_dir.config().get("about", [])
    if not run_dir.resumed or not entries:
        return
    began, now = ((entry.get("paths") or {}).get("start_from") for entry in (entries[0], about))
    if began != now:
        had = f"with --start-from {began}" if began else "without --start-from"
        raise UserError(f"the run in {run_dir.path} began {had}: give the same, or choose another --run-dir")


def _about(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return the command, the versions, the date and the paths of a run's start, which are never compared."""
    settings = experiment.settings
    paths = {
        name: str(Path(path).expanduser().absolute())
        for group, name in path_fields(type(settings))
        if group != "run" and isinstance(path := getattr(getattr(settings, group), name), str)
    }
    return {
        "command": shlex.join([Path(sys.executable).name, *getattr(sys, "orig_argv", sys.argv)[1:]]),
        "commit": _commit(),
        "jax": importlib.metadata.version("jax"),
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "source": data.source,
        "data": paths.pop("data", None),
        "paths": paths,
    }


def _commit() -> str | None:
    """Return the commit of this package's checkout, or None without git or a checkout.

    The suffix `-dirty` marks changed files or new Python files.
    """
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    others = ["git", "ls-files", "--others", "--exclude-standard", "--", "*.py"]
    how = dict(cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    try:
        commit = subprocess.run(describe, **how).stdout.strip()
        untracked = subprocess.run(others, **how).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return None
    return f"{commit}-dirty" if untracked and not commit.endswith("-dirty") else commit
