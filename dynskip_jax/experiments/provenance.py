"""How a run folder is opened: what it has to agree with, and who began or resumed it, with which versions."""

import datetime
import importlib.metadata
import logging
import shlex
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dynskip_jax.experiments.experiment import Data, Experiment
from dynskip_jax.experiments.settings import absent_values, fill, path_fields
from dynskip_jax.experiments.stored_settings import FORMAT, upgraded_config
from dynskip_jax.runs.run_dir import RunDir

logger = logging.getLogger(__name__)

_MAY_GROW = ("settings.training.epochs", "models")  # in a run folder that is there
_OVER_ALL_EPOCHS = (
    "--entropy-coef-final is reached in the last epoch, so more epochs would change those that were trained"
)


def how_to_open(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return how a run folder is begun, resumed and compared with its configuration."""
    kind = type(experiment.settings)
    has_schedule = experiment.settings.agent.entropy_coef_final is not None
    return dict(
        about=_about(experiment, data),
        defaults={"settings": fill(kind, absent_values(kind)).to_config()},
        upgrade=partial(upgraded_config, kind),
        may_grow=_MAY_GROW,
        fixed={"settings.training.epochs": _OVER_ALL_EPOCHS} if has_schedule else {},
        named_by={"dataset.name": "dataset.fingerprint"},  # a folder of data may be renamed
        ignored=["code", *(f"settings.{group}.{name}" for group, name in path_fields(kind))],
    )


def run_config(experiment: Experiment, models: str | list[str], data: Data) -> dict[str, Any]:
    """Return what a run folder has to agree with, to be resumed.

    Args:
        experiment: with its settings.
        models: the name of the model, or the names of several that are compared.
        data: what is trained on.
    """
    return {
        "format": FORMAT,
        "experiment": experiment.name,
        ("model" if isinstance(models, str) else "models"): models,
        "dataset": {"name": data.name, "fingerprint": experiment.fingerprint(data)},
        "settings": experiment.settings.to_config(),
    }


def describe_dataset(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return what `result.json` says of the data."""
    return {
        "name": data.name,
        "sizes": dict(data.sizes),
        "fingerprint": experiment.fingerprint(data),
        "source": data.source,
    }


def warn_of_changes(run_dir: RunDir, about: Mapping[str, Any]) -> None:
    """Warn where a run is started with another commit or JAX than before: results may differ by rounding."""
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


def _about(experiment: Experiment, data: Data) -> dict[str, Any]:
    """Return how a run was begun or resumed: for people, and compared with nothing."""
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
    """Return the commit of this package's checkout, `-dirty` with changed or new source files; else None."""
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    others = ["git", "ls-files", "--others", "--exclude-standard", "--", "*.py"]
    how = dict(cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    try:
        commit = subprocess.run(describe, **how).stdout.strip()
        untracked = subprocess.run(others, **how).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return None
    return f"{commit}-dirty" if untracked and not commit.endswith("-dirty") else commit
