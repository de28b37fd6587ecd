"""Format measurements as tables, JSON and a plot."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from rich.table import Table

from benchmarks.measure import Measured, Ratio, number, ratio


@dataclasses.dataclass(frozen=True)
class Case:
    """A case in which candidates are measured.

    Attributes:
        part: Part of the benchmark.
        table: Title of the table that contains the case.
        label: Name of the case in its table.
        sizes: Sizes of the case, by name.
        unit: Unit of the values.
        baselines: Names of the candidates with which the others are compared.
    """

    part: str
    table: str
    label: str
    sizes: Mapping[str, float]
    unit: str
    baselines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """Measurements of one candidate in one case.

    Attributes:
        case: Case that was measured.
        candidate: Name of the candidate.
        values: Value of each round, (rounds,).
        ratios: Ratio to each baseline, by the baseline's name.
    """

    case: Case
    candidate: str
    values: Float[np.ndarray, " rounds"]
    ratios: Mapping[str, Ratio]

    @property
    def median(self) -> float:
        """Median of the values."""
        return float(np.median(self.values))

    def as_json(self) -> dict[str, Any]:
        """Return all fields and statistics as a dictionary that JSON can represent."""
        return {
            **dataclasses.asdict(self.case),
            "candidate": self.candidate,
            "values": self.values.tolist(),
            "median": self.median,
            "min": float(self.values.min()),
            "max": float(self.values.max()),
            "ratios": {base: dataclasses.asdict(value) for base, value in self.ratios.items()},
        }


def rows(case: Case, measured: Measured) -> list[Row]:
    """Return a row for each candidate that ran, with ratios to the baselines that ran."""
    values = measured.values
    return [
        Row(case, name, own, {base: ratio(own, values[base]) for base in case.baselines if base in values})
        for name, own in values.items()
    ]


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table of text cells.

    Attributes:
        title: Title of the table.
        header: Heading of each column; the first column contains the names of the rows.
        sections: Sections of rows, each row a list of cells.
    """

    title: str
    header: Sequence[str]
    sections: Sequence[Sequence[Sequence[str]]]

    def for_terminal(self) -> Table:
        """Return the table for printing with Rich."""
        table = Table(title=self.title, title_justify="left")
        table.add_column(self.header[0], no_wrap=True)
        for heading in self.header[1:]:
            table.add_column(heading, justify="right")
        for section in self.sections:
            for row in section:
                table.add_row(*row)
            table.add_section()
        return table

    def as_markdown(self) -> str:
        """Return the table in Markdown, below a heading with its title."""
        rule = ["---"] * len(self.header)
        rows = [self.header, rule, *(row for section in self.sections for row in section)]
        return "\n".join([f"### {self.title}", "", *(f"| {' | '.join(row)} |" for row in rows)])


def tables(all_rows: Iterable[Row]) -> list[Grid]:
    """Return the tables of the rows.

    A part with several titles that compares one pair of candidates in each becomes one table of ratios. In
    other parts, each title becomes a table: a detailed one for a single case, otherwise one with a column for
    each case.
    """
    made = []
    for _, part in groupby(all_rows, key=lambda row: row.case.part):
        by_title = [list(group) for _, group in groupby(part, key=lambda row: row.case.table)]
        if len(by_title) > 1 and all(len({row.candidate for row in group}) == 2 for group in by_title):
            made.append(_ratios(by_title))
            continue
        for group in by_title:
            one_case = len({row.case.label for row in group}) == 1
            made.append(_detail(group) if one_case else _side_by_side(group))
    return made


def _ratios(by_title: Sequence[Sequence[Row]]) -> Grid:
    """Return a table of the ratios of two candidates, with titles as rows and cases as columns."""
    first = by_title[0]
    labels = list(dict.fromkeys(row.case.label for row in first))
    (base,) = _baselines(first)
    (other,) = {row.candidate for row in first} - {base}
    lines = []
    for group in by_title:
        found = {row.case.label: str(row.ratios[base]) for row in group if row.candidate == other}
        lines.append([group[0].case.table, *(found.get(label, "") for label in labels)])
    return Grid(f"{first[0].case.part}: {other} / {base} (quartiles)", [first[0].case.part, *labels], [lines])


def _detail(group: Sequence[Row]) -> Grid:
    """Return a table of one case, with candidates as rows.

    The columns are median, minimum, maximum and ratios, and tokens per second if the case has tokens.
    """
    case = group[0].case
    tokens, bases = case.sizes.get("tokens"), _baselines(group)
    header = ["candidate", f"median {case.unit}", "min", "max", *(f"/ {base}" for base in bases)]
    lines = []
    for row in group:
        cells = [number(value) for value in (row.median, row.values.min(), row.values.max())]
        cells += [str(row.ratios[base]) for base in bases]
        if tokens is not None:
            cells.append(f"{1e3 * tokens / row.median:,.0f}")
        lines.append([row.candidate, *cells])
    header += ["tokens/s"] * (tokens is not None)
    return Grid(f"{case.table}: {case.label}", header, [lines])


def _side_by_side(group: Sequence[Row]) -> Grid:
    """Return a table with cases as columns; rows are the candidates' medians, and then their ratios."""
    case = group[0].case
    labels = list(dict.fromkeys(row.case.label for row in group))
    names = list(dict.fromkeys(row.candidate for row in group))
    cells = {(row.candidate, row.case.label): row for row in group}

    def line(heading: str, text: Callable[[Row], str], name: str) -> list[str]:
        found = [cells.get((name, label)) for label in labels]
        return [heading, *("" if row is None else text(row) for row in found)]

    bases = _baselines(group)
    sections = [[line(name, lambda row: number(row.median), name) for name in names]]
    for i, base in enumerate(bases):
        others = [name for name in names if name not in bases[: i + 1]]  # no ratio of 1, no inverse
        sections.append(
            [
                line(f"{name} / {base}", lambda row, base=base: str(row.ratios.get(base, "")), name)
                for name in others
            ]
        )
    return Grid(f"{case.table}: median {case.unit}, ratios (quartiles)", ["candidate", *labels], sections)


def _baselines(group: Sequence[Row]) -> list[str]:
    return [base for base in group[0].case.baselines if any(base in row.ratios for row in group)]


def draw_growth(all_rows: Iterable[Row], path: Path, title: str) -> None:
    """Draw how time grows along each axis, as medians with bands from minimum to maximum, to a PNG file.

    Args:
        all_rows: Rows of the part `growth`; the label of a case is a number, and its table names the axis.
        path: Path of the PNG file.
        title: Title of the figure.
    """
    group = list(all_rows)
    axes_names = list(dict.fromkeys(row.case.table for row in group))
    names = list(dict.fromkeys(row.candidate for row in group))
    figure = Figure(figsize=(4.5 * len(axes_names), 4.5), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=11)
    panels = figure.subplots(1, len(axes_names), squeeze=False)[0]
    for panel, table in zip(panels, axes_names, strict=True):
        for index, name in enumerate(names):
            line = [row for row in group if row.case.table == table and row.candidate == name]
            if not line:
                continue
            at = [float(row.case.label) for row in line]
            panel.plot(at, [row.median for row in line], "o-", color=f"C{index}", label=name, markersize=3.5)
            low, high = ([float(f(row.values)) for row in line] for f in (np.min, np.max))
            panel.fill_between(at, low, high, color=f"C{index}", alpha=0.2, lw=0)
        panel.set_xscale("log")
        panel.set_yscale("log")
        ticks = sorted({float(row.case.label) for row in group if row.case.table == table})
        panel.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        panel.set_xticks([], minor=True)
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_xlabel(table)
        panel.grid(True, which="major", color="0.9", linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("loss and gradient, ms")
    panels[0].legend(frameon=False)
    figure.savefig(path, format="png", metadata={"Software": None})
