"""What a report writes: CSV, a LaTeX tabular, TensorBoard event files."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dynskip_jax.errors import UserError
from dynskip_jax.runs.progress import Progress
from dynskip_jax.runs.run_dir import RunDir, file_name
from experiments.report_table import Line, cells, headings, tables

_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": "$<$",
    ">": "$>$",
    "|": "$|$",
    "±": r"$\pm$",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "τ": r"$\tau$",
    "–": "--",
}
# A number's sign, which is a minus there and a hyphen elsewhere.
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")
_NO_METRICS = {"step", "epoch", "examples", "tokens", "split"}  # of a record
_BOUNDS = ("mean", "sd", "low", "high")


def csv_text(lines: Sequence[Line]) -> str:
    """Returns a table with a line for each row and metric; empty where there is no number.

    `low` and `high` bound the 95 % confidence interval of the mean (Student's t over seeds), `difference_…`
    are of the differences to the baseline, seed by seed.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    both = [*_BOUNDS, "seeds", *(f"difference_{name}" for name in _BOUNDS), "difference_pairs"]
    writer.writerow(["model", "dataset", "parameters", "metric", *both])
    for line in lines:
        numbers: list[object] = []
        for interval in (line.own, line.difference):
            kept = interval if interval is not None and interval.count else ("",) * 5
            numbers += ["" if isinstance(n, float) and np.isnan(n) else n for n in kept]
        writer.writerow([line.row.name, line.row.data[0], line.row.parameters, line.metric, *numbers])
    return text.getvalue()


def latex_text(lines: Sequence[Line]) -> str:
    """Returns a tabular that needs no package, with a block of rows for each metric."""
    rows = [r"% mean, standard deviation (sd) and 95 % confidence interval (Student's t) over seeds;"]
    rows += [r"% differences to the first row or the baseline, seed by seed", r"\begin{tabular}{lrrrrrr}"]
    for title, own in tables(lines).items():
        rows += [r"\hline", rf"\multicolumn{{7}}{{l}}{{\textit{{{latex_escaped(title)}}}}} \\"]
        rows += [_latex_row(headings(own)), r"\hline"]
        rows += [_latex_row([line.row.name, *cells(line)]) for line in own]
    rows.append(r"\hline")
    return "\n".join([*rows, r"\end{tabular}"]) + "\n"


def latex_escaped(text: str) -> str:
    """Returns the text as LaTeX prints it; letters that plain LaTeX has no glyphs for become "?"."""
    safe = "".join(c if c in _LATEX or c.encode("latin-1", "ignore") else "?" for c in text)
    return "".join(_LATEX.get(c, c) for c in safe)


def _latex_row(texts: Sequence[str]) -> str:
    return " & ".join(_MINUS.sub("$-$", latex_escaped(text)) for text in texts) + r" \\"


def write_tensorboard(folder: Path, runs: Mapping[str, RunDir]) -> None:
    """Writes what runs have logged as event files, a folder for each run and seed below `folder`.

    Raises:
        UserError: tensorboardX is missing, or the folder is not empty.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise UserError(
            "event files need tensorboardX: pip install 'dynskip_jax[tensorboard]', or leave out "
            "--tensorboard"
        ) from None
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: name another folder with --tensorboard")
    with Progress(len(runs), "event files") as progress:
        for name, run in runs.items():
            writers: dict[int, SummaryWriter] = {}  # by the number of the seed's entry
            for record in run.records():
                for metric in record.keys() - _NO_METRICS:
                    # A list has an entry for each seed, itself a list where that is of each k; folders
                    # written before have a number where there is one seed.
                    values = record[metric]
                    for member, value in enumerate(values if isinstance(values, list) else [values]):
                        if member not in writers:
                            writers[member] = SummaryWriter(str(folder / _member_name(name, run, member)))
                        for k, number in enumerate(value if isinstance(value, list) else [value], 1):
                            tag = f"{metric}/k{k}" if isinstance(value, list) else metric
                            writers[member].add_scalar(tag, number, record["step"])
            for writer in writers.values():
                writer.close()
            progress.advance()


def _member_name(name: str, run: RunDir, member: int) -> str:
    """The folder of one of the models that were trained together: its seed, of a sweep also which value."""
    settings = run.config()["settings"]["run"]
    value, seed = divmod(member, settings["seeds"])
    which = f"-value-{value + 1}" if value else ""
    return file_name(f"{name}{which}-seed-{settings['seed'] + seed}")
