"""Plots of runs: how they learned, what a setting changes, and which skips the agent chose."""

import functools
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from dynskip_jax.extras import needs

with needs("experiments"):
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text
    from matplotlib.ticker import EngFormatter, LogFormatter, MaxNLocator

_LINE_STYLES = ("-", "--", ":", "-.")
_MOST_LABELLED_SKIPS = 16  # beyond it, numbers in the cells of a K x K heat map no longer fit
_MISSING = re.compile(r"Glyph (\d+) .*missing from")
_OTHER_SCRIPTS = re.compile("CJK|Noto Sans|Gothic|Hei$|Micro Hei|Fallback|Arial Unicode|Hiragino|Malgun")
_LAST_COLOR = 20  # the k from which on all have one colour
_MOST_AREAS = 20  # up to so many k each has an area of its own
_LARGE = 10_000  # from here on, numbers on an axis have k and M for thousands and millions


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
        x: the key of the horizontal axis, such as "epoch" or "examples".
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
    points = [point for line in axes.lines for point in line.get_xdata()]
    if all(point.is_integer() for point in points):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if max(points, default=0) >= _LARGE:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(_RoundNumbers())
    _finish(axes)
    save(figure, path)


def policy_over_training(
    records: Sequence[Mapping[str, Any]],
    shares: str,
    entropy: str,
    path: str | Path,
    title: str,
    note: str = "",
) -> None:
    """Draws the share of each skip and the policy's entropy over the epochs into a PNG file.

    Arguments:
        records: as `RunDir.records` returns them; all have "epoch" and both metrics.
        shares: the key of the shares, (seeds, K) in each record; their means over the seeds are stacked,
            beyond K = 20 in bands that double: 1, 2, 3 to 4, 5 to 8 and so on.
        entropy: the key of the entropy in nats, (seeds,); drawn as means with a band of one standard
            deviation (n - 1), and at the top log K, the entropy of a policy that prefers nothing.
        path: the PNG file.
        title: the title.
        note: a line below the title, such as the name of the dataset.
    """
    at = np.array([record["epoch"] for record in records], np.float64)
    of_k = np.array([np.asarray(record[shares], np.float64).mean(axis=0) for record in records])
    K = of_k.shape[1]
    bands = _bands(K)
    mean, spread = np.array([_mean_and_spread(record[entropy]) for record in records]).T
    figure = Figure(figsize=(9, 7), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    above.set_title(f"{title}\n" if note else title, fontsize=13)
    above.text(0.5, 1.02, note, transform=above.transAxes, ha="center", va="bottom", color="0.35")
    tops = np.cumsum(of_k, axis=1)[:, [last - 1 for _, last in bands]]
    marker = "o" if len(records) <= 30 else ""
    for column, (first, last) in enumerate(bands):
        bottom = tops[:, column - 1] if column else np.zeros(len(records))
        which = f"{first}" if first == last else f"{first} to {last}"
        # Bands are coloured by their place among them: beyond k = 20 all skips have one colour.
        among = 1 + (_LAST_COLOR - 1) ** ((column - 1) / max(1, len(bands) - 2))
        shade = first if K <= _MOST_AREAS or column == 0 else among
        style = dict(color=skip_color(shade), label=f"k = {which}")
        # A single epoch is no area: a bar stands in its place.
        if len(records) == 1:
            above.bar(at, tops[:, column] - bottom, 0.5, bottom, **style)
        else:
            above.fill_between(at, bottom, tops[:, column], lw=0.4, ec="white", **style)
    above.set_ylim(0, 1)
    above.set_ylabel("share of choices")
    handles, labels = above.get_legend_handles_labels()
    # As the areas are stacked: the last k on top.
    above.legend(handles[::-1], labels[::-1], frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    below.plot(at, mean, color="0.2", marker=marker, markersize=3.5)
    below.fill_between(at, mean - spread, mean + spread, color="0.2", alpha=0.2, lw=0)
    below.axhline(math.log(K), color="0.5", ls=":")
    how = dict(textcoords="offset points", va="center", color="0.35", size=9)
    below.annotate(f"log {K}", (1, math.log(K)), (4, 0), xycoords=("axes fraction", "data"), **how)
    below.set_ylim(0, 1.08 * max(math.log(K), 0.01))
    below.set_ylabel("entropy (nats)")
    below.set_xlabel("epoch")
    below.xaxis.set_major_locator(MaxNLocator(integer=True))
    below.grid(True, color="0.9", linewidth=0.8)
    below.set_axisbelow(True)
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)


def skip_color(k: int | float) -> tuple[float, float, float] | str:
    """The colour of a skip, the same in every picture whatever K is: grey for k = 1, then from dark blue by
    way of green and orange to dark red, which is reached at k = 20."""
    if k <= 1:
        return "0.72"
    place = min(math.log(k - 1) / math.log(_LAST_COLOR - 1), 1.0)
    # Darker than the map has them: its greens are hard to see on white.
    red, green, blue, _ = matplotlib.colormaps["turbo"](0.03 + 0.94 * place)
    return 0.85 * red, 0.85 * green, 0.85 * blue


def metric_over_values(
    curves: Mapping[str, Sequence[Sequence[float | int]]],
    values: Sequence[float | int],
    path: str | Path,
    title: str,
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
) -> None:
    """Draws what a metric is at each value of a setting, such as a length, into a PNG file.

    A line leads through the means over the seeds, with bars of one standard deviation (n - 1) to either side;
    the faint points are the seeds.

    Arguments:
        curves: for each model, and each value in turn, the metric of each seed; where there is no seed,
            nothing is drawn.
        values: the values of the setting.
        path: the PNG file.
        title: the title.
        x_label: what the setting is.
        y_label: what the metric is.
        log_x: whether the horizontal axis is logarithmic; all values are positive then.
    """
    figure, axes = _figure(title)
    for index, (name, metrics) in enumerate(curves.items()):
        color = f"C{index % 10}"
        points = [(value, seeds) for value, seeds in zip(values, metrics, strict=True) if len(seeds)]
        if not points:
            continue
        at = np.array([value for value, _ in points], np.float64)
        mean, spread = np.array([_mean_and_spread(seeds) for _, seeds in points]).T
        axes.errorbar(at, mean, spread, color=color, label=name, marker="o", markersize=5, capsize=4, lw=1.5)
        single = np.array([(value, metric) for value, seeds in points for metric in seeds])
        axes.plot(*single.T, "o", color=color, alpha=0.35, markersize=4, markeredgewidth=0)
    if log_x:
        axes.set_xscale("log")
    ticks = _apart(values, log_x)
    axes.set_xticks(ticks, labels=[_number(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    _finish(axes)
    save(figure, path)


def metric_over_metric(
    groups: Mapping[str, Sequence[tuple[str, Sequence[float], Sequence[float]]]],
    path: str | Path,
    title: str,
    *,
    x_label: str,
    y_label: str,
    levels: Mapping[str, Sequence[float]] = MappingProxyType({}),
) -> None:
    """Draws what one metric is beside another, such as accuracy over the share of words read.

    A point stands at the means over the seeds, with bars of one standard deviation (n - 1); a line leads
    through those of one group.

    Arguments:
        groups: by name, of each point a label and both metrics of each seed.
        path: the PNG file.
        title: the title.
        x_label: what lies to the right.
        y_label: what lies above.
        levels: what has the second metric alone, of each seed, by name: a dashed line at its mean.
    """
    figure, axes = _figure(title)
    labelled = []
    for index, (name, points) in enumerate(groups.items()):
        found = [(label, *_mean_and_spread(xs), *_mean_and_spread(ys)) for label, xs, ys in points]
        found.sort(key=lambda point: point[1])
        labels, x, x_spread, y, y_spread = zip(*found, strict=True)
        axes.errorbar(
            x, y, y_spread, x_spread, color=f"C{index % 10}", label=name, marker="o", capsize=4, lw=1.5
        )
        labelled.extend(zip(labels, x, y, strict=True))
    low, high = axes.get_xlim()
    for label, *place in labelled:
        # The right edge would cut off what stands to the right of a point near it.
        side, offset = ("right", (-6, 4)) if place[0] > low + 0.8 * (high - low) else ("left", (6, -12))
        axes.annotate(
            label, place, xytext=offset, textcoords="offset points", fontsize=9, color="0.35", ha=side
        )
    for index, (name, seeds) in enumerate(levels.items(), len(groups)):
        axes.axhline(_mean_and_spread(seeds)[0], color=f"C{index % 10}", linestyle="--", lw=1.2, label=name)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    _finish(axes)
    save(figure, path)


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
    shares = _shares(counts).T
    # Up to the largest share: a policy that prefers nothing would be white else.
    image = _heat_map(axes, shares, np.nanmax(shares, initial=0.0) or 1.0)
    if rows is None:
        axes.set_xlabel("position t")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        # parse_math: a word such as "$" is text, not mathematics.
        axes.set_xticks(np.arange(len(rows)), labels=rows, rotation=60, ha="right", parse_math=False)
    axes.set_ylabel("chosen skip k")
    _label_skips(axes.yaxis, counts.shape[1])
    figure.colorbar(image, ax=axes, label="share of decisions")
    save(figure, path)


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
    scored = (truth >= 0) & (truth < num_actions)
    counts = np.zeros((num_actions, num_actions), np.int64)
    np.add.at(counts, (truth[scored], actions[scored]), 1)
    shares = _shares(counts)
    exact = f"{np.trace(counts) / counts.sum():.1%} of decisions exact" if counts.sum() else "no decisions"
    figure, axes = _figure(f"{title} ({exact})")
    image = _heat_map(axes, shares)
    axes.set_xlabel("chosen skip k")
    axes.set_ylabel("right skip k")
    _label_skips(axes.xaxis, num_actions)
    _label_skips(axes.yaxis, num_actions)
    _write_shares(axes, shares)
    figure.colorbar(image, ax=axes, label="share of decisions with that right skip")
    save(figure, path)


def confusion(
    counts: Int[np.ndarray, "classes classes"], classes: Sequence[str], path: str | Path, title: str
) -> None:
    """Draw which classes are predicted for each true class into a PNG file.

    Arguments:
        counts: how many examples of the class of the row are predicted as the class of the column.
        classes: the names of the classes.
        path: the PNG file.
        title: the title.
    """
    figure, axes = _figure(title)
    shares = _shares(counts)
    image = _heat_map(axes, shares)
    places = np.arange(len(classes))
    # parse_math: a name such as "$" is text, not mathematics.
    axes.set_xticks(places, labels=classes, rotation=60, ha="right", parse_math=False)
    axes.set_yticks(places, labels=classes, parse_math=False)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    _write_shares(axes, shares)
    figure.colorbar(image, ax=axes, label="share of examples of that class")
    save(figure, path)


def visited_positions(
    visited: Bool[np.ndarray, "examples time"],
    truth: Int[np.ndarray, "examples"],
    path: str | Path,
    title: str,
    note: str = "",
) -> None:
    """Draws which positions the chains of skips visit, against the position that is right, into a PNG file.

    The title gains the share of examples whose chain visits the right position.

    Arguments:
        visited: which positions the chain of each example visits, as `chains.visited` returns them.
        truth: the right position of each example; where it is not in 0 … time - 1 nothing is right, and the
            example is left out.
        path: the PNG file.
        title: the title.
        note: a line below the title, such as the name of the dataset.
    """
    scored = (truth >= 0) & (truth < visited.shape[1])
    visited, truth = visited[scored], truth[scored]
    examples = np.bincount(truth, minlength=1)  # a row for each position up to the last that is ever right
    counts = np.zeros((len(examples), visited.shape[1]), np.int64)
    np.add.at(counts, truth, visited)
    shares = _shares(counts, examples[:, None])
    right = visited[np.arange(len(truth)), truth]
    share = f"{right.mean():.1%} of chains visit the right position" if right.size else "no examples"
    figure, axes = _figure(f"{title} ({share})", note)
    image = _heat_map(axes, shares)
    axes.set_xlabel("position t")
    axes.set_ylabel("right position")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label="share of chains with that right position")
    save(figure, path)


def _write_shares(axes: Axes, shares: Float[np.ndarray, "rows columns"]) -> None:
    """Write the shares into the cells of a square heat map, where it has few rows."""
    if len(shares) > _MOST_LABELLED_SKIPS:
        return
    for row, column in np.argwhere(shares >= 0.005):
        share = shares[row, column]
        color = "white" if share > 0.5 else "black"
        axes.text(column, row, f"{share:.2f}", ha="center", va="center", fontsize=9, color=color)


def _figure(title: str, note: str = "") -> tuple[Figure, Axes]:
    """One pair of axes of 900 x 600 pixels, on no window system and unknown to pyplot."""
    figure = Figure(figsize=(9, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{title}\n" if note else title, fontsize=13)
    if note:
        axes.text(0.5, 1.02, note, transform=axes.transAxes, ha="center", va="bottom", color="0.35")
    return figure, axes


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG; letters that no font has here are named in one warning.

    Names of models, folders and corpora are text: a "$" in them begins no mathematics.
    """
    ticks = {
        label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()
    }
    for text in figure.findobj(Text):
        if text not in ticks:
            text.set_parse_math(False)
        if not text.get_text().isascii():
            text.set_fontfamily(font_families())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # Without the version of matplotlib in the file, equal plots are equal files.
        figure.savefig(path, format="png", metadata={"Software": None})
    missing: dict[str, None] = {}
    for warning in caught:
        glyph = _MISSING.match(str(warning.message))
        if glyph:
            missing[chr(int(glyph[1]))] = None
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if missing:
        warnings.warn(
            f"no font here has {' '.join(missing)}: boxes are drawn for them; install one, such as Noto Sans",
            stacklevel=3,
        )


@functools.cache
def font_families() -> list[str]:
    """Returns the usual font, and those installed that have other scripts."""
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *sorted(name for name in installed if _OTHER_SCRIPTS.search(name))]


def _finish(axes: Axes) -> None:
    """Grid, frame and legend of curves."""
    axes.grid(True, which="both", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def _mean_and_spread(value: Any) -> tuple[float, float]:
    seeds = np.atleast_1d(np.asarray(value, np.float64))
    with np.errstate(invalid="ignore"):  # a seed that diverged has no distance from the mean
        return float(seeds.mean()), float(seeds.std(ddof=1)) if seeds.size > 1 else 0.0


def _bands(K: int) -> list[tuple[int, int]]:
    """The first and the last k of each area: each k by itself; of many, bands that double."""
    if K <= _MOST_AREAS:
        return [(k, k) for k in range(1, K + 1)]
    lasts = [1]
    while lasts[-1] < K:
        lasts.append(min(2 * lasts[-1], K))
    return list(zip([1, *(last + 1 for last in lasts[:-1])], lasts, strict=True))


def _shares(counts: np.ndarray, totals: np.ndarray | None = None) -> np.ndarray:
    """Each row divided by its total, its sum if none is given; NaN, which is drawn blank, where that is 0."""
    totals = counts.sum(axis=1, keepdims=True) if totals is None else totals
    return np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)


def _heat_map(axes: Axes, shares: np.ndarray, most: float = 1.0) -> Any:
    colors = matplotlib.colormaps["Blues"].with_extremes(bad="0.93")
    return axes.imshow(shares, cmap=colors, vmin=0, vmax=most, aspect="auto", origin="lower")


def _label_skips(axis: Any, num_actions: int) -> None:
    stride = -(-num_actions // 20)
    ticks = np.arange(0, num_actions, stride)
    axis.set_ticks(ticks, labels=[str(tick + 1) for tick in ticks])


def _apart(values: Sequence[float | int], log: bool) -> list[float]:
    """The values, in order, without those whose numbers on an axis would run into the one before."""
    ticks: list[float] = []
    scale = np.log10 if log else np.asarray
    for value in sorted(set(map(float, values))):
        if not ticks or scale(value) - scale(ticks[-1]) >= 0.05 * (scale(max(values)) - scale(min(values))):
            ticks.append(value)
    return ticks


def _number(x: float) -> str:
    return EngFormatter(sep="")(x) if abs(x) >= _LARGE else f"{x:g}"


class _RoundNumbers(LogFormatter):
    """Labels between powers of ten as plain numbers, as many as there is room for."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _words(name: str) -> str:
    return name.replace("_", " ")
