"""Plot runs into PNG files: learning curves, metrics over settings, and the skips that agents choose."""

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
_MOST_LABELLED_SKIPS = 16  # with more, numbers do not fit into the cells of a K x K heat map
_MISSING = re.compile(r"Glyph (\d+) .*missing from")
_OTHER_SCRIPTS = re.compile("CJK|Noto Sans|Gothic|Hei$|Micro Hei|Fallback|Arial Unicode|Hiragino|Malgun")
_LAST_COLOR = 20  # all k from here on have the same colour
_MOST_AREAS = 20  # up to this K, each k has its own area
_LARGE = 10_000  # from here on, axes abbreviate thousands and millions as k and M


def learning_curves(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    x: str,
    y: Sequence[str],
    path: str | Path,
    title: str,
    *,
    log: bool = False,
) -> None:
    """Draw metrics of one or several models as curves into a PNG file.

    A value that is a list has one entry per seed. The curve is their mean, and a band shows one standard
    deviation (n - 1) on either side. Records without `x` or without the metric are left out.

    Args:
        curves: Records of each model, by its name, as `RunDir.records` returns them.
        x: Key of the horizontal axis, such as "epoch" or "examples".
        y: Keys of the metrics. Models differ by colour, metrics by line style.
        path: Path of the PNG file.
        title: Title of the plot.
        log: Whether the vertical axis is logarithmic.
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
    """Draw the fraction of each skip and the policy's entropy over the epochs into a PNG file.

    The fractions are means over the seeds, drawn as stacked areas. With K > 20, the areas are ranges of k of
    doubling size: 1, 2, 3 to 4, 5 to 8 and so on. The entropy is drawn as the mean over the seeds, with a
    band of one standard deviation (n - 1). A dotted line marks log K, the entropy of the uniform policy.

    Args:
        records: Records as `RunDir.records` returns them. All have "epoch" and both metrics.
        shares: Key of the fractions, (seeds, K) in each record.
        entropy: Key of the entropy, in nats, (seeds,) in each record.
        path: Path of the PNG file.
        title: Title of the plot.
        note: Line below the title, such as the name of the dataset.
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
        # Ranges of k are coloured by their index, because all k from 20 on would have the same colour.
        among = 1 + (_LAST_COLOR - 1) ** ((column - 1) / max(1, len(bands) - 2))
        shade = first if K <= _MOST_AREAS or column == 0 else among
        style = dict(color=skip_color(shade), label=f"k = {which}")
        # A single epoch has no area, so it is drawn as a bar.
        if len(records) == 1:
            above.bar(at, tops[:, column] - bottom, 0.5, bottom, **style)
        else:
            above.fill_between(at, bottom, tops[:, column], lw=0.4, ec="white", **style)
    above.set_ylim(0, 1)
    above.set_ylabel("share of choices")
    handles, labels = above.get_legend_handles_labels()
    # The legend has the order of the stacked areas: the last k is on top.
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
    """Return the colour of skip k. It is the same in all pictures and does not depend on K.

    The colour is grey for k = 1. From k = 2 it goes from dark blue over green and orange to dark red at k =
    20.
    """
    if k <= 1:
        return "0.72"
    place = min(math.log(k - 1) / math.log(_LAST_COLOR - 1), 1.0)
    # The colours of the map are darkened, because its greens are hard to see on white.
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
    """Draw a metric over the values of a setting, such as a length, into a PNG file.

    A line connects the means over the seeds, with bars of one standard deviation (n - 1) on either side.
    Faint points are single seeds.

    Args:
        curves: For each model, by its name, the metric of each seed at each value. A value without seeds is
            left out.
        values: Values of the setting.
        path: Path of the PNG file.
        title: Title of the plot.
        x_label: Name of the setting.
        y_label: Name of the metric.
        log_x: Whether the horizontal axis is logarithmic. If so, all values must be positive.
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
    """Draw one metric against another, such as accuracy over the fraction of tokens read, into a PNG file.

    Each point is at the means over the seeds, with bars of one standard deviation (n - 1). A line connects
    the points of a group.

    Args:
        groups: Points of each group, by its name. A point is a label, the first metric of each seed and the
            second metric of each seed.
        path: Path of the PNG file.
        title: Title of the plot.
        x_label: Name of the first metric.
        y_label: Name of the second metric.
        levels: Second metric of each seed, by name, of models without the first metric. Each is drawn as a
            dashed line at the mean.
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
        # Labels of points near the right edge are on their left, so that the edge does not cut them.
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
    """Draw how often the agent chose each skip at each position, or at each word, into a PNG file.

    The fractions of a row of `counts` add up to 1. A row without counts is left blank.

    Args:
        counts: Number of times that the skip k = column + 1 was chosen at the position (or word) of the row.
        path: Path of the PNG file.
        title: Title of the plot.
        note: Line below the title, such as the name of the dataset.
        rows: Word of each row. By default rows are the positions 0, 1, …
    """
    figure, axes = _figure(title, note)
    shares = _shares(counts).T
    # The colours end at the largest fraction: otherwise a uniform policy would be almost white.
    image = _heat_map(axes, shares, np.nanmax(shares, initial=0.0) or 1.0)
    if rows is None:
        axes.set_xlabel("position t")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        # parse_math=False: "$" in a word does not start a formula.
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
    """Draw the chosen skips against the right skips as a heat map into a PNG file.

    The fraction of exactly right decisions is appended to the title.

    Args:
        actions: Chosen actions, 0 … K - 1. Action a is the skip k = a + 1.
        truth: Right actions. Decisions whose right action is outside of 0 … K - 1 are left out.
        num_actions: K.
        path: Path of the PNG file.
        title: Title of the plot.
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
    """Draw a confusion matrix, normalized over each true class, into a PNG file.

    Args:
        counts: Number of examples of the row's class that are predicted as the column's class.
        classes: Names of the classes.
        path: Path of the PNG file.
        title: Title of the plot.
    """
    figure, axes = _figure(title)
    shares = _shares(counts)
    image = _heat_map(axes, shares)
    places = np.arange(len(classes))
    # parse_math=False: "$" in a name does not start a formula.
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
    """Draw the positions that chains of skips visit, against the right position, into a PNG file.

    The fraction of examples whose chain visits the right position is appended to the title.

    Args:
        visited: True at the positions that the chain of each example visits, as `chains.visited` returns
            them.
        truth: Right position of each example. Examples whose right position is outside of 0 … time - 1 are
            left out.
        path: Path of the PNG file.
        title: Title of the plot.
        note: Line below the title, such as the name of the dataset.
    """
    scored = (truth >= 0) & (truth < visited.shape[1])
    visited, truth = visited[scored], truth[scored]
    examples = np.bincount(truth, minlength=1)  # one row per position, up to the last right one
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
    """Write the fractions into the cells of a square heat map, unless it has too many rows."""
    if len(shares) > _MOST_LABELLED_SKIPS:
        return
    for row, column in np.argwhere(shares >= 0.005):
        share = shares[row, column]
        color = "white" if share > 0.5 else "black"
        axes.text(column, row, f"{share:.2f}", ha="center", va="center", fontsize=9, color=color)


def _figure(title: str, note: str = "") -> tuple[Figure, Axes]:
    """Return a figure of 900 x 600 pixels and its axes; it needs no window system and is not in pyplot."""
    figure = Figure(figsize=(9, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(f"{title}\n" if note else title, fontsize=13)
    if note:
        axes.text(0.5, 1.02, note, transform=axes.transAxes, ha="center", va="bottom", color="0.35")
    return figure, axes


def save(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, with one warning for all characters that no installed font has.

    "$" does not start a formula, because it may occur in names of models, folders and corpora.
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
        # Without the version of Matplotlib in the metadata, equal plots give equal files.
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
    """Return the default font, followed by the installed fonts that contain other scripts."""
    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *sorted(name for name in installed if _OTHER_SCRIPTS.search(name))]


def _finish(axes: Axes) -> None:
    """Add a grid and a legend to the axes, and remove the upper and the right edge of the frame."""
    axes.grid(True, which="both", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)


def _mean_and_spread(value: Any) -> tuple[float, float]:
    seeds = np.atleast_1d(np.asarray(value, np.float64))
    with np.errstate(invalid="ignore"):  # infinite values of a diverged seed have no deviation
        return float(seeds.mean()), float(seeds.std(ddof=1)) if seeds.size > 1 else 0.0


def _bands(K: int) -> list[tuple[int, int]]:
    """Return the first and the last k of each area: one k each if K is small, else ranges that double."""
    if K <= _MOST_AREAS:
        return [(k, k) for k in range(1, K + 1)]
    lasts = [1]
    while lasts[-1] < K:
        lasts.append(min(2 * lasts[-1], K))
    return list(zip([1, *(last + 1 for last in lasts[:-1])], lasts, strict=True))


def _shares(counts: np.ndarray, totals: np.ndarray | None = None) -> np.ndarray:
    """Return each row divided by its total (default: its sum); NaN, drawn blank, where the total is 0."""
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
    """Return the sorted values, without those whose tick labels would overlap with the one before."""
    ticks: list[float] = []
    scale = np.log10 if log else np.asarray
    for value in sorted(set(map(float, values))):
        if not ticks or scale(value) - scale(ticks[-1]) >= 0.05 * (scale(max(values)) - scale(min(values))):
            ticks.append(value)
    return ticks


def _number(x: float) -> str:
    return EngFormatter(sep="")(x) if abs(x) >= _LARGE else f"{x:g}"


class _RoundNumbers(LogFormatter):
    """Formatter of ticks between powers of ten: plain numbers, as many as there is space for."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return f"{x:g}" if super().__call__(x, pos) else ""


def _words(name: str) -> str:
    return name.replace("_", " ")
