"""Write reports as CSV, as a LaTeX tabular and as TensorBoard event files."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dynskip_jax.data.messages import printable
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.report_table import Line, tables
from dynskip_jax.training.event_files import EventFiles, check_tensorboard, member_name
from dynskip_jax.training.folder import RunDir, file_name
from dynskip_jax.training.progress import Progress

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
# The minus sign of a number, as opposed to a hyphen.
_MINUS = re.compile(r"(?<![\w-])-(?=\d)")
_BOUNDS = ("mean", "sd", "low", "high")
_LATEX_HEADINGS = ("model", "seeds", "mean ± sd", "± 95 %", "difference", "± 95 %", "pairs")
_SEEDS, _PAIRS = 1, 6  # indices of columns
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # first characters of what spreadsheets read as a formula
_STRUT = r"\rule{0pt}{2.6ex}"  # space below a horizontal line


def csv_text(lines: Sequence[Line]) -> str:
    """Return the table as CSV, with a line for each row and metric; missing numbers are empty.

    `low` and `high` bound the 95 % confidence interval of the mean (Student's t over seeds). The columns
    `difference_…` describe the differences to the baseline, paired by seed. Text that a spreadsheet would
    read as a formula begins with an apostrophe.
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
        name, dataset, metric = map(_as_text, (line.row.name, line.row.data[0], line.metric))
        writer.writerow([name, dataset, line.row.parameters, metric, *numbers])
    return text.getvalue()


def _as_text(cell: str) -> str:
    """Return a cell as one line, with an apostrophe in front if a spreadsheet would read it as a formula."""
    cell = printable(cell)
    return f"'{cell}" if cell.startswith(_FORMULA) else cell


def latex_text(lines: Sequence[Line]) -> str:
    """Return a LaTeX tabular that needs no package, with a block of rows for each metric and corpus.

    To keep rows short, the percent sign stands only in the block's title, and intervals are written as half
    their width. Empty columns are left out. So is the number of pairs if it always equals that of the seeds.
    """
    blocks = {
        title + (", %" if own[0].form.endswith("%") else ""): [_latex_cells(line) for line in own]
        for title, own in tables(lines).items()
    }
    rows = [row for block in blocks.values() for row in block]
    kept = [n for n in range(len(_LATEX_HEADINGS)) if any(row[n] for row in rows)]
    if all(row[_PAIRS] in ("", row[_SEEDS]) for row in rows):
        kept = [n for n in kept if n != _PAIRS]
    text = [
        "% mean, standard deviation (sd) and half of the 95 % confidence interval (Student's t) over seeds;",
        "% differences to the first row or the baseline, seed by seed",
        r"{\footnotesize\setlength{\tabcolsep}{4pt}%",
        rf"\begin{{tabular}}{{@{{}}l{'r' * (len(kept) - 1)}@{{}}}}",
        r"\hline",
        _STRUT + _latex_row([_LATEX_HEADINGS[n] for n in kept]),
    ]
    for title, block in blocks.items():
        heading = rf"{_STRUT}\textit{{{latex_escaped(title)}}}"
        text += [r"\hline", rf"\multicolumn{{{len(kept)}}}{{@{{}}l@{{}}}}{{{heading}}} \\"]
        text += [_latex_row([row[n] for n in kept]) for row in block]
    return "\n".join([*text, r"\hline", r"\end{tabular}}"]) + "\n"


def _latex_cells(line: Line) -> list[str]:
    """Return the cells of a line, in the order of `_LATEX_HEADINGS`."""
    percent, form = line.form.endswith("%"), line.form.replace("%", "f")

    def number(value: float, sign: str = "") -> str:
        return f"{100 * value if percent else value:{sign}{form}}"

    texts = []
    for interval, sign in ((line.own, ""), (line.difference, "+")):
        if interval is None or interval.count == 0:
            texts += ["", "", ""]
            continue
        several = interval.count > 1
        spread = f" ± {number(interval.sd)}" if several and not sign else ""
        half = f"±{number((interval.high - interval.low) / 2)}" if several else ""
        texts += [number(interval.mean, sign) + spread, half, str(interval.count)]
    mean, half, seeds, *difference = texts
    return [line.row.name, seeds, mean, half, *difference]


def latex_escaped(text: str) -> str:
    """Return a text escaped for LaTeX; letters for which plain LaTeX has no glyph become "?"."""
    safe = "".join(c if c in _LATEX or c.encode("latin-1", "ignore") else "?" for c in text)
    return "".join(_LATEX.get(c, c) for c in safe)


def _latex_row(texts: Sequence[str]) -> str:
    return " & ".join(_MINUS.sub("$-$", latex_escaped(text)) for text in texts) + r" \\"


def write_tensorboard(folder: Path, runs: Mapping[str, RunDir]) -> None:
    """Write the logged metrics of runs as event files, in a subfolder of `folder` for each run and seed.

    Raises:
        UserError: If tensorboardX is not installed, or `folder` exists and is not an empty folder.
    """
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
