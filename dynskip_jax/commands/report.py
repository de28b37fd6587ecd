"""Runs side by side: mean, standard deviation and confidence interval over seeds, and paired differences."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dynskip_jax.analysis.statistics import paired_difference, t_interval
from dynskip_jax.config import listed
from dynskip_jax.console import print_table, say
from dynskip_jax.data.messages import printable
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import experiment_of
from dynskip_jax.results import label_of, row_name
from dynskip_jax.training.files import check_new, write_atomically
from dynskip_jax.training.results import progress_of, row_of, runs_of_models

if TYPE_CHECKING:
    import pandas

_MODES = ("_greedy", "_sampled", "_averaged")  # suffixes of metrics that are left out by default
_INTERVAL = ("mean", "sd", "low", "high")


def report(
    folders: tuple[Path, ...],
    metrics: tuple[str, ...] = (),
    baseline: str | None = None,
    csv: Path | None = None,
    code: str | None = None,
) -> None:
    """Show runs side by side, of one model or of several compared: `report DIR DIR --csv table.csv`.

    Intervals are those of Student's t over seeds: 95 times of 100 they hold the mean of all seeds there could
    be, if seeds are normally distributed. They say nothing of other test sets. Differences are taken seed by
    seed, to the first row of the same data, or to --baseline.

    Args:
        folders: Run folders.
        metrics: Metrics as in result.json, separated by commas; by default the main ones.
        baseline: Row that others are compared with; by default the first on the same data.
        csv: Write the table to this CSV file, one line per row and metric.
        code: Import this module first: the one with your own task.
    """
    if not folders:
        raise UserError("name run folders: report DIR DIR")
    if csv is not None:
        check_new(csv)
    found = read_folders(folders)
    for note in found.notes:
        say(note)
    table = compare_rows(found, metrics, baseline)
    for (metric, name, fingerprint), own in table.groupby(["metric", "dataset", "fingerprint"], sort=False):
        heading, form = found.columns.get(metric, (metric.replace("_", " "), ".4g"))
        several = table.loc[table["dataset"] == name, "fingerprint"].nunique() > 1
        which = f", data {fingerprint[:8]}" if several else ""
        headings = ["model", "seeds", "mean ± sd", "95 % interval"]
        headings += ["difference (points)" if form.endswith("%") else "difference", "95 % interval", "pairs"]
        rows = [_cells(row, form) for row in own.to_dict("records")]
        print_table(f"{heading} on {name} ({metric}){which}", headings, rows)
    if csv is not None:
        texts = {name: table[name].map(_as_text) for name in ("model", "dataset", "metric")}
        kept = table.drop(columns=["fingerprint"]).assign(**texts)
        write_atomically(csv, kept.to_csv(index=False, lineterminator="\n"))
        say(f"written: {csv}")


class Found(NamedTuple):
    """The contents of run folders.

    Attributes:
        rows: A dictionary for each model, or value of a sweep: `model`, `seeds`, `metrics` (values of each
            seed), `dataset`, `fingerprint` and `parameters`.
        columns: Heading and format of each metric that the experiments show.
        notes: Messages about what is left out, one line each.
    """

    rows: list[dict[str, Any]]
    columns: dict[str, tuple[str, str]]
    notes: list[str]


def read_folders(folders: Sequence[Path]) -> Found:
    """Read the results of run folders, each of one model or of several; names begin with several folders."""
    found = Found([], {}, [])
    for folder in dict.fromkeys(folders):
        try:
            runs = runs_of_models(folder)
        except UserError as error:
            found.notes.append(f"{folder}: {error}, left out")
            continue
        for model, run in runs.items():
            try:
                if (row := row_of(run)) is None:
                    raise UserError(progress_of(run))
                rows = _rows(model, f"{folder}: " if folders[1:] else "", row, run.config()["dataset"])
            except (UserError, KeyError, TypeError) as error:
                found.notes.append(f"{folder}: {model}: {error}, left out")
                continue
            found.rows.extend(rows)
            try:
                found.columns.update(experiment_of(run).columns)
            except UserError as error:
                found.notes.append(f"{error}; all metrics are shown")
    return found


def _rows(model: str, where: str, row: Mapping[str, Any], dataset: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the row of a model, or one row for each value of a sweep."""
    about = {"dataset": dataset["name"], "fingerprint": dataset["fingerprint"]}
    about |= {name: row[name] for name in ("seeds", "parameters")}
    rows = []
    for value in row.get("sweep") or [{"value": {}, "metrics": row["metrics"]}]:
        name = label_of(row_name({**row, "model": model}), value["value"])
        numbers = {m: of for m, of in value["metrics"].items() if not isinstance(of["mean"], list)}
        metrics = {metric: of["per_seed"] for metric, of in numbers.items()}
        rows.append({"model": f"{where}{name}", "metrics": metrics, **about})
    return rows


def compare_rows(
    found: Found, metrics: Sequence[str] = (), baseline: str | None = None
) -> "pandas.DataFrame":
    """Return a table with a row for each model and metric, metric by metric.

    Columns: `model`, `dataset`, `fingerprint`, `parameters`, `metric`; `mean`, `sd`, `low` and `high` (the
    95 % interval) over `seeds`; and the same of the paired difference to the baseline, `difference_…`, over
    `difference_pairs`. Missing numbers are NaN.
    """
    import pandas

    rows = found.rows
    if not rows:
        raise UserError("none of the folders holds a finished run: there is nothing to report")
    known = list(dict.fromkeys(metric for row in rows for metric in row["metrics"]))
    main = [m for m in found.columns or known if m in known and not m.endswith(_MODES)]
    for metric in metrics:
        if metric not in known:
            raise UserError(f"there is no metric {metric!r}: choose {listed(known)}")
    names = [row["model"] for row in rows]
    if baseline is not None and baseline not in names:
        raise UserError(f"there is no row {baseline!r} for --baseline: choose {listed(names)}")
    asked = rows if baseline is None else [rows[names.index(baseline)]]
    bases = {row["fingerprint"]: row for row in reversed(asked)}  # the first of each corpus
    lines = []
    for metric in dict.fromkeys(metrics or main):
        for row in rows:
            if metric not in row["metrics"]:
                continue
            base = bases.get(row["fingerprint"], row)
            own, theirs = (
                dict(zip(of["seeds"], of["metrics"].get(metric, ()), strict=False)) for of in (row, base)
            )
            numbers = t_interval(list(own.values()))
            difference = paired_difference(own, theirs if row is not base else {})
            lines.append(
                {name: row[name] for name in ("model", "dataset", "fingerprint", "parameters")}
                | {"metric": metric, **dict(zip((*_INTERVAL, "seeds"), numbers, strict=True))}
                | {f"difference_{n}": v for n, v in zip((*_INTERVAL, "pairs"), difference, strict=True)}
            )
    return pandas.DataFrame(lines)


def _cells(row: Mapping[str, Any], form: str) -> list[str]:
    """Return the cells of a row for the terminal. A difference of percentages is in percentage points."""
    scale, points = (100, f"+{form[:-1]}f") if form.endswith("%") else (1, f"+{form}")
    spread = f"{row['mean']:{form}} ± {row['sd']:{form}}" if row["seeds"] > 1 else f"{row['mean']:{form}}"
    cells = [row["model"], str(row["seeds"]), spread, _ends(row, form)]
    if row["difference_pairs"]:
        part = {name: scale * row[f"difference_{name}"] for name in _INTERVAL}
        cells += [f"{part['mean']:{points}}", _ends(part, points), str(row["difference_pairs"])]
    return cells


def _ends(row: Mapping[str, float], form: str) -> str:
    return "" if math.isnan(row["low"]) else f"{row['low']:{form}} to {row['high']:{form}}"


def _as_text(cell: str) -> str:
    """Return a cell of CSV without control characters, which no spreadsheet reads as a formula."""
    cell = printable(cell)
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@", "\\t", "\\r")) else cell
