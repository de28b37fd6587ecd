"""What finished runs say: the rows of `result.json`, whether a folder holds one model or compares several."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.runs.run_dir import RunDir, file_name


def rows_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what `result.json` says of each model, one entry each.

    Folders written before there was a list of rows hold what is now the row of their one model.
    """
    rows = result.get("rows", [result])
    return [_with_new_names(row) for row in rows]


def _with_new_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the names that metrics have now: older versions wrote `share_read`."""

    def renamed(metrics: Any) -> Any:
        if not isinstance(metrics, Mapping):
            return metrics
        return {name.replace("share_read", "read_fraction"): value for name, value in metrics.items()}

    changed = {"metrics": renamed(row["metrics"])} if "metrics" in row else {}
    if isinstance(row.get("sweep"), list):
        changed["sweep"] = [{**value, "metrics": renamed(value["metrics"])} for value in row["sweep"]]
    return {**row, **changed}


def runs_of_models(run_dir: str | Path) -> dict[str, RunDir]:
    """Returns the run of each model that a folder was begun with, finished or not; some may not exist yet.

    Raises:
        UserError: it is not a run folder.
    """
    top = RunDir.existing(run_dir)
    config = top.config()
    if "models" not in config:
        return {config.get("model"): top}
    folders = {model: top.path / file_name(model) for model in config["models"]}
    return {model: RunDir(path, resumed=True) for model, path in folders.items()}


def progress_of(run: RunDir) -> str:
    """Says in a few words how far a run that is not finished has come."""
    epochs = max((record.get("epoch", 0) for record in run.records()), default=0)
    return f"not finished, after {epochs:.4g} epochs" if epochs else "not begun"
