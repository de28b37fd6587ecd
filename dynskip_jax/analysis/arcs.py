"""Show the skips at each word of a text: as brackets in a terminal, and as arcs in PNG files."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.cells import cell_len, set_cell_size

from dynskip_jax.analysis.plots import save, skip_color
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.extras import needs

with needs("experiments"):
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

Probabilities = Mapping[str, Sequence[float]]  # of each word, by the name of a model; NaN where there is none

_LONGEST = 24  # cells of a word; the rest is cut
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8  # bits of the lines that leave a cell
_GLYPHS = " ╵╷│╴╯╮┤╶╰╭├─┴┬┼"  # by the sum of these bits

# Layout of the picture, in inches; font sizes in points.
_WIDTH, _MARGIN, _LINE, _LETTERS = 9.0, 0.7, 0.26, 10.0
_MOST_WORDS, _MOST_ROWS = 14, 30  # words in a row, rows of a picture
_LEAST_WEIGHT = 0.05  # smaller attention weights are not drawn
_MOST_SKIPS = 8  # in the legend
_MARKERS = "oDs^vPX*"


# --- Terminal ---


def arcs_text(reading: Reading, probabilities: Probabilities, width: int = 100) -> str:
    """Format a reading for a terminal: one line per word, with brackets that lead up to each skip's origin.

    Lines that end in "⋮" come from before the text, and an interrupted line passes below another one.
    Brackets are left out if the lines would be longer than `width`. The columns to the right of a word are k,
    its probability or weight, the word whose state entered, and the probability from each model.
    """
    skips = list(reading.skips)
    words = [_visible(word) for word in reading.words]
    origins = ["" if k == 0 else words[t - k] if t >= k else "(before)" for t, k in enumerate(skips)]
    columns = [["word", *words], ["k", *(str(k or "") for k in skips)]]
    if reading.weights is not None:
        likely = [f"{w[k - 1]:.2f}" if k else "" for k, w in zip(skips, reading.weights, strict=True)]
        columns.append(["weight" if reading.is_attention else "p(k)", *likely])
    columns.append(["from", *origins])
    for name, each in probabilities.items():
        columns.append([name, *("-" if math.isnan(p) else f"{p:.3g}" for p in each)])
    columns = [_aligned(column, left=column[0] in ("word", "from")) for column in columns]
    rows = ["  ".join(cells).rstrip() for cells in zip(*columns, strict=True)]
    brackets = _brackets(skips)
    edge = max(map(len, brackets)) + 1
    if edge + max(map(cell_len, rows)) <= width:
        rows = [f"{bracket:{edge}}{row}".rstrip() for bracket, row in zip(brackets, rows, strict=True)]
    return "\n".join(rows)


def _visible(word: str) -> str:
    """Return a word of at most 24 cells with visible spaces and escaped unprintable characters."""
    word = "".join("␣" if c == " " else c if c.isprintable() else ascii(c)[1:-1] for c in word)
    return word if cell_len(word) <= _LONGEST else set_cell_size(word, _LONGEST - 1).rstrip() + "…"


def _aligned(cells: Sequence[str], *, left: bool) -> list[str]:
    size = max(map(cell_len, cells))
    return [set_cell_size(cell, size) if left else " " * (size - cell_len(cell)) + cell for cell in cells]


def _brackets(skips: Sequence[int]) -> list[str]:
    """Return the brackets to the left of the heading and of each word; skips to one state share a line."""
    ends = {max(t - k, 0): t for t, k in enumerate(skips, 1) if k > 1}  # row of the origin → last row
    lanes: dict[int, int] = {}
    taken: list[set[int]] = []
    # Shorter lines are closer to the words, so that fewer horizontal lines pass below vertical ones.
    for start, end in sorted(ends.items(), key=lambda line: (line[1] - line[0], line)):
        rows = set(range(start, end + 1))
        lane = next((lane for lane, used in enumerate(taken) if not used & rows), len(taken))
        taken[lane : lane + 1] = [rows.union(*taken[lane : lane + 1])]
        lanes[start] = lane
    side = 2 * len(taken)
    cells = np.zeros((len(skips) + 1, side + 1), int)
    for start, end in ends.items():
        column = side - 2 * (lanes[start] + 1)
        cells[start:end, column] |= _DOWN
        cells[start + 1 : end + 1, column] |= _UP
    joints = [(row, max(t - k, 0)) for t, k in enumerate(skips, 1) if k > 1 for row in (t, max(t - k, 0))]
    for row, start in joints:
        cells[row, side - 2 * (lanes[start] + 1)] |= _RIGHT
    for row, start in joints:
        between = cells[row, side - 2 * lanes[start] - 1 : side]
        between[(between & (_UP | _DOWN) == 0) | (between & _RIGHT > 0)] |= _LEFT | _RIGHT
        cells[row, side] |= _LEFT
    for t, k in enumerate(skips, 1):
        if k == 1:
            cells[t - 1, side] |= _DOWN
            cells[t, side] |= _UP
    heading = "".join("⋮" if cell & _DOWN else " " for cell in cells[0])
    return [heading, *("".join(_GLYPHS[cell] for cell in row) for row in cells[1:])]


# --- Picture ---


def draw_arcs(
    reading: Reading, probabilities: Probabilities, path: str | Path, title: str, note: str = ""
) -> None:
    """Draw a reading into a PNG file: arcs above the words, probabilities below.

    Arcs of k = 1 are faint. With attention, an arc leads to every state with a weight of at least 5 %, and
    its width shows the weight. A text is broken into rows, and a triangle marks where an arc continues in
    another one. Of a very long text, the first rows are drawn.

    Source: Gui et al. 2019, "Long Short-Term Memory with Dynamic Skip Connections", Figure 6.
    """
    words = [_visible(word) for word in reading.words]
    # All words have a place on one long line, and each row shows a window of it. So arcs that cross the end
    # of a row continue in the next one.
    room = _WIDTH - 2 * _MARGIN
    slots = [max(_text_width(word) + 0.14, room / _MOST_WORDS) for word in words]
    edges = np.concatenate([[0.0], np.cumsum(slots)])
    places = (edges[:-1] + edges[1:]) / 2
    arcs = [
        _Arc(places[t], places[t - k] if t >= k else (t - k + 0.5) * room / _MOST_WORDS, k, weight)
        for t in range(len(words))
        for k, weight in reading.reached(t, _LEAST_WEIGHT)
    ]
    starts = [0]
    for t in range(len(words)):
        if edges[t + 1] - edges[starts[-1]] > room + 1e-6:
            starts.append(t)
    rows = list(zip(starts, [*starts[1:], len(words)], strict=True))
    if len(rows) > _MOST_ROWS:
        note = f"{note}; the first {rows[_MOST_ROWS][0]} words".removeprefix("; ")
    _draw_rows(Path(path), [title, note], words, rows[:_MOST_ROWS], edges, arcs, probabilities)


class _Arc(NamedTuple):
    """Half an ellipse from a word back to its origin, at places in inches; `weight` is 1 for a choice."""

    place: float
    origin: float
    k: int
    weight: float

    def height(self, place: float | np.ndarray, longest: int) -> Any:
        """Return the height at some place, where an arc of k = `longest` is 1 high."""
        middle, half = (self.place + self.origin) / 2, (self.place - self.origin) / 2
        return (self.k / longest) ** 0.8 * np.sqrt(np.clip(1 - ((place - middle) / half) ** 2, 0, 1))


def _text_width(text: str) -> float:
    """Return the width of a word in inches."""
    renderer = FigureCanvasAgg(Figure(dpi=100)).get_renderer()
    known = "".join(c if c.isascii() else "W" * cell_len(c) for c in text)  # no font may have it
    return renderer.get_text_width_height_descent(known, FontProperties(size=_LETTERS), False)[0] / 100


def _draw_rows(
    path: Path,
    heads: Sequence[str],
    words: Sequence[str],
    rows: Sequence[tuple[int, int]],
    edges: np.ndarray,
    arcs: Sequence[_Arc],
    probabilities: Probabilities,
) -> None:
    """Draw rows, each a range of words, whose slots on one long line have these `edges`."""
    lines = [line for text in heads for line in textwrap.wrap(text, 90)]
    used = sorted({arc.k for arc in arcs})
    shown = {used[round(i)] for i in np.linspace(0, len(used) - 1, min(len(used), _MOST_SKIPS))}
    keys = [Line2D([], [], label=f"k = {k}", **_skip_style(k)) for k in sorted(shown)]
    keys += [Line2D([], [], label=name, **_model_style(i)) for i, name in enumerate(probabilities)]
    ncols = max(1, int(_WIDTH / (0.8 + 0.09 * max((cell_len(key.get_label()) for key in keys), default=0))))
    longest = max((arc.k for arc in arcs), default=1)
    head = _LINE * (len(lines) + -(-len(keys) // ncols)) + 0.4
    heights = [0.35 + 0.2 * min(longest, 5), 0.35, 0.95 if probabilities else 0.01, 0.3]
    height = head + sum(heights) * len(rows)
    figure = Figure(figsize=(_WIDTH, height), dpi=150)
    FigureCanvasAgg(figure)
    for number, line in enumerate(lines):
        figure.text(0.5, 1 - (0.15 + number * _LINE) / height, line, ha="center", va="top", size=11)
    if keys:
        at = (0.5, 1 - (0.15 + len(lines) * _LINE) / height)
        figure.legend(
            handles=keys, loc="upper center", bbox_to_anchor=at, ncols=ncols, frameon=False, fontsize=9
        )
    sides = dict(left=_MARGIN / _WIDTH, right=1 - _MARGIN / _WIDTH, bottom=0, top=1 - head / height)
    grid = figure.add_gridspec(4 * len(rows), 1, height_ratios=heights * len(rows), hspace=0, **sides)
    places = (edges[:-1] + edges[1:]) / 2
    for row, (start, stop) in enumerate(rows):
        above, below = (figure.add_subplot(grid[4 * row + band]) for band in (0, 2))
        for axes in (above, below):
            axes.set_xlim(edges[start] - 0.18, edges[stop] + 0.18)
        _draw_skips(above, arcs, longest)
        for word, place in zip(words[start:stop], places[start:stop], strict=True):
            how = dict(textcoords="offset points", size=_LETTERS, ha="center", va="top")
            above.annotate(word, (place, 0), (0, -6), parse_math=False, **how)
        _draw_probabilities(below, places[start:stop], {n: p[start:stop] for n, p in probabilities.items()})
    floor = min((p for given in probabilities.values() for p in given if p > 0), default=0.5)
    for axes in figure.axes[1::2]:
        if probabilities:
            axes.set_ylim(0.8 * 10 ** math.floor(math.log10(min(floor, 0.5))), 1.3)
    save(figure, path)


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
        for end, marker in ((left, "<"), (right, ">")):
            if arc.origin < end < arc.place:
                how = dict(color=style["color"], markersize=2 + 3 * arc.weight, clip_on=False)
                axes.plot(end, arc.height(end, longest), marker, **how)


def _draw_probabilities(axes: Axes, places: np.ndarray, probabilities: Probabilities) -> None:
    """Draw the probabilities of the words in a row, on a logarithmic axis; 0 is drawn at its lower edge."""
    if not probabilities:
        axes.set_axis_off()
        return
    axes.set_yscale("log", nonpositive="clip")
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
    thick = 1.0 if k <= 1 else 2.0
    return dict(color=skip_color(k), linewidth=thick if weight == 1 else max(2 * thick * weight, 0.3))


def _model_style(index: int) -> dict[str, Any]:
    return dict(color=f"C{index % 10}", marker=_MARKERS[index % len(_MARKERS)], markersize=5, linewidth=0.8)
