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
from dynskip_jax.training.event_files import EventFiles, check_tensorboard, member_name
from dynskip_jax.training.files import check_new, write_atomically
from dynskip_jax.training.folder import RunDir, file_name
from dynskip_jax.training.progress import Progress
from dynskip_jax.training.results import progress_of, rows_of, runs_of_models

if TYPE_CHECKING:
    import pandas

_MODES = ("_greedy", "_sampled", "_averaged")  # suffixes of metrics that are left out by default
_INTERVAL = ("mean", "sd", "low", "high")


def report(
    folders: tuple[Path, ...],
    metrics: tuple[str, ...] = (),
    baseline: str | None = None,
    csv: Path | None = None,
    plot: Path | None = None,
    tensorboard: Path | None = None,
    overwrite: bool = False,
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
        plot: Draw two --metrics, the second over the first, by default parameters and the first test metric.
        tensorboard: Write all logged metrics to this folder as TensorBoard event files.
        overwrite: Replace files that exist.
        code: Import this module first: the one with your own task.
    """
    if not folders:
        raise UserError("name run folders: report DIR DIR")
    written = [path for path in (csv, plot) if path is not None]
    if plot is not None and len(metrics) not in (0, 2):
        raise UserError("--plot sets one metric over another: give --metrics X,Y")
    for path in () if overwrite else written:
        check_new(path, "remove it, name another file, or give --overwrite")
    if len({path.absolute() for path in written}) < len(written):
        raise UserError("--csv and --plot each need a file of their own")
    found = read_folders(folders)
    for note in found.notes:
        say(note)
    if tensorboard is not None:
        _write_tensorboard(tensorboard, found.runs)
        say(f"event files: {tensorboard}")
        if not found.rows and found.runs:
            return
    table = compare_rows(found, metrics, baseline)
    if csv is not None:
        texts = {name: table[name].map(_as_text) for name in ("model", "dataset", "metric")}
        kept = table.drop(columns=["fingerprint"]).assign(**texts)
        write_atomically(csv, kept.to_csv(index=False, lineterminator="\n"))
    if plot is not None:
        tested = [name for name in dict.fromkeys(table["metric"]) if name.startswith("test_")]
        x, y = metrics or ("parameters", (tested or list(table["metric"]))[0])
        _draw(found, x, y, plot)
    for title, own in _tables(table, found).items():
        percent = found.heading(own["metric"].iloc[0])[1].endswith("%")
        headings = ["model", "seeds", "mean ± sd", "95 % interval"]
        headings += [f"difference{' (points)' if percent else ''}", "95 % interval", "pairs"]
        print_table(title, headings, [_cells(row, found) for row in own.to_dict("records")])
    for path in written:
        say(f"written: {path}")


class Found(NamedTuple):
    """The contents of run folders.

    Attributes:
        rows: A dictionary for each model, or value of a sweep: `model`, `kind`, `label`, `seeds`, `metrics`
            (values of each seed), `dataset`, `fingerprint` and `parameters`.
        columns: Heading and format of each metric that the experiments show.
        runs: Every run by its name, finished or not.
        notes: Messages about what is left out, one line each.
    """

    rows: list[dict[str, Any]]
    columns: dict[str, tuple[str, str]]
    runs: dict[str, RunDir]
    notes: list[str]

    def heading(self, metric: str) -> tuple[str, str]:
        """Return the heading of a metric, and the format of its numbers."""
        return self.columns.get(metric, (metric.replace("_", " "), ".4g"))


def read_folders(folders: Sequence[Path]) -> Found:
    """Read the results of run folders, each of one model or of several."""
    found = Found([], {}, {}, [])
    folders = list(dict.fromkeys(map(Path, folders)))
    lasts = [folder.absolute().name for folder in folders]
    for folder, last in zip(folders, lasts, strict=True):
        try:
            runs = runs_of_models(folder)
        except UserError as error:
            why = error if (folder / "config.json").exists() else "not a run folder (it has no config.json)"
            found.notes.append(f"{folder}: {why}, left out")
            continue
        # With several folders, names begin with that of the folder.
        shown = "" if len(folders) == 1 else f"{last if lasts.count(last) == 1 else folder}: "
        for model, run in runs.items():
            if (run.path / "config.json").exists():
                found.runs[shown + model] = run
            try:
                result = run.result()
                if result is None:
                    found.notes.append(f"{shown}{model}: {progress_of(run)}, left out")
                    continue
                parts = [_rows(model, shown, row, {**result, **row}["dataset"]) for row in rows_of(result)]
            except UserError as error:
                found.notes.append(f"{shown}{model}: {error}, left out")
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                reason = f"result.json is not as this version writes it ({error!r})"
                found.notes.append(f"{shown}{model}: {reason}, left out")
            else:
                found.rows.extend(row for part in parts for row in part)
                try:
                    found.columns.update(experiment_of(run).columns)
                except UserError as error:
                    found.notes.append(f"{error}; all metrics are shown")
    return found


def _rows(
    model: str, folder: str, row: Mapping[str, Any], dataset: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the row of a model, or one row for each value of a sweep."""
    from dynskip_jax.results import label_of, row_name

    found = []
    for value in row.get("sweep") or [{"value": {}, "metrics": row["metrics"]}]:
        name = label_of(row_name({**row, "model": model}), value["value"])
        numbers = {
            m: of["per_seed"] for m, of in value["metrics"].items() if not isinstance(of["mean"], list)
        }
        label = ", ".join(
            filter(None, (name.removeprefix(model).removeprefix(", "), folder.removesuffix(": ")))
        )
        found.append(
            dict(model=folder + name, kind=model, label=label, seeds=row["seeds"], metrics=numbers)
            | dict(dataset=dataset["name"], fingerprint=dataset["fingerprint"], parameters=row["parameters"])
        )
    return found


def compare_rows(
    found: Found, metrics: Sequence[str] = (), baseline: str | None = None
) -> "pandas.DataFrame":
    """Return a table with a row for each model and metric, metric by metric.

    Columns: `model`, `dataset`, `fingerprint`, `parameters`, `metric`; `mean`, `sd`, `low` and `high` (the
    95 % interval) over `seeds`; and the same of the paired difference to the baseline, `difference_…`, over
    `difference_pairs`. Missing numbers are NaN.

    Args:
        found: Contents of the run folders.
        metrics: Metrics to show; by default the main ones.
        baseline: Name of the row that others are compared with; None for the first row on the same data.
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
    bases = {(row["dataset"], row["fingerprint"]): row for row in reversed(asked)}  # the first of each corpus
    lines = []
    for metric in dict.fromkeys(metrics or main):
        for row in rows:
            if metric not in row["metrics"]:
                continue
            own = dict(zip(row["seeds"], row["metrics"][metric], strict=False))
            base = bases.get((row["dataset"], row["fingerprint"]), row)
            theirs = dict(zip(base["seeds"], base["metrics"].get(metric, ()), strict=False))
            numbers = t_interval(list(own.values()))
            difference = paired_difference(own, theirs if row is not base else {})
            about = {name: row[name] for name in ("model", "dataset", "fingerprint", "parameters")}
            lines.append(
                about
                | {"metric": metric, **dict(zip((*_INTERVAL, "seeds"), numbers, strict=True))}
                | {f"difference_{n}": v for n, v in zip((*_INTERVAL, "pairs"), difference, strict=True)}
            )
    return pandas.DataFrame(lines)


def _tables(table: "pandas.DataFrame", found: Found) -> "dict[str, pandas.DataFrame]":
    """Return the rows of each metric on each corpus, by a title; corpora of one name may differ."""
    titles = {}
    for (metric, name, fingerprint), own in table.groupby(["metric", "dataset", "fingerprint"], sort=False):
        several = table.loc[table["dataset"] == name, "fingerprint"].nunique() > 1
        which = f", data {fingerprint[:8]}" if several else ""
        titles[f"{found.heading(metric)[0]} on {name} ({metric}){which}"] = own
    return titles


def _cells(row: Mapping[str, Any], found: Found) -> list[str]:
    """Return the cells of a row for the terminal. A difference of percentages is in percentage points."""
    form = found.heading(row["metric"])[1]
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


def _draw(found: Found, x: str, y: str, path: Path) -> None:
    """Draw the metric `y` over the metric `x`, or over the number of parameters: a line for each model.

    A row without the metric `x` is drawn as a level. For example, a model that reads every word has no
    fraction of words read.
    """
    from dynskip_jax.analysis import plots

    groups: dict[str, list] = {}
    levels = {}
    for row in found.rows:
        values = {**row["metrics"], "parameters": [float(row["parameters"])]}
        if x in values and y in values:
            groups.setdefault(row["kind"], []).append((row["label"], values[x], values[y]))
        elif y in values:
            levels[row["model"]] = values[y]
    x_label, y_label = (found.heading(metric)[0] for metric in (x, y))
    title = f"{y_label} over {x_label}"
    plots.metric_over_metric(groups, path, title, x_label=x_label, y_label=y_label, levels=levels)


def _write_tensorboard(folder: Path, runs: Mapping[str, RunDir]) -> None:
    """Write the logged metrics of runs as event files, in a subfolder of `folder` for each run and seed."""
    check_tensorboard()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: name another folder with --tensorboard")
    with Progress(len(runs), "event files") as progress:
        for name, run in runs.items():
            files = EventFiles(
                lambda member, name=name, run=run: folder / file_name(f"{name}-{member_name(run, member)}")
            )
            for record in run.records():
                files.add(record)
            files.close()
            progress.advance()
