"""Show the skips at each word of a text: as a table, and as arcs in PNG files."""

import itertools
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size

from dynskip_jax.analysis.plots import save, skip_color
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.errors import needs

with needs("experiments"):
    from matplotlib import style
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.gridspec import GridSpec
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

# Of each word, by the name of a model; NaN where there is none.
Probabilities = Mapping[str, Sequence[float]]

_LONGEST = 24  # cells of a word; the rest is cut

# Layout of the picture, in inches; font sizes in points.
_WIDTH = 9.0
_MARGIN = 0.7
_LINE = 0.26
_LETTERS = 10.0
_ROOM = _WIDTH - 2 * _MARGIN
_SLOT = _ROOM / 14  # smallest width of a word
_MOST_ROWS = 30
_LEAST_WEIGHT = 0.05  # smaller attention weights are not drawn
_MOST_SKIPS = 8  # in the legend
_MARKERS = "oDs^vPX*"


def table_of_choices(
    reading: Reading, probabilities: Probabilities
) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of a table, with a row for each word.

    Its columns are the word, k, the probability or weight of k, the word whose state entered, and
    the probability from each model.
    """
    words = [_visible(word) for word in reading.words]
    rows = []
    for t, (word, k) in enumerate(zip(words, reading.skips, strict=True)):
        row = [word, str(k or "")]
        if reading.weights is not None:
            row.append(f"{reading.weights[t][k - 1]:.2f}" if k else "")
        if k == 0:
            row.append("")
        else:
            row.append(words[t - k] if t >= k else "(before)")
        for given in probabilities.values():
            row.append("-" if math.isnan(given[t]) else f"{given[t]:.3g}")
        rows.append(row)

    headings = ["word", "k"]
    if reading.weights is not None:
        headings.append("weight" if reading.is_attention else "p(k)")
    return [*headings, "from", *probabilities], rows


def _visible(word: str) -> str:
    """Return a word of at most 24 cells with visible spaces and escaped unprintable characters."""
    word = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in word).replace(" ", "␣")
    if cell_len(word) <= _LONGEST:
        return word
    return set_cell_size(word, _LONGEST - 1).rstrip() + "…"


@style.context("default")  # whatever a matplotlibrc says
def draw_arcs(
    reading: Reading, probabilities: Probabilities, path: str | Path, title: str, note: str = ""
) -> None:
    """Draw a reading into a PNG file: arcs above the words, probabilities below.

    Arcs of k = 1 are faint. With attention, an arc leads to every state with a weight of at least 5
    %, and its width shows the weight. A text is broken into rows, and a triangle points to where an
    arc goes on: in the row above, or before the text. Of a very long text, the first rows are
    drawn. (Gui et al. 2019, Figure 6)
    """
    words = [_visible(word) for word in reading.words]
    # All words have a place on one long line, and each row shows a window of it. So arcs that cross
    # the end of a row continue in the next one.
    edges = np.cumsum([0.0, *(max(_text_width(word) + 0.14, _SLOT) for word in words)])
    places = (edges[:-1] + edges[1:]) / 2
    arcs = []
    for t in range(len(words)):
        for k, weight in reading.reached(t, _LEAST_WEIGHT):
            # States before the text have places to the left of it.
            origin = places[t - k] if t >= k else (t - k + 0.5) * _SLOT
            arcs.append(_Arc(places[t], origin, k, weight))
    rows = _rows(edges)
    if len(rows) > _MOST_ROWS:
        rows = rows[:_MOST_ROWS]
        note = f"{note}; the first {rows[-1][1]} words".removeprefix("; ")
    used = sorted({arc.k for arc in arcs})
    longest = max(used, default=1)
    shown = {used[round(i)] for i in np.linspace(0, len(used) - 1, min(len(used), _MOST_SKIPS))}
    keys = [Line2D([], [], label=f"k = {k}", **_skip_style(k)) for k in sorted(shown)]
    keys += [Line2D([], [], label=name, **_model_style(i)) for i, name in enumerate(probabilities)]
    # Of a row's bands: arcs, words, probabilities, and a space.
    below = 0.95 if probabilities else 0.01
    heights = [0.35 + 0.2 * min(longest, 5), 0.35, below, 0.3]
    figure, grid = _figure([title, note], keys, heights * len(rows))
    likely = [p for given in probabilities.values() for p in given if p > 0]
    floor = 0.8 * 10 ** math.floor(math.log10(min([0.5, *likely])))
    for row, (start, stop) in enumerate(rows):
        above, below = (figure.add_subplot(grid[4 * row + band]) for band in (0, 2))
        for axes in (above, below):
            axes.set_xlim(edges[start] - 0.18, edges[stop] + 0.18)
        _draw_skips(above, arcs, longest)
        for word, place in zip(words[start:stop], places[start:stop], strict=True):
            how = dict(textcoords="offset points", size=_LETTERS, ha="center", va="top")
            above.annotate(word, (place, 0), (0, -6), parse_math=False, **how)
        given = {name: each[start:stop] for name, each in probabilities.items()}
        _draw_probabilities(below, places[start:stop], given, floor)
    save(figure, Path(path))


class _Arc(NamedTuple):
    """Half an ellipse from a word back to its origin, in inches; a choice has weight 1."""

    place: float
    origin: float
    k: int
    weight: float

    def height(self, place: float | np.ndarray, longest: int) -> Any:
        """Return the height at some place, where an arc of k = `longest` is 1 high."""
        middle = (self.place + self.origin) / 2
        half = (self.place - self.origin) / 2
        return (self.k / longest) ** 0.8 * np.sqrt(
            np.clip(1 - ((place - middle) / half) ** 2, 0, 1)
        )


def _text_width(text: str) -> float:
    """Return the width of a word in inches."""
    renderer = FigureCanvasAgg(Figure(dpi=100)).get_renderer()
    known = "".join(c if c.isascii() else "W" * cell_len(c) for c in text)  # no font may have it
    return (
        renderer.get_text_width_height_descent(known, FontProperties(size=_LETTERS), False)[0] / 100
    )


def _rows(edges: np.ndarray) -> list[tuple[int, int]]:
    """Return the first word of each row, and that of the next row; words have these `edges`.

    There are as few rows as possible, and they are about equally long.
    """

    def starts(room: float) -> list[int]:
        found = [0]
        for t in range(len(edges) - 1):
            if edges[t + 1] - edges[found[-1]] > room + 1e-6:
                found.append(t)
        return found

    fewest = len(starts(_ROOM))
    rooms = np.linspace(edges[-1] / fewest, _ROOM, 50)
    begins = next(found for found in map(starts, rooms) if len(found) == fewest)
    return list(zip(begins, [*begins[1:], len(edges) - 1], strict=True))


def _figure(
    heads: Sequence[str], keys: Sequence[Line2D], heights: Sequence[float]
) -> tuple[Figure, GridSpec]:
    """Return a figure with a heading and a legend, and its bands of these heights in inches."""
    lines = [*itertools.chain(*(textwrap.wrap(text, 90) for text in heads))]
    longest = max((cell_len(key.get_label()) for key in keys), default=0)
    ncols = max(1, int(_WIDTH / (0.8 + 0.09 * longest)))
    head = _LINE * (len(lines) + -(-len(keys) // ncols)) + 0.4
    height = head + sum(heights)
    figure = Figure(figsize=(_WIDTH, height), dpi=150)
    FigureCanvasAgg(figure)
    for number, line in enumerate(lines):
        figure.text(0.5, 1 - (0.15 + number * _LINE) / height, line, ha="center", va="top", size=11)
    how = dict(loc="upper center", bbox_to_anchor=(0.5, 1 - (0.15 + len(lines) * _LINE) / height))
    figure.legend(handles=keys, ncols=ncols, frameon=False, fontsize=9, **how)
    sides = dict(left=_MARGIN / _WIDTH, right=1 - _MARGIN / _WIDTH, bottom=0, top=1 - head / height)
    return figure, figure.add_gridspec(len(heights), 1, height_ratios=heights, hspace=0, **sides)


def _draw_skips(axes: Axes, arcs: Sequence[_Arc], longest: int) -> None:
    """Draw the arcs that are visible in a row, with a dot at the origin of a chosen k > 1."""
    axes.set_axis_off()
    axes.set_ylim(-0.05, 1.05)
    left, right = axes.get_xlim()
    for arc in arcs:
        if arc.origin >= right or arc.place <= left:
            continue
        style = _skip_style(arc.k, arc.weight)
        shares = (1 - np.cos(np.linspace(0, np.pi, 100))) / 2
        along = arc.place + (arc.origin - arc.place) * shares
        axes.plot(along, arc.height(along, longest), **style)
        if arc.k > 1 and arc.weight == 1:
            axes.plot(arc.origin, 0, "o", color=style["color"], markersize=4)
        for end in (left, right):
            if arc.origin < end < arc.place:
                how = dict(color=style["color"], markersize=2 + 3 * arc.weight, clip_on=False)
                axes.plot(end, arc.height(end, longest), "<", **how)


def _draw_probabilities(
    axes: Axes, places: np.ndarray, probabilities: Probabilities, floor: float
) -> None:
    """Draw the probabilities of a row's words on a logarithmic axis; 0 is drawn at `floor`."""
    if not probabilities:
        axes.set_axis_off()
        return
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(floor, 1.3)
    for index, given in enumerate(probabilities.values()):
        axes.plot(places, given, **_model_style(index))
    axes.yaxis.set_major_locator(LogLocator(numticks=4))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(places, labels=[])
    axes.tick_params(labelsize=9, length=0)
    axes.set_ylabel("probability", size=9)
    axes.yaxis.set_label_coords(-0.07, 0.5)
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _skip_style(k: int, weight: float = 1.0) -> dict[str, Any]:
    width = 1.0 if k <= 1 else 2.0
    if weight != 1:
        width = max(2 * width * weight, 0.3)
    return dict(color=skip_color(k), linewidth=width)


def _model_style(index: int) -> dict[str, Any]:
    return dict(
        color=f"C{index % 10}", marker=_MARKERS[index % len(_MARKERS)], markersize=5, linewidth=0.8
    )
