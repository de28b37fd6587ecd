"""Plot runs into PNG files: metrics as curves, and the skips that agents choose.

In all functions, `path` is that of the PNG file, and `note` is a line below the title.
"""

import functools
import io
import math
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from dynskip_jax.errors import needs
from dynskip_jax.storage.files import write_atomically

with needs("experiments"):
    import matplotlib
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager
    from matplotlib.text import Text
    from matplotlib.ticker import EngFormatter, MaxNLocator

_LINE_STYLES = ("-", "--", ":", "-.")
_MOST_LABELLED = 16  # with more rows, numbers do not fit into the cells of a heat map
_OTHER_SCRIPTS = re.compile(
    "CJK|Noto Sans|Gothic|Hei$|Micro Hei|Fallback|Arial Unicode|Hiragino|Malgun"
)
_LAST_COLOR = 20  # all k from here on have the same colour


@style.context("default")  # whatever a matplotlibrc says
def learning_curves(
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    x: str,
    y: Sequence[str],
    path: str | Path,
    title: str,
    *,
    log: bool = False,
) -> None:
    """Draw metrics over epochs or a setting: a colour for each model, a line style for each metric.

    `curves` has records of each model, such as those of `RunDir.records`; `x` and `y` are keys of
    records, which are left out without them. A value that is a list has one entry per seed: the
    curve is their mean, and a band shows one standard deviation (n - 1).
    """
    figure, axes = _figure(title)
    for index, (name, records) in enumerate(curves.items()):
        for metric, style in zip(y, _LINE_STYLES * len(y), strict=False):
            given = [record for record in records if x in record and metric in record]
            if not given:
                continue
            points = [(record[x], *_mean_and_spread(record[metric])) for record in given]
            at, mean, spread = np.array(sorted(points), np.float64).T
            color = f"C{index % 10}"
            label = name if len(y) == 1 else f"{name}, {_words(metric)}"
            marker = "o" if len(points) <= 30 else ""
            axes.plot(at, mean, style, markersize=3.5, color=color, label=label, marker=marker)
            axes.fill_between(at, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)
    axes.set(xlabel=_words(x), ylabel=", ".join(map(_words, y)))
    places = [point for line in axes.lines for point in line.get_xdata()]
    if all(place.is_integer() for place in places):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if max(places, default=0) >= 10_000:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    if log:
        axes.set_yscale("log")
    _finish(axes)
    save(figure, path)


def skip_color(k: int | float) -> tuple[float, float, float] | str:
    """Return the colour of skip k in all pictures: grey for 1, then blue, green, orange and red."""
    if k <= 1:
        return "0.72"
    place = 0.0  # on the map, from 0 for k = 2 to 1 for `_LAST_COLOR`
    if k > 2:
        place = min(math.log(k - 1 + 1e-9) / math.log(_LAST_COLOR - 1), 1.0)
    # The colours of the map are darkened, because its greens are hard to see on white.
    red, green, blue, _ = matplotlib.colormaps["turbo"](0.03 + 0.94 * place)
    return 0.85 * red, 0.85 * green, 0.85 * blue


# --- Heat maps ---


def action_distribution(
    counts: Int[np.ndarray, "rows K"],
    path: str | Path,
    title: str,
    note: str = "",
    *,
    rows: Sequence[str] | None = None,
) -> None:
    """Draw how often the agent chose each skip k at each position, or at the words `rows`.

    A row without counts is left blank.
    """
    shares = _shares(counts).T
    # The colours end at the largest fraction: otherwise a uniform policy would be almost white.
    most = np.nanmax(shares, initial=0.0) or 1.0
    labels = dict(
        x="" if rows else "position t", y="chosen skip k", x_names=rows, y_names=len(shares)
    )
    _heat_map(shares, path, title, note, what="share of decisions", most=most, **labels)


def action_against_truth(
    actions: Int[np.ndarray, "*shape"],
    truth: Int[np.ndarray, "*shape"],
    num_actions: int,
    path: str | Path,
    title: str,
    note: str = "",
) -> None:
    """Draw the chosen against the right skips, k - 1 = 0 … K - 1; other right ones are left out."""
    scored = (truth >= 0) & (truth < num_actions)
    counts = _counted(truth[scored], actions[scored], num_actions)
    exact = "no decisions"
    if counts.sum():
        exact = f"{np.trace(counts) / counts.sum():.1%} of decisions exact"
    labels = dict(x="chosen skip k", y="right skip k", x_names=num_actions, y_names=num_actions)
    what = "share of decisions with that right skip"
    _heat_map(_shares(counts), path, f"{title} ({exact})", note, what=what, write=True, **labels)


@style.context("default")  # whatever a matplotlibrc says
def visited_positions(
    visited: Bool[np.ndarray, "examples time"],
    truth: Int[np.ndarray, "examples"],
    path: str | Path,
    title: str,
    note: str = "",
) -> None:
    """Draw which positions chains of skips visit (`statistics.visited`), and the right one."""
    counts = np.zeros((truth.max() + 1, visited.shape[1]), np.int64)
    np.add.at(counts, truth, visited)
    shares = _shares(counts, np.bincount(truth)[:, None])
    hits = visited[np.arange(len(truth)), truth].mean()
    title = f"{title} ({hits:.1%} of chains visit the right position)"
    what = "share of chains with that right position"
    _heat_map(shares, path, title, note, x="position t", y="right position", what=what)


@style.context("default")  # whatever a matplotlibrc says
def _heat_map(
    shares: Float[np.ndarray, "rows columns"],
    path: str | Path,
    title: str,
    note: str = "",
    *,
    what: str,
    x: str,
    y: str,
    x_names: Sequence[str] | int | None = None,
    y_names: Sequence[str] | int | None = None,
    most: float = 1.0,
    write: bool = False,
) -> None:
    """Draw fractions, NaN as blank, up to `most`; `write` adds numbers, if they fit.

    `what` describes the fractions. Names are those of columns and rows; a number n stands for 1 to
    n.
    """
    figure, axes = _figure(title, note)
    colors = matplotlib.colormaps["Blues"].with_extremes(bad="0.93")
    image = axes.imshow(shares, cmap=colors, vmin=0, vmax=most, aspect="auto", origin="lower")
    for axis, names in ((axes.xaxis, x_names), (axes.yaxis, y_names)):
        if names is None:
            axis.set_major_locator(MaxNLocator(integer=True))
        elif isinstance(names, int):
            at = np.arange(0, names, -(-names // 20))
            axis.set_ticks(at, labels=at + 1)
        else:
            turned = axis is axes.xaxis and max(map(len, names), default=0) > 2
            style = dict(rotation=60, ha="right") if turned else {}
            axis.set_ticks(np.arange(len(names)), labels=names, parse_math=False, **style)
    if write and len(shares) <= _MOST_LABELLED:
        for row, column in np.argwhere(shares >= 0.005):
            share = shares[row, column]
            color = "white" if share > 0.5 else "black"
            style = dict(ha="center", va="center", fontsize=9, color=color)
            axes.text(column, row, f"{share:.2f}", **style)
    axes.set(xlabel=x, ylabel=y)
    figure.colorbar(image, ax=axes, label=what)
    save(figure, path)


def _counted(rows: Any, columns: Any, size: int) -> Int[np.ndarray, "size size"]:
    """Return how often each pair of a row and a column occurs."""
    counts = np.zeros((size, size), np.int64)
    np.add.at(counts, (rows, columns), 1)
    return counts


def _shares(counts: np.ndarray, totals: np.ndarray | None = None) -> np.ndarray:
    """Return each row divided by its total (default: its sum); NaN where the total is 0."""
    if totals is None:
        totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)


# --- Figures ---


def _figure(title: str, note: str = "") -> tuple[Figure, Axes]:
    """Return a figure of 900 x 600 pixels, which needs no window system, and its axes."""
    figure = Figure(figsize=(9, 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_title(f"{title}\n" if note else title, fontsize=13)
    if note:
        axes.text(0.5, 1.02, note, transform=axes.transAxes, ha="center", va="bottom", color="0.35")
    return figure, axes


def save(figure: Figure, path: str | Path) -> None:
    """Write or replace a PNG file atomically.

    "$" does not start a formula, because it may occur in names of models, folders and corpora.
    """
    ticks = set()
    for axes in figure.axes:
        ticks |= {*axes.xaxis.get_ticklabels(), *axes.yaxis.get_ticklabels()}
    for text in figure.findobj(Text):
        if text not in ticks:
            text.set_parse_math(False)
        if not text.get_text().isascii():
            text.set_fontfamily(font_families())
    data = io.BytesIO()
    with warnings.catch_warnings():
        # Boxes are drawn for characters that no font has.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        # Without the version of Matplotlib in the metadata, equal plots give equal files.
        figure.savefig(data, format="png", metadata={"Software": None})
    Path(path).parent.mkdir(exist_ok=True)
    write_atomically(Path(path), data.getvalue())


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
    if seeds.size == 1:
        return float(seeds[0]), 0.0
    with np.errstate(invalid="ignore"):  # infinite values of a diverged seed have no deviation
        return float(seeds.mean()), float(seeds.std(ddof=1))


def _words(name: str) -> str:
    return name.replace("_", " ")
