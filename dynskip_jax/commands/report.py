"""Runs side by side: mean, spread and confidence interval over seeds, paired differences."""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from json import dumps
from pathlib import Path
from typing import Any

import pandas
from tyro.conf import Positional

from dynskip_jax.analysis.statistics import paired_difference, t_interval
from dynskip_jax.config.experiment import experiment_of
from dynskip_jax.config.flags import listed
from dynskip_jax.errors import UserError
from dynskip_jax.runs.pieces import import_module
from dynskip_jax.runs.tables import label_of, row_name, shown_columns
from dynskip_jax.storage.files import check_new, write_atomically
from dynskip_jax.storage.folder import RunDir
from dynskip_jax.storage.results import progress_of, row_of, runs_of_models
from dynskip_jax.terminal.console import print_table, say

MODES = ("greedy", "sampled", "averaged")  # in which agents choose: suffixes of metrics


def report(
    folders: Positional[tuple[Path, ...]],
    metrics: tuple[str, ...] = (),
    baseline: str | None = None,
    json: Path | None = None,
    code: str | None = None,
) -> None:
    """Show runs, of one model or of several, side by side: `report DIR DIR --json rows.json`.

    Intervals are those of Student's t over seeds: 95 times of 100 they hold the mean of all seeds
    there could be, if seeds are normally distributed. They say nothing of other test sets.
    Differences are taken seed by seed, to the first row of the same data, or to --baseline.

    Args:
        folders: Run folders.
        metrics: Metrics as in result.json, separated by commas; by default the main ones.
        baseline: Row that others are compared with; by default the first on the same data.
        json: Write the means to this JSON file, with the fields of docs/results/rows.csv.
        code: Import this module first: the one with your own task.
    """
    if code is not None:
        import_module(code, "--code")
    if not folders:
        raise UserError("name run folders, before all flags: report DIR DIR")
    if json is not None:
        check_new(json)
    rows, columns = _read(dict.fromkeys(folders))
    main = shown_columns(columns, [row["metrics"] for row in rows])
    table = compare_rows(rows, metrics or [*main], baseline)
    # An interval of a share ends where shares end.
    shares = [metric for metric, (_, form) in columns.items() if form.endswith("%")]
    is_share = table["metric"].isin(shares)
    table.loc[is_share, ["low", "high"]] = table.loc[is_share, ["low", "high"]].clip(0, 1)
    _print(table, columns)
    if json is not None:
        write_atomically(json, dumps(data_of(table, columns), indent=1) + "\n")
        say(f"written: {json}")


def _read(folders: Collection[Path]) -> tuple[list[dict[str, Any]], dict[str, tuple[str, str]]]:
    """Return the rows of all finished models, and the columns of their experiments."""
    rows = []
    columns = {}
    for folder in folders:
        try:
            runs = runs_of_models(folder)
        except UserError as error:
            say(f"{error}, left out")
            continue
        where = f"{folder}: " if len(folders) > 1 else ""
        for model, run in runs.items():
            # A damaged run costs its own row only: the report shows the others.
            try:
                rows += rows_of(run, model, where)
            except (UserError, KeyError, TypeError) as error:
                say(f"{folder}: {model}: {error}, left out")
                continue
            try:
                columns |= experiment_of(run.config(), run.path).columns
            except UserError as error:
                say(f"{error}; all metrics are shown")
    return rows, columns


def _print(table: pandas.DataFrame, columns: Mapping[str, tuple[str, str]]) -> None:
    """Print a table for each metric and corpus."""
    for (metric, name, fingerprint), own in table.groupby(
        ["metric", "dataset", "fingerprint"], sort=False
    ):
        heading, form = columns.get(metric, (metric.replace("_", " "), ".4g"))
        # Corpora of one name may differ, and their scores cannot be compared.
        several = table.loc[table["dataset"] == name, "fingerprint"].nunique() > 1
        which = f", data {fingerprint[:8]}" if several else ""
        difference = "difference"
        if form.endswith("%"):
            difference = "difference (points)"
        headings = ["model", "seeds", "mean ± sd", "95 % interval"]
        headings += [difference, "95 % interval", "pairs"]
        cells = [_cells(row, form) for row in own.to_dict("records")]
        print_table(f"{heading} on {name} ({metric}){which}", headings, cells)


def rows_of(run: RunDir, model: str, where: str) -> list[dict[str, Any]]:
    """Return the rows of a finished model, one for each value of a sweep, named from `where`."""
    if (row := row_of(run)) is None:
        raise UserError(progress_of(run))
    config = run.config()
    rows = []
    data = config["dataset"]
    about = dict(
        dataset=data["name"], fingerprint=data["fingerprint"], parameters=row["parameters"]
    )
    about |= dict(
        task=config.get("experiment", ""), commit=(config["about"] or [{}])[-1].get("commit")
    )
    for value in row.get("sweep") or [{"value": {}, "metrics": row["metrics"]}]:
        name = label_of(row_name({**row, "model": model}), value["value"])
        numbers = {m: of for m, of in value["metrics"].items() if not isinstance(of["mean"], list)}
        metrics = {
            m: dict(zip(row["seeds"], of["per_seed"], strict=False)) for m, of in numbers.items()
        }
        rows.append({"model": f"{where}{name}", "metrics": metrics, **about})
    return rows


def compare_rows(
    rows: Sequence[Mapping[str, Any]], metrics: Sequence[str] = (), baseline: str | None = None
) -> pandas.DataFrame:
    """Return a table with a line for each row of `rows_of` and metric; missing numbers are NaN."""
    if not rows:
        raise UserError("none of the folders holds a finished run: there is nothing to report")
    names = [row["model"] for row in rows]
    known = dict.fromkeys(m for row in rows for m in row["metrics"])
    for metric in metrics:
        if metric not in known:
            raise UserError(f"there is no metric {metric!r}: choose {listed([*known])}")
    if baseline is not None and baseline not in names:
        # Names contain commas.
        choices = listed([repr(name) for name in names])
        raise UserError(f"there is no row {baseline!r} for --baseline: choose {choices}")
    asked = rows if baseline is None else [rows[names.index(baseline)]]
    # Differences are of one test set: rows on other data have their own base.
    bases = {row["fingerprint"]: row for row in reversed(asked)}  # the first of each corpus
    lines = []
    for metric in dict.fromkeys(metrics or known):
        for row in rows:
            if metric not in row["metrics"]:
                continue
            own = row["metrics"][metric]
            base = bases.get(row["fingerprint"], row)
            theirs = base["metrics"].get(metric, {}) if base is not row else {}
            numbers = t_interval([*own.values()])
            difference = paired_difference(own, theirs)._asdict()
            about = {name: value for name, value in row.items() if name != "metrics"}
            # A metric without a suffix is that of the mode with the same numbers.
            modes = (mode for mode in MODES if row["metrics"].get(f"{metric}_{mode}") == own)
            about |= {"mode": next(modes, ""), "metric": metric} | numbers._asdict()
            lines.append(
                about | {f"difference_{name}": value for name, value in difference.items()}
            )
    names = {"count": "seeds", "difference_count": "difference_pairs"}
    return pandas.DataFrame(lines).rename(columns=names)


def data_of(
    table: pandas.DataFrame, columns: Mapping[str, tuple[str, str]]
) -> list[dict[str, Any]]:
    """Return the fields of docs/results/rows.csv, as text, for each line of `compare_rows`."""
    pattern = re.compile(f"(?:(train|dev|test)_)?(.*?)(?:_({'|'.join(MODES)}))?")
    lines = []
    for row in table.to_dict("records"):
        split, metric, mode = pattern.fullmatch(row["metric"]).groups()
        _, form = columns.get(row["metric"], ("", ".4g"))
        mean, sd = (
            "" if math.isnan(row[number]) else f"{row[number]:{form}}".rstrip("%")
            for number in ("mean", "sd")
        )
        lines.append(
            {
                "table": "",  # the page, and the anchor of the table
                "task": row["task"],
                "model": row["model"],
                "mode": mode or row["mode"],
                "column": split or "",
                "part": "",
                "metric": metric.replace("_", " "),
                "split": split or "",
                "seeds": row["seeds"],
                "mean": mean,
                "sd": sd,
                "by_seed": "",
                "commit": (row["commit"] or "")[:7],
            }
        )
    return lines


def _cells(row: Mapping[str, Any], form: str) -> list[str]:
    """Return the cells of a row; a difference of percentages is in percentage points."""
    scale = 1
    points = f"+{form}"
    if form.endswith("%"):
        scale = 100
        points = f"+{form[:-1]}f"
    spread = f"{row['mean']:{form}}"
    if row["seeds"] > 1:
        spread += f" ± {row['sd']:{form}}"
    cells = [row["model"], str(row["seeds"]), spread, _ends(row["low"], row["high"], form)]
    if row["difference_pairs"]:
        mean, low, high = (scale * row[f"difference_{name}"] for name in ("mean", "low", "high"))
        cells += [f"{mean:{points}}", _ends(low, high, points), str(row["difference_pairs"])]
    return cells


def _ends(low: float, high: float, form: str) -> str:
    return "" if math.isnan(low) else f"{low:{form}} to {high:{form}}"
