"""Read and check `result.json` and the models of run folders, with one or several models."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError
from dynskip_jax.training.folder import RunDir, file_name

# The entries of a logged record that are not metrics.
NO_METRICS = ("step", "epoch", "examples", "tokens", "split")
_MOST_SEEDS = 10_000
_NEEDED = ("model", "parameters", "seeds", "metrics", "wall_seconds")  # by a table of results


def rows_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row of each model from the contents of `result.json`, and check the types of its entries."""
    rows = result.get("rows")
    if not _is_list_of(lambda row: isinstance(row, Mapping))(rows) or not rows:
        raise _not_valid("rows has to be a list of objects")
    for row in rows:
        for name, (is_valid, expected) in _IN_ROW.items():
            if name in row and not is_valid(row[name]):
                raise _not_valid(f"{name} has to be {expected}")
    return rows


def finished_row(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run of one model, and check that it has all that a table of results needs."""
    row = rows_of(result)[0]
    for name in _NEEDED:
        if name not in row:
            raise _not_valid(f"{name} is missing")
    return row


def _not_valid(what: str) -> UserError:
    return UserError(
        f"result.json is not as this version writes it ({what}): restore it, or delete it and run the same "
        "command again"
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int) and abs(value) < 2**63


def _is_list_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(is_valid, value))


def _has(**checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Return a check of an object that has valid entries of these names, and may have others."""
    return lambda value: (
        isinstance(value, Mapping) and all(valid(value.get(name)) for name, valid in checks.items())
    )


def _is_number_or_list(value: Any) -> bool:
    return _is_number(value) or _is_list_of(_is_number_or_list)(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_model(value: Any) -> bool:
    """Return whether a value is the name of a model, whose folder lies in the run's."""
    return _is_text(value) and len(value) < 200 and file_name(value).strip(".") != ""


def _are_seeds(value: Any) -> bool:
    return _is_list_of(_is_whole)(value) and 0 < len(value) <= _MOST_SEEDS


def _are_metrics(value: Any) -> bool:
    """Return whether a value maps metrics to their mean, standard deviation and values of each seed."""
    per_seed = lambda each: bool(each) and _is_list_of(_is_number_or_list)(each)  # noqa: E731
    of_metric = _has(mean=_is_number_or_list, std=_is_number_or_list, per_seed=per_seed)
    return isinstance(value, Mapping) and all(map(of_metric, value.values()))


def _is_sweep(value: Any) -> bool:
    return bool(value) and _is_list_of(_has(value=_has(), metrics=_are_metrics))(value)


# The entries that a row may have: a check of the value, and its description in error messages.
_IN_ROW: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_is_model, "a name"),
    "parameters": (_is_whole, "a whole number"),
    "seeds": (_are_seeds, f"a list of at most {_MOST_SEEDS} whole numbers"),
    "metrics": (_are_metrics, "an object of metrics"),
    "epochs": (_is_whole, "a whole number"),
    "epochs_asked": (_is_whole, "a whole number"),
    "wall_seconds": (_is_number, "a number"),
    "selected": (_has(), "an object"),
    "sweep": (_is_sweep, "a list of values and their metrics"),
    "checkpoint": (_has(step=_is_whole, sha256=_is_text), "an object with a step and a SHA-256"),
    "vocabulary_sha256": (_is_text, "text"),
}


def seeds_asked(config: Mapping[str, Any]) -> Sequence[int]:
    """Return the seeds that are trained together, in order, from a run's configuration."""
    asked = config["settings"]["run"]
    seeds = asked["seeds"]
    if _is_whole(seeds) and _is_whole(asked.get("seed")) and 0 < seeds <= _MOST_SEEDS:
        return range(asked["seed"], asked["seed"] + seeds)
    if not _are_seeds(seeds):
        raise UserError(f"the seeds in config.json have to be at most {_MOST_SEEDS} whole numbers")
    return seeds


def runs_of_models(run_dir: str | Path) -> dict[str, RunDir]:
    """Return the run of each model of a run folder, by name, whether finished, unfinished or not started.

    The folder may be of one model or of several.
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
