"""Read and check `result.json` and the models of run folders, with one or several models."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.training.folder import RunDir, file_name


def rows_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row of each model from the contents of `result.json`.

    Older versions wrote the row of a single model in place of a list of rows.

    Args:
        result: Contents of `result.json`.

    Raises:
        UserError: An entry has the wrong type.
    """
    rows = result.get("rows", [result])
    if not isinstance(rows, list) or not rows or not all(isinstance(row, Mapping) for row in rows):
        raise _not_valid("rows has to be a list of objects")
    for row in rows:
        for name, (is_valid, expected) in _IN_ROW.items():
            if name in row and not is_valid(row[name]):
                raise _not_valid(f"{name} has to be {expected}")
    return [_with_new_names(row) for row in rows]


def finished_row(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run of one model, and check that it has all entries that a table of results needs.

    Args:
        result: Contents of `result.json`.

    Raises:
        UserError: An entry is missing or has the wrong type.
    """
    row = rows_of(result)[0]
    for name in _NEEDED:
        if name not in row:
            raise _not_valid(f"{name} is missing")
    return row


_NEEDED = ("model", "parameters", "seeds", "metrics", "wall_seconds")


def _not_valid(what: str) -> UserError:
    return UserError(
        f"result.json is not as this version writes it ({what}): restore it, or delete it and run the same "
        "command again"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _is_number_or_list(value: Any) -> bool:
    return _is_number(value) or _is_list_of(_is_number_or_list)(value)


def _are_metrics(value: Any) -> bool:
    """Return whether a value maps metrics to their mean, standard deviation and values of each seed."""
    return isinstance(value, Mapping) and all(
        isinstance(of, Mapping)
        and {"mean", "std", "per_seed"} <= of.keys()
        and all(_is_number_or_list(of[name]) for name in ("mean", "std"))
        and _is_list_of(_is_number_or_list)(of["per_seed"])
        and of["per_seed"]
        for of in value.values()
    )


def _is_value_of_sweep(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("value"), Mapping)
        and _are_metrics(value.get("metrics"))
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# The entries that a row may have: a check of the value, and its description in error messages.
_IN_ROW: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (lambda value: isinstance(value, str), "a name"),
    "parameters": (_is_whole, "a whole number"),
    "seeds": (lambda value: bool(value) and _is_list_of(_is_whole)(value), "a list of whole numbers"),
    "metrics": (_are_metrics, "an object of metrics"),
    "epochs": (_is_whole, "a whole number"),
    "epochs_asked": (_is_whole, "a whole number"),
    "wall_seconds": (_is_number, "a number"),
    "selected": (lambda value: isinstance(value, Mapping), "an object"),
    "sweep": (
        lambda value: bool(value) and _is_list_of(_is_value_of_sweep)(value),
        "a list of values and their metrics",
    ),
    "checkpoint": (
        lambda value: isinstance(value, Mapping) and {"step", "sha256"} <= value.keys(),
        "an object with a step and a SHA-256",
    ),
    "vocabulary_sha256": (lambda value: isinstance(value, str), "text"),
    "config_sha256": (lambda value: isinstance(value, str), "text"),
}


def _with_new_names(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the current names of metrics; older versions wrote `share_read`."""

    def renamed(metrics: Any) -> Any:
        if not isinstance(metrics, Mapping):
            return metrics
        return {name.replace("share_read", "read_fraction"): value for name, value in metrics.items()}

    changed = {"metrics": renamed(row["metrics"])} if "metrics" in row else {}
    if isinstance(row.get("sweep"), list):
        changed["sweep"] = [{**value, "metrics": renamed(value["metrics"])} for value in row["sweep"]]
    return {**row, **changed}


# The entries of a logged record that are not metrics.
NO_METRICS = ("step", "epoch", "examples", "tokens", "split")


def seeds_asked(config: Mapping[str, Any]) -> Sequence[int]:
    """Return the seeds that are trained together, in order, from a run's configuration."""
    asked = config["settings"]["run"]
    if isinstance(asked["seeds"], list):
        return asked["seeds"]
    return range(asked["seed"], asked["seed"] + asked["seeds"])


def runs_of_models(run_dir: str | Path) -> dict[str, RunDir]:
    """Return the run of each model of a run folder, by name, whether finished, unfinished or not started.

    Args:
        run_dir: Path of the run folder. It may be of one model or of several.

    Raises:
        UserError: `run_dir` is not a run folder.
    """
    top = RunDir.existing(run_dir)
    config = top.config()
    if "models" not in config:
        return {config.get("model", top.path.name): top}
    folders = {model: top.path / file_name(model) for model in config["models"]}
    return {model: RunDir(path, resumed=True) for model, path in folders.items()}


def progress_of(run: RunDir) -> str:
    """Return a short description of the progress of an unfinished run."""
    epochs = max((e for record in run.records() if _is_number(e := record.get("epoch"))), default=0)
    return f"not finished, after {epochs:.4g} epochs" if epochs else "not begun"
