"""What is made of the figures: tables, JSON, a plot."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
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
    """What the candidates met.

    Attributes:
        part: of the benchmark.
        table: title of the table in which it stands.
        label: its name among the cases of that table.
        sizes: as numbers, by name.
        unit: of the values.
        baselines: candidates to which the others are compared.
    """

    part: str
    table: str
    label: str
    sizes: Mapping[str, float]
    unit: str
    baselines: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Row:
    """One candidate in one case; `ratios` are by the baseline's name."""

    case: Case
    candidate: str
    values: Float[np.ndarray, " rounds"]
    ratios: Mapping[str, Ratio]

    @property
    def median(self) -> float:
        """Of the values."""
        return float(np.median(self.values))

    def as_json(self) -> dict[str, Any]:
        """Returns everything, the single values included."""
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
    """Returns a row for each candidate, compared with the baselines that ran."""
    values = measured.values
    return [
        Row(case, name, own, {base: ratio(own, values[base]) for base in case.baselines if base in values})
        for name, own in values.items()
    ]


def tables(all_rows: Iterable[Row]) -> list[Table]:
    """Returns a table for each title: in detail where it has one case, else cases side by side."""
    made = []
    for _, group in groupby(all_rows, key=lambda row: row.case.table):
        group = list(group)
        one_case = len({row.case.label for row in group}) == 1
        made.append(_detail(group) if one_case else _side_by_side(group))
    return made


def _detail(group: Sequence[Row]) -> Table:
    """Rows are candidates: median, minimum, maximum, ratios, and tokens per second where it reads any."""
    case = group[0].case
    table = Table(title=f"{case.table}: {case.label}", title_justify="left")
    table.add_column("candidate", no_wrap=True)
    tokens = case.sizes.get("tokens")
    headings = [f"median {case.unit}", "min", "max", *(f"/ {base}" for base in _baselines(group))]
    for heading in headings + ["tokens/s"] * (tokens is not None):
        table.add_column(heading, justify="right")
    for row in group:
        cells = [number(value) for value in (row.median, row.values.min(), row.values.max())]
        cells += [str(row.ratios[base]) for base in _baselines(group)]
        if tokens is not None:
            cells.append(f"{1e3 * tokens / row.median:,.0f}")
        table.add_row(row.candidate, *cells)
    return table


def _side_by_side(group: Sequence[Row]) -> Table:
    """Columns are cases; rows are the candidates' medians, and below them their ratios."""
    case = group[0].case
    table = Table(title=f"{case.table}: median {case.unit}, ratios (quartiles)", title_justify="left")
    labels = list(dict.fromkeys(row.case.label for row in group))
    names = list(dict.fromkeys(row.candidate for row in group))
    cells = {(row.candidate, row.case.label): row for row in group}
    table.add_column("candidate")
    for label in labels:
        table.add_column(label, justify="right")

    def add(heading: str, text: Any, name: str) -> None:
        found = [cells.get((name, label)) for label in labels]
        table.add_row(heading, *("" if row is None else text(row) for row in found))

    for name in names:
        add(name, lambda row: number(row.median), name)
    bases = _baselines(group)
    for i, base in enumerate(bases):
        table.add_section()
        for name in names:
            if name in bases[: i + 1]:
                continue  # 1, or the inverse of one above
            add(f"{name} / {base}", lambda row, base=base: str(row.ratios.get(base, "")), name)
    return table


def _baselines(group: Sequence[Row]) -> list[str]:
    return [base for base in group[0].case.baselines if any(base in row.ratios for row in group)]


def draw_growth(all_rows: Iterable[Row], path: Path, title: str) -> None:
    """Draws how time grows along each axis into a PNG file: medians, and bands from minimum to maximum.

    Args:
        all_rows: those of the part `growth`; the label of a case is a number, its table names the axis.
        path: the PNG file.
        title: of the figure.
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
