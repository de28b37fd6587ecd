"""Runs side by side: mean, standard deviation and confidence interval over seeds, and paired differences.

    python -m experiments.report runs/ptb/lstm runs/ptb/dynamic
    python -m experiments.report runs/compared --metrics test_perplexity --latex table.tex --csv table.csv

Each folder is that of a run, of one model or of several compared. Intervals are those of Student's t over
seeds: 95 times of 100 they hold the mean of all seeds there could be, if seeds are normally distributed. They
say nothing of other test sets. Differences are taken seed by seed, to the first row of the same data, or to
--baseline.
"""

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from dynskip_jax.analysis.statistics import paired_difference, t_interval
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import program, read_flags
from dynskip_jax.experiments.console import say, wide_console
from dynskip_jax.experiments.own_pieces import import_module
from dynskip_jax.experiments.registry import experiment_of
from dynskip_jax.experiments.report_files import csv_text, latex_text, write_tensorboard
from dynskip_jax.experiments.report_table import Line, Row, cells, headings, tables
from dynskip_jax.settings import listed, path_setting, setting
from dynskip_jax.training.files import check_new, write_atomically
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.results import progress_of, rows_of, runs_of_models

_MODES = ("_greedy", "_sampled", "_averaged")  # suffixes of metrics that are left out by default


@dataclasses.dataclass(frozen=True)
class Flags:
    """Flags of this command."""

    folders: tuple[str, ...] = setting(help="Run folders.", positional="DIR")
    code: str | None = setting(None, "Import this module first: the one with your own task.")
    overwrite: bool = setting(False, "Replace files that exist.")
    metrics: tuple[str, ...] | None = setting(
        None, "Metrics as in result.json, separated by commas; by default the main ones."
    )
    baseline: str | None = setting(
        None,
        "Name of the row that others are compared with; by default the first on the same data.",
    )
    csv: str | None = path_setting(None, "Write the table to this CSV file, one line per row and metric.")
    latex: str | None = path_setting(None, "Write the table to this file as a LaTeX tabular.")
    plot: str | None = path_setting(
        None, "Draw the second of two --metrics over the first, into this PNG file."
    )
    tensorboard: str | None = path_setting(
        None, "Write all logged metrics to this folder as TensorBoard event files."
    )


class Found(NamedTuple):
    """The contents of run folders.

    Attributes:
        rows: Rows of finished models.
        columns: Heading and format of each metric that the experiments show.
        runs: Every run by its name, finished or not.
        notes: Messages about what is left out, one line each.
    """

    rows: list[Row]
    columns: dict[str, tuple[str, str]]
    runs: dict[str, RunDir]
    notes: list[str]

    def heading(self, metric: str) -> tuple[str, str]:
        """Return the heading of a metric, and the format of its numbers."""
        return self.columns.get(metric, (metric.replace("_", " "), ".4g"))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: If no folder contains a finished run, a requested metric or row does not exist, or an
            output file exists.
    """
    given = sys.argv[1:] if arguments is None else arguments
    flags = read_flags(program("report"), __doc__, Flags, given)
    if flags.plot is not None and len(flags.metrics or ()) != 2:
        raise UserError("--plot sets one metric over another: give --metrics X,Y")
    written = [Path(path) for path in (flags.csv, flags.latex, flags.plot) if path is not None]
    for path in () if flags.overwrite else written:
        check_new(path, "remove it, name another file, or give --overwrite")
    if len({path.absolute() for path in written}) < len(written):
        raise UserError("--csv, --latex and --plot each need a file of their own")
    if flags.code is not None:
        import_module(flags.code, "--code")
    found = read_folders(flags.folders)
    for note in found.notes:
        say(note)
    if flags.tensorboard is not None:
        write_tensorboard(Path(flags.tensorboard), found.runs)
        say(f"event files: {flags.tensorboard}")
    if not found.rows and flags.tensorboard is not None and found.runs:
        return
    lines = compared(found, flags.metrics, flags.baseline)
    for path, text in ((flags.csv, csv_text), (flags.latex, latex_text)):
        if path is not None:
            write_atomically(Path(path), text(lines))
    if flags.plot is not None:
        draw(found, *flags.metrics, flags.plot)
    _print(lines)
    for path in written:
        say(f"written: {path}")


def read_folders(folders: Sequence[str]) -> Found:
    """Read the results of run folders, each of one model or of several."""
    found = Found([], {}, {}, [])
    single = len(folders) == 1
    for folder in dict.fromkeys(folders):
        try:
            runs = runs_of_models(folder)
        except UserError as error:
            has_config = (Path(folder) / "config.json").exists()
            why = str(error) if has_config else "not a run folder (it has no config.json)"
            found.notes.append(f"{folder}: {why}, left out")
            continue
        shown = "" if single else _short(folder, folders)
        for model, run in runs.items():
            # With several folders, the name of a row begins with that of its folder.
            name = _named(shown, model)
            if (run.path / "config.json").exists():
                found.runs[name] = run
            try:
                result = run.result()
                if result is None:
                    found.notes.append(f"{name}: {progress_of(run)}, left out")
                    continue
                rows, columns = _rows_of_run(model, shown, result), _columns(run, found.notes)
            except UserError as error:
                found.notes.append(f"{name}: {error}, left out")
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                reason = f"result.json is not as this version writes it ({error!r})"
                found.notes.append(f"{name}: {reason}, left out")
            else:
                found.columns.update(columns)
                found.rows.extend(rows)
    return found


def compared(found: Found, metrics: Sequence[str] | None, baseline: str | None) -> list[Line]:
    """Return the lines of the tables, metric by metric.

    Args:
        found: Contents of the run folders.
        metrics: Metrics to show; None for the main ones.
        baseline: Name of the row that others are compared with; None for the first row on the same data.

    Raises:
        UserError: If there are no rows, no such metric, or no such baseline.
    """
    rows = found.rows
    if not rows:
        raise UserError("none of the folders holds a finished run: there is nothing to report")
    known = list(dict.fromkeys(metric for row in rows for metric in row.metrics))
    shown = found.columns or known
    main = (m for m in shown if m in known and not m.endswith(_MODES))
    chosen = list(dict.fromkeys(metrics or main))
    for metric in chosen:
        if metric not in known:
            raise UserError(f"there is no metric {metric!r}: choose {listed(known)}")
    names = [row.name for row in rows]
    if baseline is not None and baseline not in names:
        raise UserError(f"there is no row {baseline!r} for --baseline: choose {listed(names)}")
    asked = rows if baseline is None else [rows[names.index(baseline)]]
    bases = {row.data: row for row in reversed(asked)}  # the first row of each corpus
    lines = []
    for metric in chosen:
        heading, form = found.heading(metric)
        for row in rows:
            own, difference = row.by_seed(metric), None
            if not own:
                continue
            base = bases.get(row.data, row)
            if row is not base:
                difference = paired_difference(own, base.by_seed(metric))
            lines.append(Line(row, metric, heading, form, t_interval(list(own.values())), difference))
    return lines


def draw(found: Found, x: str, y: str, path: str) -> None:
    """Draw the metric `y` over the metric `x`: a line for each model, a point for each of its rows.

    A row without the metric `x` is drawn as a level. For example, a model that reads every word has no
    fraction of words read.
    """
    from dynskip_jax.analysis import plots

    points = [row for row in found.rows if x in row.metrics and y in row.metrics]
    levels = {row.name: row.metrics[y] for row in found.rows if x not in row.metrics and y in row.metrics}
    folders = {row.model: {other.folder for other in points if other.model == row.model} for row in points}
    groups: dict[str, list] = {}
    for row in points:
        folder = row.folder if len(folders[row.model]) > 1 else ""  # a single folder needs no label
        label = ", ".join(filter(None, (row.label, folder)))
        groups.setdefault(row.model, []).append((label, row.metrics[x], row.metrics[y]))
    headings = [found.heading(metric)[0] for metric in (x, y)]
    title = f"{headings[1]} over {headings[0]}"
    plots.metric_over_metric(groups, path, title, x_label=headings[0], y_label=headings[1], levels=levels)


def _rows_of_run(model: str, folder: str, result: Mapping[str, Any]) -> list[Row]:
    parts = [_rows(model, folder, row, {**result, **row}["dataset"]) for row in rows_of(result)]
    return [row for part in parts for row in part]


def _rows(model: str, folder: str, row: Mapping[str, Any], dataset: Mapping[str, Any]) -> list[Row]:
    """Return the row of a model, or one row for each value of a sweep.

    If `folder` is not empty, the names of the rows begin with it.
    """
    from dynskip_jax.experiments.table import label_of, row_name

    values = row.get("sweep") or [{"value": {}, "metrics": row["metrics"]}]
    names = [label_of(row_name({**row, "model": model}), value["value"]) for value in values]
    return [
        Row(
            _named(folder, name),
            row["seeds"],
            {
                metric: of["per_seed"]
                for metric, of in value["metrics"].items()
                if not isinstance(of["mean"], list)
            },
            (dataset["name"], dataset["fingerprint"]),
            row["parameters"],
            model,
            name.removeprefix(model).removeprefix(", "),
            folder,
        )
        for name, value in zip(names, values, strict=True)
    ]


def _named(folder: str, name: str) -> str:
    return f"{folder}: {name}" if folder else name


def _columns(run: RunDir, notes: list[str]) -> Mapping[str, tuple[str, str]]:
    """Return the heading and format of each metric that the experiment's own table shows.

    If the experiment is unknown, add a note to `notes`, and return an empty mapping.
    """
    try:
        return experiment_of(run).columns
    except UserError as error:
        notes.append(f"{error}; all metrics are shown")
        return {}


def _short(folder: str, folders: Sequence[str]) -> str:
    """Return the last part of a folder's path, or the whole path if others end in the same part."""
    last = Path(folder).absolute().name
    same = [other for other in dict.fromkeys(folders) if Path(other).absolute().name == last]
    return last if len(same) == 1 else folder


def _print(lines: Sequence[Line]) -> None:
    console = wide_console()
    for title, own in tables(lines).items():
        table = Table(title=title, title_justify="left")
        for number, heading in enumerate(headings(own)):
            if number == 0:
                table.add_column(heading, overflow="fold", min_width=12)
            else:
                table.add_column(heading, justify="right", no_wrap=True)
        for line in own:
            table.add_row(line.row.name, *cells(line))
        console.print(table)


if __name__ == "__main__":
    from dynskip_jax.experiments.__main__ import run_file

    run_file(__file__)
