"""Read and check the results, the models and the metrics of run folders."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dynskip_jax.errors import UserError, needs
from dynskip_jax.training.files import check_regular, is_of
from dynskip_jax.training.folder import RunDir, file_name, is_model_name

if TYPE_CHECKING:
    import pandas

# The entries of a logged record that are not metrics.
_NO_METRICS = ("step", "epoch", "examples", "tokens", "split")
_NONE = type(None)
_NUMBER = (int, float)
_MOST_SECONDS = 10**10
_NUMBERS = (*_NUMBER, [_NUMBER])  # of several k
_METRICS = {...: {"mean": _NUMBERS, "std": _NUMBERS, "per_seed": [_NUMBERS]}}
_ROW = {
    "model": str,
    "parameters": int,
    "seeds": [int],
    "metrics": _METRICS,
    "wall_seconds": _NUMBER,
    "epochs_asked": (int, _NONE),
    "selected": (dict, _NONE),
    "sweep": ([{"value": dict, "metrics": _METRICS}], _NONE),
    "checkpoint": {"step": int, "sha256": str},
    "vocabulary_sha256": (str, _NONE),
}


class FinishedModel(NamedTuple):
    """A finished run of one model, as it was read and checked."""

    run: RunDir
    config: dict[str, Any]  # of `config.json`
    row: dict[str, Any]  # of `result.json`


def row_of(run: RunDir) -> dict[str, Any] | None:
    """Return the row in `result.json` of a run of one model, or None if it is not finished."""
    if (result := run.result()) is None:
        return None
    rows = result.get("rows")
    row = {}
    if is_of([dict], rows) and rows:
        row = rows[0]
    wrong = [name for name, form in _ROW.items() if not is_of(form, row.get(name))]
    is_possible = not wrong and row["seeds"] and 0 <= row["wall_seconds"] < _MOST_SECONDS
    if not is_possible or not is_model_name(row["model"]):
        names = ", ".join(wrong) or "model, seeds, wall_seconds"
        raise UserError(
            f"{run.path / 'result.json'} is not as this version writes it ({names}): "
            "restore it, or delete it and run the same command again"
        )
    return row


def check_checkpoint(run: RunDir, found: Mapping[str, Any] | None) -> None:
    """Raise a `UserError` if the newest checkpoint is not the one that `result.json` names.

    `found` is the `Checkpoints.fingerprint` of the newest one.
    """
    row = row_of(run)
    if row is not None and row["checkpoint"] != found:
        state = "it has none"
        if found is not None:
            state = f"that of step {found['step']} is another or damaged"
        step = row["checkpoint"]["step"]
        raise UserError(
            f"{run.path} lacks the checkpoint of step {step} that result.json names ({state}): "
            "restore it, copy the whole folder again, or choose another --run-dir"
        )


def runs_of_models(run_dir: str | Path) -> dict[str, RunDir]:
    """Return each model's run in a run folder by name: finished, unfinished or not started."""
    top = RunDir(Path(run_dir))
    check_regular(top.path)
    config = top.config()
    if "models" not in config:
        return {config.get("model", top.path.name): top}
    return {model: RunDir(top.path / file_name(model)) for model in config["models"]}


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
    epochs = max(
        (e for record in run.records() if is_of(_NUMBER, e := record.get("epoch"))), default=0
    )
    if not epochs:
        return "not begun"
    return f"not finished, after {epochs:.4g} epochs"


def metrics_table(run: RunDir) -> "pandas.DataFrame":
    """Return the logged and the final metrics of a finished run of one model.

    The columns are `model`, `seed`, `epoch`, `split`, and one for each metric that is a number.
    `epoch` is NaN in the rows of the final evaluation. With a sweep, all rows are those of the
    selected value.
    """
    with needs("experiments"):
        import pandas
    final = row_of(run)
    values = [of["value"] for of in final.get("sweep", ())]
    # A logged list has the seeds of the sweep's first value, then those of the second, and so on.
    first = len(final["seeds"]) * values.index(final["selected"]) if values else 0
    metrics = [
        (metric, record[metric][first:], record.get("epoch"))
        for record in run.records()
        for metric in record
        if metric not in _NO_METRICS and isinstance(record[metric], list)
    ]
    metrics += [(metric, of["per_seed"], None) for metric, of in final["metrics"].items()]
    rows: dict[tuple, dict[str, Any]] = {}
    for metric, numbers, epoch in metrics:
        split, _, name = metric.partition("_")
        if split not in ("train", "dev", "test"):
            split = "train"
            name = metric
        for seed, value in zip(final["seeds"], numbers, strict=False):
            if not isinstance(value, list):  # one number for each k
                row = {"model": final["model"], "seed": seed, "epoch": epoch, "split": split}
                rows.setdefault((seed, epoch, split), row)[name] = value
    return pandas.DataFrame(rows.values()).astype({"epoch": float})  # None becomes NaN
