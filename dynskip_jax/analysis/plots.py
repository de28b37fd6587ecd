"""Plot runs into PNG files: metrics as curves, and the skips that agents choose.

In all functions, `path` is that of the PNG file, and `note` is a line below the title.
"""

import io
import math
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
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.ticker import MaxNLocator

_LINE_STYLES = ("-", "--", ":", "-.")
_LAST_COLOR = 20  # all k from here on have the same colour


def new_figure(
    title: str, note: str = "", height: float = 6.0, heights: Sequence[float] = (1.0,)
) -> tuple[Figure, Sequence[Axes]]:
    """Return a figure, 900 pixels wide, and its axes below each other, with these parts of it."""
    figure = Figure(figsize=(9, height), dpi=100, layout="constrained")
    axes = figure.subplots(len(heights), height_ratios=heights, squeeze=False)[:, 0]
    figure.suptitle(title, fontsize=13)
    axes[0].set_title(note, fontsize=10, color="0.35")
    return figure, axes


def save(figure: Figure, path: str | Path) -> None:
    """Write or replace a PNG file atomically."""
    # Two "$" in a name of a model or a corpus, or in a word, are no formula.
    for text in figure.findobj(Text):
        if "$" in text.get_text():
            text.set_parse_math(False)
    data = io.BytesIO()
    with warnings.catch_warnings():
        # Boxes are drawn for characters that the font lacks.
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        # Without the version of Matplotlib in the metadata, equal plots give equal files.
        figure.savefig(data, format="png", metadata={"Software": None})
    Path(path).parent.mkdir(exist_ok=True)
    write_atomically(Path(path), data.getvalue())


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
    figure, (axes,) = new_figure(title)
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
    if all(point.is_integer() for line in axes.lines for point in line.get_xdata()):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if log:
        axes.set_yscale("log")
    axes.grid(True, which="both", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    save(figure, path)


def _mean_and_spread(value: Any) -> tuple[float, float]:
    seeds = np.atleast_1d(np.asarray(value, np.float64))
    if seeds.size == 1:
        return float(seeds[0]), 0.0
    with np.errstate(invalid="ignore"):  # infinite values of a diverged seed have no deviation
        return float(seeds.mean()), float(seeds.std(ddof=1))


def _words(name: str) -> str:
    return name.replace("_", " ")


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
    figure, axes = _heat_map(shares, title, note, what="share of decisions", most=most, y_start=1)
    axes.set(xlabel="" if rows else "position t", ylabel="chosen skip k")
    if rows:
        axes.set_xticks(range(len(rows)), labels=rows, rotation=60, ha="right", parse_math=False)
    save(figure, path)


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
    counts = np.zeros((num_actions, num_actions), np.int64)
    np.add.at(counts, (truth[scored], actions[scored]), 1)
    exact = "no decisions"
    if counts.sum():
        exact = f"{np.trace(counts) / counts.sum():.1%} of decisions exact"
    what = "share of decisions with that right skip"
    title = f"{title} ({exact})"
    figure, axes = _heat_map(_shares(counts), title, note, what=what, x_start=1, y_start=1)
    axes.set(xlabel="chosen skip k", ylabel="right skip k")
    save(figure, path)


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
    figure, axes = _heat_map(shares, title, note, what=what)
    axes.set(xlabel="position t", ylabel="right position")
    save(figure, path)


def _heat_map(
    shares: Float[np.ndarray, "rows columns"],
    title: str,
    note: str,
    *,
    what: str,
    x_start: int = 0,
    y_start: int = 0,
    most: float = 1.0,
) -> tuple[Figure, Axes]:
    """Draw fractions, NaN as blank, up to `most`; `what` describes them.

    Columns and rows are counted from `x_start` and `y_start`.
    """
    figure, (axes,) = new_figure(title, note)
    colors = matplotlib.colormaps["Blues"].with_extremes(bad="0.93")
    rows, columns = shares.shape
    sides = (x_start - 0.5, x_start + columns - 0.5, y_start - 0.5, y_start + rows - 0.5)
    how = dict(cmap=colors, vmin=0, vmax=most, aspect="auto", origin="lower", extent=sides)
    image = axes.imshow(shares, **how)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.colorbar(image, ax=axes, label=what)
    return figure, axes


def _shares(counts: np.ndarray, totals: np.ndarray | None = None) -> np.ndarray:
    """Return each row divided by its total (default: its sum); NaN where the total is 0."""
    if totals is None:
        totals = counts.sum(axis=1, keepdims=True)
    return np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)
