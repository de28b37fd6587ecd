"""Show the skips at each word of a text: as a table, and as arcs in PNG files."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size

from dynskip_jax.analysis.plots import new_figure, save, skip_color
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.errors import needs

with needs("experiments"):
    from matplotlib.axes import Axes
    from matplotlib.ticker import NullFormatter

# Of each word, by the name of a model; NaN where there is none.
Probabilities = Mapping[str, Sequence[float]]

_LONGEST = 24  # cells of a word; the rest is cut

# Layout of the picture, in inches.
_ROOM = 7.8  # of a row of words
_CELL = 0.1
_SLOT = _ROOM / 14  # smallest width of a word
_MOST_ROWS = 30
_LEAST_WEIGHT = 0.05  # smaller attention weights are not drawn
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


def draw_arcs(
    reading: Reading, probabilities: Probabilities, path: str | Path, title: str, note: str = ""
) -> None:
    """Draw a reading into a PNG file: arcs above the words, probabilities below.

    Arcs of k = 1 are faint. With attention, an arc leads to every state with a weight of at least 5
    %, and its width shows the weight. A text is broken into rows; an arc goes on in the row above,
    or before the text. Of a very long text, the first rows are drawn. (Gui et al. 2019, Figure 6)
    """
    words = [_visible(word) for word in reading.words]
    # All words have a place on one long line, and each row shows a window of it. So arcs that cross
    # the end of a row continue in the next one.
    edges = np.cumsum([0.0, *(max(_CELL * cell_len(word) + 0.14, _SLOT) for word in words)])
    places = (edges[:-1] + edges[1:]) / 2
    arcs = []
    for t in range(len(words)):
        for k, weight in reading.reached(t, _LEAST_WEIGHT):
            # States before the text have places to the left of it.
            origin = places[t - k] if t >= k else (t - k + 0.5) * _SLOT
            arcs.append(_Arc(places[t], origin, k, weight))
    longest = max((arc.k for arc in arcs), default=1)
    likely = [p for given in probabilities.values() for p in given if p > 0]
    floor = 0.8 * 10 ** math.floor(math.log10(min([0.5, *likely])))

    rows = _rows(edges)[:_MOST_ROWS]
    room = max(edges[stop] - edges[start] for start, stop in rows)
    # Each row has a band of arcs and, below the words, one of probabilities.
    heights = [0.4 + 0.2 * min(longest, 5), 1.0 if probabilities else 0.01] * len(rows)
    figure, bands = new_figure(title, note, 1.2 + 0.5 * len(rows) + sum(heights), heights)
    for (start, stop), above, below in zip(rows, bands[::2], bands[1::2], strict=True):
        for axes in (above, below):
            axes.set_xlim(edges[start] - 0.18, edges[start] + room + 0.18)
        _draw_skips(above, arcs, longest)
        for word, place in zip(words[start:stop], places[start:stop], strict=True):
            how = dict(textcoords="offset points", size=10, ha="center", va="top")
            above.annotate(word, (place, 0), (0, -6), **how)
        given = {name: each[start:stop] for name, each in probabilities.items()}
        _draw_probabilities(below, places[start:stop], given, floor)
    if probabilities:
        figure.legend(*bands[1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    save(figure, path)


class _Arc(NamedTuple):
    """Half an ellipse from a word back to its origin, in inches; a choice has weight 1."""

    place: float
    origin: float
    k: int
    weight: float


def _rows(edges: np.ndarray) -> list[tuple[int, int]]:
    """Return the first word of each row, and that of the next row; words have these `edges`."""
    begins = [0]
    for t in range(len(edges) - 1):
        if edges[t + 1] - edges[begins[-1]] > _ROOM:
            begins.append(t)
    return list(zip(begins, [*begins[1:], len(edges) - 1], strict=True))


def _draw_skips(axes: Axes, arcs: Sequence[_Arc], longest: int) -> None:
    """Draw the arcs that are visible in a row, with a dot at the origin of a chosen k > 1."""
    axes.set_axis_off()
    axes.set_ylim(-0.05, 1.05)
    left, right = axes.get_xlim()
    angles = np.linspace(0, np.pi, 100)
    for arc in arcs:
        if arc.origin >= right or arc.place <= left:
            continue
        along = arc.place + (arc.origin - arc.place) * (1 - np.cos(angles)) / 2
        width = 1.0 if arc.k <= 1 else 2.0
        if arc.weight != 1:
            width = max(2 * width * arc.weight, 0.3)
        color = skip_color(arc.k)
        height = (arc.k / longest) ** 0.8
        axes.plot(along, height * np.sin(angles), color=color, linewidth=width)
        if arc.k > 1 and arc.weight == 1:
            axes.plot(arc.origin, 0, "o", color=color, markersize=4)


def _draw_probabilities(
    axes: Axes, places: np.ndarray, probabilities: Probabilities, floor: float
) -> None:
    """Draw the probabilities of a row's words on a logarithmic axis; 0 is drawn at `floor`."""
    if not probabilities:
        axes.set_axis_off()
        return
    axes.set_yscale("log", nonpositive="clip")
    axes.set_ylim(floor, 1.3)
    for marker, (name, given) in zip(
        _MARKERS * len(probabilities), probabilities.items(), strict=False
    ):
        axes.plot(places, given, marker=marker, markersize=5, linewidth=0.8, label=name)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(places, labels=[])
    axes.tick_params(labelsize=9, length=0)
    axes.set_ylabel("probability", size=9)
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.spines[:].set_visible(False)
