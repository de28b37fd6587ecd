"""Prepare the results of a run for people: tables with mean and spread over seeds, and curves."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dynskip_jax.config.experiment import Dataset, Experiment
from dynskip_jax.terminal.console import print_table, say

# Symbols of swept settings in tables and plots.
_SIGNS = dict(mix="λ", learning_rate="rate")

_CHOICES = dict(
    greedy="greedy: the most probable state", sample="sampled", train="as at the end of training"
)

# Texts that the name of a row adds for the settings that `spec.variant_of` returns.
_VARIANT = dict(transition="{}", depth_skip="{}", agent="by {}", stride="stride {}")
_VARIANT |= dict(top="top {}", copy="copies: {}", control="control: {}")


def print_results(
    experiment: Experiment,
    data: Dataset,
    results: Sequence[dict[str, Any]],
    published: tuple[Sequence[tuple[str, Mapping[str, float]]], str],
    mode: str,
) -> None:
    """Print a table with the rows of a run, and `published` ones with a note below them.

    `mode` is how agents chose for the columns that name no mode.
    """
    beside, note = published
    measured = [*(result["metrics"] for result in results), *dict(beside).values()]
    columns = shown_columns(experiment.columns, measured)
    rows = []
    for result in results:
        time = str(datetime.timedelta(seconds=round(result["wall_seconds"])))
        shared = [f"{result['parameters']:,}", time]  # the time of all values of a sweep together
        for row in result.get("sweep") or [{"value": {}, "metrics": result["metrics"]}]:
            cells = [
                cell(row["metrics"].get(metric), form) for metric, (_, form) in columns.items()
            ]
            rows.append([label_of(row_name(result), row["value"]), *cells, *shared])
            shared = []
    others = []
    for name, values in beside:
        forms = ((values.get(metric), form) for metric, (_, form) in columns.items())
        others.append(
            [name, *("" if value is None else f"{value:{form}}" for value, form in forms)]
        )
    headings = ["model", *(heading for heading, _ in columns.values()), "parameters", "time"]
    print_table(f"{experiment.name} on {data.name}", headings, rows, others)
    if any(metric.endswith(("_greedy", "_sampled")) for metric in columns):
        say(f"where a column names no mode, choices are {_CHOICES[mode]}")
    if note:
        say(note)


def shown_columns(
    columns: Mapping[str, tuple[str, str]], rows: Sequence[Mapping[str, Any]]
) -> dict[str, tuple[str, str]]:
    """Return the columns with a metric of any row.

    A column of greedy or sampled choices is left out if all rows have its numbers without a suffix,
    too: they are of the mode in which a run was evaluated. Older versions sampled the choices of
    untrained agents.
    """

    def is_new(metric: str) -> bool:
        usual = metric.removesuffix("_greedy").removesuffix("_sampled")
        return any(
            metric in row and (metric == usual or row[metric] != row.get(usual)) for row in rows
        )

    return {metric: column for metric, column in columns.items() if is_new(metric)}


def cell(values: Mapping[str, Any] | None, form: str) -> str:
    """Return a metric's text: its mean, and its spread over several seeds; empty for None."""
    if values is None:
        return ""
    if len(values["per_seed"]) == 1:
        return f"{values['mean']:{form}}"
    return f"{values['mean']:{form}} ± {values['std']:{form}}"


def summary(values: np.ndarray) -> dict[str, Any]:
    """Return mean, standard deviation (n - 1; 0 for one seed) and values, (seeds, ...)."""
    values = np.asarray(values, np.float64)
    spread = np.zeros(values.shape[1:])
    if len(values) > 1:
        spread = values.std(axis=0, ddof=1)
    return {
        "mean": values.mean(axis=0).tolist(),
        "std": spread.tolist(),
        "per_seed": values.tolist(),
    }


def label_of(model: str, value: Mapping[str, Any]) -> str:
    """Return the name of a row or a curve, as in `dynamic:10, λ=0.5`."""
    return ", ".join([model, *(f"{_SIGNS[name]}={setting}" for name, setting in value.items())])


def curves_of(
    model: str, records: Sequence[Mapping[str, Any]], values: Sequence[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Return the records of whole epochs for each value of a sweep, by the name of its curve."""

    def part(number: int, entry: Any) -> Any:
        if not isinstance(entry, list):
            return entry
        size = len(entry) // len(values)
        return entry[number * size : (number + 1) * size]

    # Records within an epoch are means over a part of it.
    whole = [record for record in records if float(record.get("epoch", 0.5)).is_integer()]
    return {
        label_of(model, value): [{name: part(i, entry) for name, entry in r.items()} for r in whole]
        for i, value in enumerate(values)
    }


def row_name(row: Mapping[str, Any]) -> str:
    """Return the name of a row: the model's name, and the settings that distinguish it from others.

    A layer without a skip over time is named after its transition only.
    """
    more = {name: text.format(row[name]) for name, text in _VARIANT.items() if name in row}
    model = row["model"]
    if model in ("previous", "lstm"):
        model = more.pop("transition", "lstm")
    return ", ".join([model, *more.values()])
