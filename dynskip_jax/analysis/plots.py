"""Plots of a run: how it learned, and which skips the agent chose."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Int
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter, MaxNLocator

_LINE_STYLES = ("-", "--", ":", "-.")
_MOST_LABELLED_SKIPS = 16  # beyond it, numbers in the cells of a K x K heat map no longer fit


def learning_curves(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    x: str,
    y: Sequence[str],
    path: str | Path,
    title: str,
    *,
    log: bool = False,
) -> None:
    """Draws metrics of one or several models as curves into a PNG file.

    A value that is a list has one entry per seed: the curve is their mean, and a band shows one standard
    deviation (n - 1) to either side. Records without `x` or without the metric are left out.

    Arguments:
        curves: for each model its records, as `RunDir.records` returns them.
        x: the key of the horizontal axis, such as "epoch".
        y: the keys of the metrics; models differ by colour, metrics by line style.
        path: the PNG file.
        title: the title.
        log: whether the vertical axis is logarithmic.
    """
    figure, axes = _figure(title)
    for index, (name, records) in enumerate(curves.items()):
        for metric, style in zip(y, _LINE_STYLES * len(y), strict=False):
            points = [(float(r[x]), _mean_and_spread(r[metric])) for r in records if x in r and metric in r]
            if not points:
                continue
            at = np.array([point for point, _ in points])
            mean, spread = np.array([value for _, value in points]).T
            label = name if len(y) == 1 else f"{name}, {_words(metric)}"
            marker = "o" if len(points) <= 30 else ""
            axes.plot(at, mean, style, color=f"C{index % 10}", label=label, marker=marker, markersize=3.5)
            if spread.any():
                axes.fill_between(at, mean - spread, mean + spread, color=f"C{index % 10}", alpha=0.2, lw=0)
    axes.set_xlabel(_words(x))
    axes.set_ylabel(", ".join(map(_words, y)))
    if all(point.is_integer() for line in axes.lines for point in line.get_xdata()):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(_RoundNumbers())
    axes.grid(True, which="both", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    _save(figure, path)


def action_distribution(
    counts: Int[np.ndarray, "rows K"],
    path: str | Path,
    title: str,
    note: str = "",
    *,
    rows: Sequence[str] | None = None,
) -> None:
    """Draws how often the agent chose each skip at each position, or after each word, into a PNG file.

    Arguments:
        counts: how often the skip k = column + 1 was chosen at the position (or word) of that row. The shares
            of a row add up to 1; a row without any count is left blank.
        path: the PNG file.
        title: the title.
        note: a line below the title, such as the name of the dataset.
        rows: the words that the rows stand for; positions 0, 1, … if not given.
    """
    figure, axes = _figure(title, note)
    image = _heat_map(axes, _shares(counts).T)
    if rows is None:
        axes.set_xlabel("position t")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        # parse_math: a word such as "$" is text, not mathematics.
        axes.set_xticks(np.arange(len(rows)), labels=rows, rotation=60, ha="right", parse_math=False)
    axes.set_ylabel("chosen skip k")
    _label_skips(axes.yaxis, counts.shape[1])
    figure.colorbar(image, ax=axes, label="share of decisions")
    _save(figure, path)


def action_against_truth(
    actions: Int[np.ndarray, "*shape"],
    truth: Int[np.ndarray, "*shape"],
    num_actions: int,
    path: str | Path,
    title: str,
) -> None:
    """Draws the skips that were chosen against the skips that are right into a PNG file.

    The title gains the fraction of decisions that are exactly right.

    Arguments:
        actions: the chosen actions, 0 … K - 1; action a is the skip k = a + 1.
        truth: the right actions; where it is not in 0 … K - 1 nothing is right, and the decision is left out.
        num_actions: K.
        path: the PNG file.
        title: the title.
    """
    judged = (truth >= 0) & (truth < num_actions)
    counts = np.zeros((num_actions, num_actions), np.int64)
    np.add.at(counts, (truth[judged], actions[judged]), 1)
    shares = _shares(counts)
    exact = f"{np.trace(counts) / counts.sum():.1%} of decisions exact" if counts.sum() else "no decisions"
    figure, axes = _figure(f"{title} ({exact})")
    image = _heat_map(axes, shares)
    axes.set_xlabel("chosen skip k")
    axes.set_ylabel("right skip k")
    _label_skips(axes.xaxis, num_actions)
    _label_skips(axes.yaxis, num_actions)
    if num_actions <= _MOST_LABELLED_SKIPS:
        for row, column in np.argwhere(shares >= 0.005):
            share = shares[row, column]
            color = "white" if share > 0.5 else "black"
            axes.text(column, row, f"{share:.2f}", ha="center", va="center", fontsize=9, color=color)
    figure.colorbar(image, ax=axes, label="share of decisions with that right skip")
    _save(figure, path)


def _figure(title: str, note: str = "") -> tuple[Figure, Axes]:
    """One pair of axes of 900 x 600 pixels, on no window system and unknown to pyplot."""
    figure = Figure(figsize=(9, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{title}\n" if note else title, fontsize=13)
    if note:
        axes.text(0.5, 1.02, note, transform=axes.transAxes, ha="center", va="bottom", color="0.35")
    return figure, axes


def _save(figure: Figure, path: str | Path) -> None:
    # Without the version of matplotlib in the file, equal plots are equal files.
    figure.savefig(path, format="png", metadata={"Software": None})


def _mean_and_spread(value: Any) -> tuple[float, float]:
    seeds = np.atleast_1d(np.asarray(value, np.float64))
    return float(seeds.mean()), float(seeds.std(ddof=1)) if seeds.size > 1 else 0.0


def _shares(counts: np.ndarray) -> np.ndarray:
    """Each row divided by its sum; NaN, which is drawn blank, where there is nothing to divide."""
    totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)


def _heat_map(axes: Axes, shares: np.ndarray) -> Any:
    colors = matplotlib.colormaps["Blues"].with_extremes(bad="0.93")
    return axes.imshow(shares, cmap=colors, vmin=0, vmax=1, aspect="auto", origin="lower")


def _label_skips(axis: Any, num_actions: int) -> None:
    stride = -(-num_actions // 20)
    ticks = np.arange(0, num_actions, stride)
    axis.set_ticks(ticks, labels=[str(tick + 1) for tick in ticks])


class _RoundNumbers(LogFormatter):
    """Labels between powers of ten as plain numbers, as many as there is room for."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _words(name: str) -> str:
    return name.replace("_", " ")
