"""Read the results, the models and the metrics of run folders."""

import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dynskip_jax.errors import UserError
from dynskip_jax.storage.folder import RunDir, file_name
from dynskip_jax.storage.manifest import NAME


class FinishedModel(NamedTuple):
    """A finished run of one model, as it was read and checked."""

    run: RunDir
    config: dict[str, Any]  # of `config.json`
    row: dict[str, Any]  # of `result.json`


def row_of(run: RunDir) -> dict[str, Any] | None:
    """Return the row in `result.json` of a run of one model, or None if it is not finished."""
    if (result := run.result()) is None:
        return None
    return result["rows"][0]


def runs_of_models(run_dir: str | Path) -> dict[str, RunDir]:
    """Return each model's run in a run folder by name: finished, unfinished or not started."""
    top = RunDir.read(run_dir)
    config = top.config()
    if "models" not in config:
        return {config.get("model", top.path.name): top}
    runs = {}
    for model in config["models"]:
        folder = top.path / file_name(model)
        is_started = top.is_finished or (folder / NAME).exists()
        runs[model] = RunDir.read(folder) if is_started else RunDir(folder)
    return runs


def finished_runs(run_dir: str | Path, experiment: str | None = None) -> dict[str, FinishedModel]:
    """Read the finished runs of a folder by model, at least one, and all of one experiment."""
    found = {}
    for model, run in runs_of_models(run_dir).items():
        row = row_of(run)
        if row is not None:
            found[model] = FinishedModel(run, run.config(), row)
    if not found:
        remedy = f"run its command again, with --run-dir {run_dir}"
        raise UserError(f"the run in {run_dir} has not finished: {remedy}")
    for finished in found.values():
        theirs = finished.config.get("experiment", experiment)
        if experiment not in (None, theirs):
            problem = f"holds a run of {theirs}, not of {experiment}"
            raise UserError(f"{finished.run.path} {problem}: python -m experiments.{theirs}")
    return found


def learnt_rates(run_dir: Path, experiment: str) -> tuple[float, ...]:
    """Return how often a finished run's agents chose each k on dev, (K,).

    It is a mean over seeds and layers.
    """
    found = {}
    for model, finished in finished_runs(run_dir, experiment).items():
        metrics = finished.row["metrics"]
        names = [name for name in metrics if re.fullmatch(r"dev_agent_share_\d+", name)]
        shares = [metrics[name]["mean"] for name in names]
        if shares:
            found[model] = np.mean(shares, axis=0)
    if len(found) != 1:
        having = f"agents in {', '.join(found)}" if found else "no agent"
        raise UserError(
            f"--control-of takes a run of one model with an agent; {run_dir} has {having}"
        )
    return tuple(round(float(rate), 6) for rate in next(iter(found.values())))


def progress_of(run: RunDir) -> str:
    """Return a short description of the progress of an unfinished run."""
    epochs = max((record.get("epoch") or 0 for record in run.records()), default=0)
    if not epochs:
        return "not begun"
    return f"not finished, after {epochs:.4g} epochs"
