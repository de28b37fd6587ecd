"""Draw the skips at each word of a text: as brackets in a terminal and as arcs in PNG files."""

import dataclasses
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from rich.cells import cell_len, set_cell_size

from dynskip_jax.analysis.plots import font_families, save, skip_color
from dynskip_jax.extras import needs

with needs("experiments"):
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.font_manager import FontProperties
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullFormatter

_BEFORE = "(before)"  # shown as the origin of a skip to before the first word
_SHORTEST = 8  # smallest width of a column of words in the terminal, in cells
# The glyph directly to the left of a word. The keys state whether a line continues up (to the word before),
# down (to the next word) and left (to the brackets).
_BESIDE = {
    (True, True, True): "┤",
    (True, True, False): "│",
    (True, False, True): "╯",
    (True, False, False): "╵",
    (False, True, True): "╮",
    (False, True, False): "╷",
    (False, False, True): "─",
    (False, False, False): "·",
}
# The glyph where a vertical line meets a horizontal one, with the same keys. A vertical line spans at least
# two rows, so one of the first two keys is True.
_JOINTS = {
    (True, False, False): "╰",
    (True, False, True): "┴",
    (False, True, False): "╭",
    (False, True, True): "┬",
    (True, True, False): "├",
    (True, True, True): "┼",
}

# Layout of the picture. Lengths are in inches, font sizes in points.
_WIDTH, _LEFT, _RIGHT = 9.0, 0.7, 0.2
_TITLE, _LETTERS, _SMALL = 13.0, 10.0, 9.0
_LINE, _WORDS, _PROBABILITIES, _BETWEEN = 0.26, 0.3, 0.95, 0.3  # heights of bands
_MOST_WORDS = 14  # maximum number of words in a row
_BEYOND = 0.18  # how far arcs extend beyond both ends of a row, so that crossings at the ends are visible
_LONGEST = 24  # maximum width of a word, in cells
_MOST_SKIPS = 8  # maximum number of skips in the legend
_MARKERS = "oDs^vPX*"
_TRIANGLE = dict(color="0.5", marker="<", markersize=5, markeredgewidth=0, linestyle="none")
_MOST_ROWS = 5  # maximum number of rows on a page
_LEAST_WEIGHT = 0.05  # smaller attention weights are not drawn
_GOES_ON = Line2D([], [], label="goes on in another row, or comes from before the text", **_TRIANGLE)


@dataclasses.dataclass(frozen=True)
class Reading:
    """A text with the skips of one model and the probabilities of one or several models.

    Attributes:
        words: Words of the text.
        skips: Skip k at each word t: the state after word t - k entered the recurrent layer. t - k may lie
            before the first word. 0 means that no earlier state was chosen.
        probabilities: For each model name, one probability per word: that of the word given the words before
            it (language models), or that of the predicted tag or class. NaN where there is none.
        weights: Probability (of an agent) or weight (of attention) of each k = 1..K at each word, (words, K).
            None if unknown.
        is_attention: Whether a weighted mean of all K states entered, instead of one chosen state.
        is_of_predictions: Whether `probabilities` are those of each model's own predictions. They say how
            sure a model is, not how good: they have no perplexity, and none is the best.

    Raises:
        ValueError: There is no word, an argument does not have one entry per word, a k is negative, or a
            probability is outside of [0, 1].
    """

    words: Sequence[str]
    skips: Sequence[int]
    probabilities: Mapping[str, Sequence[float]]
    weights: Float[np.ndarray, "words K"] | None = None
    is_attention: bool = False
    is_of_predictions: bool = False

    def __post_init__(self):
        if not len(self.words):
            raise ValueError("a reading needs at least one word")
        if len(self.skips) != len(self.words):
            raise ValueError(f"{len(self.skips)} skips for {len(self.words)} words: give one each")
        if self.weights is not None and len(self.weights) != len(self.words):
            raise ValueError(f"{len(self.weights)} weights for {len(self.words)} words: give one row each")
        for k in self.skips:
            if k < 0:
                raise ValueError(f"{k} is no skip: they are numbers from 0 on")
        for name, given in self.probabilities.items():
            if len(given) != len(self.words):
                raise ValueError(
                    f"{len(given)} probabilities by {name} for {len(self.words)} words: give one each"
                )
            for p in given:
                if p < 0 or p > 1.0001:  # a softmax may exceed 1 by rounding
                    raise ValueError(f"{p} is no probability, among those by {name}: they lie in 0..1")

    def reached(self, t: int, least: float = 0.0) -> list[tuple[int, float]]:
        """Return the skips at word t as pairs (k, weight).

        With a chosen state there is one pair of weight 1, or none if k is 0. With attention there is a pair
        for each k whose weight is at least `least`.

        Args:
            t: Index of the word.
            least: Smallest attention weight that is returned.
        """
        if self.is_attention and self.weights is not None:
            return [(k, float(w)) for k, w in enumerate(self.weights[t], 1) if w >= least]
        return [(self.skips[t], 1.0)] if self.skips[t] else []


def arcs_text(reading: Reading, width: int = 100) -> str:
    """Format a reading for a terminal: one line per word, with brackets that lead to the origin of each skip.

    A line from a word to the word directly above it means k = 1. For a larger k, a bracket leads from the
    word to the left, up, and back to the word whose state entered. Skips to the same state share the vertical
    line of their brackets. A horizontal line that is interrupted passes below a vertical one. Lines from "⋮"
    in the heading come from before the text.

    The columns to the right of a word are:

    * k and its probability; with attention, the k in `skips` and its weight,
    * the word from whose state the skip comes,
    * the probability from each model. The highest one has a star, if they are those of the words.

    The last line contains each model's perplexity over the words for which all models have a probability. It
    is left out if the probabilities are those of predictions.

    Args:
        reading: The reading to format.
        width: Maximum number of cells in a line. If the lines are too long, the brackets are drawn closer
            together, then the words are cut, to 8 cells at least, and finally the outermost brackets are
            left out: "◂" replaces them. Numbers and names of models are never cut, so lines may exceed a very
            small width.

    Returns:
        The lines, joined by newlines. Spaces in words are replaced by "␣" and unprintable characters are
        escaped.
    """
    words = [_visible(word) for word in reading.words]
    skips = list(reading.skips)
    reached = ["" if k == 0 else words[t - k] if t >= k else _BEFORE for t, k in enumerate(skips)]
    texts = [["word", *words], ["from", *reached]]
    numbers = _justified(["k", *(str(k or "") for k in skips)])
    if reading.weights is not None:
        own = [f"{w[k - 1]:.2f}" if k else "" for k, w in zip(skips, reading.weights, strict=True)]
        likely = _justified(["weight" if reading.is_attention else "p(k)", *own])
        numbers = [f"{k}  {p}" for k, p in zip(numbers, likely, strict=True)]
    columns = _probability_columns(reading)

    # Fixed widths: three cells for the lane of k = 1 and its margins, two between columns.
    room = width - 5 - sum(2 + cell_len(column[0]) for column in [numbers, *columns])
    sizes = [max(map(cell_len, text)) for text in texts]
    lanes = _lanes(_ends(skips))
    count = max(lanes.values(), default=-1) + 1
    apart = 2 if 2 * count + sum(sizes) <= room else 1
    while max(sizes) > _SHORTEST and apart * count + sum(sizes) > room:
        sizes[sizes.index(max(sizes))] -= 1
    kept = max((room - sum(sizes)) // apart, 0)

    brackets = _brackets(skips, {target: lane for target, lane in lanes.items() if lane < kept}, apart)
    word, origin = ([_fitted(cell, size) for cell in text] for text, size in zip(texts, sizes, strict=True))
    begins = [f"{a} {b}  {c}  {d}" for a, b, c, d in zip(brackets, word, numbers, origin, strict=True)]
    begins.append("perplexity".rjust(cell_len(begins[0])))
    ends = ["".join(f"  {cell}" for cell in row) for row in zip(*columns, strict=True)] or [""] * len(numbers)
    # Columns without perplexities are one line shorter.
    return "\n".join((begin + end).rstrip() for begin, end in zip(begins, ends, strict=False))


def draw_arcs(reading: Reading, path: str | Path, title: str, note: str = "") -> list[Path]:
    """Draw a reading into PNG files: arcs above the words, their probabilities below.

    An arc leads from each word back to the word whose state entered. Arcs of k = 1 are faint. With attention,
    an arc leads to every state with a weight of at least 5 %, and its width shows the weight. A long text is
    broken into rows, and the rows into pages. Arcs continue across the breaks, with a triangle where they
    leave a row and where they enter one. Arcs from before the text leave at the left edge.

    Args:
        reading: The reading to draw.
        path: Path of the PNG file. If there are several pages, the first one is written to `…-page-1.png`.
        title: Title of the picture, wrapped if it is too long for one line.
        note: Line below the title, such as the name of the dataset.

    Returns:
        The paths of the files that were written.

    Source: Gui et al. 2019, "Long Short-Term Memory with Dynamic Skip Connections", Figure 6.
    """
    measure = Figure(figsize=(_WIDTH, 1), dpi=150)
    FigureCanvasAgg(measure)
    words = [_fitted(word, min(cell_len(word), _LONGEST)) for word in map(_visible, reading.words)]
    # All words have a place on one long line, and each row shows a window of it. So arcs that cross the end
    # of a row continue in the next one.
    room = _WIDTH - _LEFT - _RIGHT - 2 * _BEYOND
    least = room / _MOST_WORDS
    slots = [max(_text_width(measure, word, _LETTERS) + 0.14, least) for word in words]
    edges = np.concatenate([[0.0], np.cumsum(slots)])
    places = (edges[:-1] + edges[1:]) / 2
    arcs = [
        _Arc(places[t], places[t - k] if t >= k else (t - k + 0.5) * least, k, weight)
        for t in range(len(words))
        for k, weight in reading.reached(t, _LEAST_WEIGHT)
    ]
    rows = _rows(slots, room)
    count = -(-len(rows) // _MOST_ROWS)
    pages = [[rows[i] for i in part] for part in np.array_split(np.arange(len(rows)), count)]
    path = Path(path)
    names = [path] if count == 1 else [path.with_stem(f"{path.stem}-page-{n + 1}") for n in range(count)]
    for number, (name, page) in enumerate(zip(names, pages, strict=True), 1):
        which = title if count == 1 else f"{title} (page {number} of {count})"
        _draw_page(name, which, note, page, reading, words, edges, arcs)
    return names


def _draw_page(
    path: Path,
    title: str,
    note: str,
    rows: Sequence[tuple[int, int]],
    reading: Reading,
    words: Sequence[str],
    edges: Float[np.ndarray, "ends"],
    arcs: Sequence["_Arc"],
) -> None:
    """Draw one page into a PNG file.

    Args:
        path: Path of the PNG file.
        title: Title of the page.
        note: Line below the title.
        rows: The rows of the page, each a half-open range (start, stop) of word indices.
        reading: The reading that is drawn.
        words: Words as they are drawn, of the whole text.
        edges: Edges of the words' slots on one long line, in inches; one more than there are words.
        arcs: Arcs of the whole text.
    """
    places = (edges[:-1] + edges[1:]) / 2
    table, longest = _table(reading), max((arc.k for arc in arcs), default=0)
    figure = Figure(figsize=(_WIDTH, 1), dpi=150)
    FigureCanvasAgg(figure)
    texts = [(line, _TITLE, "black") for line in _broken(figure, title, _TITLE)]
    texts += [(line, _LETTERS, "0.35") for line in _broken(figure, note, _LETTERS)]
    windows = [(edges[start] - _BEYOND, edges[stop] + _BEYOND) for start, stop in rows]
    crossing = any(arc.crosses(end) for arc in arcs for window in windows for end in window)
    keys = [*_lines_of_keys(figure, _keys_of_skips([arc.k for arc in arcs]))]
    keys += [[_GOES_ON]] if crossing else []
    keys += _lines_of_keys(figure, _keys_of_models(reading))
    bands = [_LINE * (len(texts) + len(keys)) + _BETWEEN]
    for _ in rows:
        bands += [0.35 + 0.2 * min(longest, 5), _WORDS, _PROBABILITIES if table.size else 0.01, _BETWEEN]
    figure.set_size_inches(_WIDTH, sum(bands))
    sides = dict(left=_LEFT / _WIDTH, right=1 - _RIGHT / _WIDTH, bottom=0, top=1)
    grid = figure.add_gridspec(len(bands), 1, height_ratios=bands, hspace=0, **sides)
    _draw_head(figure.add_subplot(grid[0]), texts, keys, bands[0])
    for row, ((start, stop), window) in enumerate(zip(rows, windows, strict=True)):
        above, below = (figure.add_subplot(grid[1 + 4 * row + band]) for band in (0, 2))
        for axes in (above, below):
            axes.set_xlim(window)
        _draw_skips(above, arcs, longest)
        for word, place in zip(words[start:stop], places[start:stop], strict=True):
            # parse_math=False: "$" in a word does not start a formula.
            style = dict(size=_LETTERS, ha="center", va="top", parse_math=False)
            above.annotate(word, (place, 0), (0, -6), textcoords="offset points", **style)
        _draw_probabilities(below, places, table)
    save(figure, path)


class _Arc(NamedTuple):
    """An arc from a word back to the word whose state entered: half an ellipse above the line of words.

    Attributes:
        place: Horizontal position of the word, in inches.
        origin: Horizontal position of the word whose state entered, in inches.
        k: Distance between them, in words.
        weight: 1 for a chosen state, the weight of the state with attention.
    """

    place: float
    origin: float
    k: int
    weight: float

    def crosses(self, end: float) -> bool:
        """Return whether the end of a row at position `end` cuts the arc."""
        return bool(self.origin < end < self.place)

    def height(self, place: float, longest: int) -> float:
        """Return the height of the arc at position `place`, where an arc of k = `longest` is 1 high."""
        middle, half = (self.place + self.origin) / 2, (self.place - self.origin) / 2
        share = np.clip((place - middle) / half, -1, 1)
        return float((self.k / longest) ** 0.8 * np.sqrt(1 - share**2))


def _visible(word: str) -> str:
    """Return the word with visible spaces and escaped unprintable characters."""
    return "".join("␣" if c == " " else c if c.isprintable() else ascii(c)[1:-1] for c in word)


def _fitted(text: str, size: int) -> str:
    """Return the text padded with spaces, or cut and ended by "…", to exactly `size` terminal cells."""
    if cell_len(text) > size:
        text = set_cell_size(text, size - 1).rstrip() + "…"
    return set_cell_size(text, size)


def _justified(cells: Sequence[str]) -> list[str]:
    size = max(map(cell_len, cells))
    return [" " * (size - cell_len(cell)) + cell for cell in cells]


def _table(reading: Reading) -> Float[np.ndarray, "models words"]:
    rows = [np.asarray(given, np.float64) for given in reading.probabilities.values()]
    return np.stack(rows) if rows else np.empty((0, len(reading.words)))


def _probability_columns(reading: Reading) -> list[list[str]]:
    """Return a column of cells for each model: its name, its probabilities and its perplexity.

    The perplexity is that of the words for which all models have a probability. It is left out if there are
    none. The best model in each row has a star, unless all are equally good. Probabilities of predictions
    have neither.
    """
    table, of_words = _table(reading), not reading.is_of_predictions
    scored = table[:, np.isfinite(table).all(axis=0) & of_words]
    if not table.size:
        return []
    if scored.size:
        # The geometric mean of the probabilities is added as a last row. Its inverse is the perplexity.
        with np.errstate(divide="ignore"):  # a probability of 0 makes the perplexity infinite
            table = np.column_stack([table, np.exp(np.log(scored).mean(axis=1))])
    best, worst = (
        np.where(np.isnan(table), -1, table).max(axis=0),
        np.where(np.isnan(table), 2, table).min(axis=0),
    )
    stars = np.where((table == best) & (worst < best) & of_words, "*", " ")
    columns = []
    for name, numbers, marks in zip(reading.probabilities, table.tolist(), stars.tolist(), strict=True):
        cells = ["-" if np.isnan(p) else _probability(p) for p in numbers]
        if scored.size:
            cells[-1] = f"{1 / numbers[-1]:.1f}" if numbers[-1] else "inf"
        columns.append(_justified([f"{name} ", *(c + mark for c, mark in zip(cells, marks, strict=True))]))
    return columns


def _probability(p: float) -> str:
    return f"{p:.4f}" if p == 0 or p >= 0.001 else f"{p:.1e}"


def _ends(skips: Sequence[int]) -> dict[int, int]:
    """Map the origin t - k of each skip with k > 1 to the last word t that uses it; -1: before the text."""
    return {max(t - k, -1): t for t, k in enumerate(skips) if k > 1}


def _lanes(ends: Mapping[int, int]) -> dict[int, int]:
    """Assign a lane to each vertical line; lane 0 is next to the words, and lines in a lane do not overlap.

    Args:
        ends: First and last row of each line, from `_ends`.

    Returns:
        The lane of each line, by its first row.
    """
    lanes: dict[int, int] = {}
    taken: list[set[int]] = []
    # Shorter lines are closer to the words, so that fewer horizontal lines pass below vertical ones.
    for start, end in sorted(ends.items(), key=lambda line: (line[1] - line[0], line)):
        rows = set(range(start, end + 1))
        lane = next((lane for lane, used in enumerate(taken) if not used & rows), len(taken))
        taken[lane : lane + 1] = [rows.union(*taken[lane : lane + 1])]
        lanes[start] = lane
    return lanes


def _brackets(skips: Sequence[int], lanes: Mapping[int, int], apart: int) -> list[str]:
    """Return the text to the left of the heading and of each word.

    Args:
        skips: k of each word.
        lanes: Lane of each vertical line that is drawn, by its first row; -1 is the heading.
        apart: Distance between lanes, in cells.
    """
    ends = _ends(skips)
    count = max(lanes.values(), default=-1) + 1
    heading = ["⋮" if lanes.get(-1) == lane else " " for lane in reversed(range(count))]
    lines = ["".join(glyph.ljust(apart) for glyph in heading) + (" ⋮" if skips[0] == 1 else "  ")]
    for t, k in enumerate(skips):
        origin = max(t - k, -1) if k > 1 else None
        present = {lane: start for start, lane in lanes.items() if start <= t <= ends[start]}
        line, level = "", " "
        for lane in reversed(range(count)):
            start = present.get(lane)
            if start is None:
                glyph = level
            elif start in (t, origin):
                glyph = _JOINTS[start < t, t < ends[start], level == "─"]
                level = "─"
            else:
                glyph = "│"
            line += glyph + level * (apart - 1)
        if origin is not None and origin not in lanes:
            line, level = line + "◂", "─"
        else:
            line += level
        lines.append(line + _BESIDE[k == 1, skips[t + 1 : t + 2] == [1], level == "─"])
    return lines


def _text_width(figure: Figure, text: str, size: float) -> float:
    """Return the width of the text, in inches."""
    renderer = figure.canvas.get_renderer()
    font = FontProperties(size=size) if text.isascii() else FontProperties(size=size, family=font_families())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `save` reports characters that no font has
        return renderer.get_text_width_height_descent(text, font, False)[0] / figure.dpi


def _broken(figure: Figure, text: str, size: float) -> list[str]:
    """Return the lines of the text, wrapped to the width of the picture."""
    for length in range(len(text), 0, -1):
        lines = textwrap.wrap(text, length)
        if all(_text_width(figure, line, size) < _WIDTH - 0.4 for line in lines):
            return lines
    return []


def _rows(slots: Sequence[float], room: float) -> list[tuple[int, int]]:
    """Break words into rows: as few as possible, and of similar lengths.

    Args:
        slots: Width of each word.
        room: Maximum width of a row.

    Returns:
        The half-open range (start, stop) of word indices of each row.
    """

    def fill(limit: float) -> list[tuple[int, int]]:
        starts, used = [0], 0.0
        for t, slot in enumerate(slots):
            if used + slot > limit + 1e-6:
                starts.append(t)
                used = 0.0
            used += slot
        return list(zip(starts, [*starts[1:], len(slots)], strict=True))

    fewest = len(fill(room))
    return next(rows for limit in np.linspace(max(slots), room, 100) if len(rows := fill(limit)) == fewest)


def _skip_style(k: int, weight: float = 1.0) -> dict[str, Any]:
    if k <= 1:
        return dict(color=skip_color(k), linewidth=max(2.0 * weight, 0.3) if weight < 1 else 1.0, zorder=2)
    return dict(color=skip_color(k), linewidth=max(4.0 * weight, 0.4) if weight < 1 else 2.0, zorder=3)


def _keys_of_skips(skips: Sequence[int]) -> list[Line2D]:
    used = sorted(set(skips))
    shown = {used[round(i)] for i in np.linspace(0, len(used) - 1, min(len(used), _MOST_SKIPS))}
    return [Line2D([], [], label=f"k = {k}", **_skip_style(k)) for k in sorted(shown)]


def _model_style(index: int) -> dict[str, Any]:
    marker = _MARKERS[index % len(_MARKERS)]
    return dict(color=f"C{index % 10}", marker=marker, markersize=5, markeredgewidth=0, linewidth=0.8)


def _keys_of_models(reading: Reading) -> list[Line2D]:
    return [Line2D([], [], label=name, **_model_style(i)) for i, name in enumerate(reading.probabilities)]


def _lines_of_keys(figure: Figure, keys: Sequence[Line2D]) -> list[Sequence[Line2D]]:
    """Break the keys of a legend into lines, with as many keys per line as fit the width of the figure."""
    widest = max((_text_width(figure, str(key.get_label()), _SMALL) for key in keys), default=0.0)
    most = max(int((_WIDTH - 0.4) / (widest + 0.6)), 1)
    return [keys[i : i + most] for i in range(0, len(keys), most)]


def _draw_head(
    axes: Axes, texts: Sequence[tuple[str, float, str]], keys: Sequence[Sequence[Line2D]], height: float
) -> None:
    """Draw the head of a page.

    Args:
        axes: Axes of the head.
        texts: Lines of text, each with its font size and colour.
        keys: Lines of the legend, below the text.
        height: Height of the axes, in inches.
    """
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(-height, 0))
    # The axes are not centred on the page, because their left margin is wider.
    middle, place = (_WIDTH / 2 - _LEFT) / (_WIDTH - _LEFT - _RIGHT), -_BETWEEN / 2
    for text, size, color in texts:
        axes.text(middle, place, text, size=size, color=color, ha="center", va="top", parse_math=False)
        place -= _LINE
    for key in keys:
        at = dict(loc="upper center", bbox_to_anchor=(middle, place), bbox_transform=axes.transData)
        style = dict(frameon=False, fontsize=_SMALL, borderpad=0, borderaxespad=0, handlelength=1.8)
        axes.add_artist(Legend(axes, key, [line.get_label() for line in key], ncols=len(key), **at, **style))
        place -= _LINE


def _draw_skips(axes: Axes, arcs: Sequence[_Arc], longest: int) -> None:
    """Draw the arcs that are visible in a row.

    Longer skips have higher arcs. A dot marks the origin of a chosen k > 1, and a triangle marks where an
    arc continues in another row.

    Args:
        axes: Axes of the row; their x limits are set.
        arcs: Arcs of the whole text.
        longest: Largest k of all arcs.
    """
    axes.set_axis_off()
    axes.set_ylim(-0.05, 1.05)
    left, right = axes.get_xlim()
    shares = np.cos(np.linspace(0, np.pi, 100))
    for arc in arcs:
        if arc.origin >= right or arc.place <= left:
            continue
        style = _skip_style(arc.k, arc.weight)
        along = (arc.place + arc.origin) / 2 + (arc.place - arc.origin) / 2 * shares
        axes.plot(along, [arc.height(place, longest) for place in along], **style)
        if arc.k > 1 and arc.weight == 1:
            axes.plot(arc.origin, 0, "o", color=style["color"], markersize=4, zorder=4)
        for end, marker in ((left, "<"), (right, ">")):
            if arc.crosses(end):
                how = dict(
                    color=style["color"],
                    markersize=2 + 3 * arc.weight,
                    markeredgewidth=0,
                    clip_on=False,
                    zorder=5,
                )
                axes.plot(end, arc.height(end, longest), marker, **how)


def _draw_probabilities(
    axes: Axes, places: Float[np.ndarray, "words"], table: Float[np.ndarray, "models words"]
) -> None:
    """Draw the probabilities of the words in a row, on a logarithmic axis that is the same in all rows.

    Args:
        axes: Axes of the row; their x limits are set.
        places: Horizontal position of each word of the text.
        table: Probability from each model at each word, (models, words).
    """
    positive = table[table > 0]
    if not table.size:
        axes.set_axis_off()
        return
    lowest = 10 ** np.floor(np.log10(min(positive.min(initial=1.0), 0.5)))
    axes.set_yscale("log")
    axes.set_ylim(lowest * 0.8, 1.3)
    for index, probabilities in enumerate(table):
        # A probability of 0 is drawn at the lower edge.
        axes.plot(places, np.maximum(probabilities, lowest), **_model_style(index))
    axes.yaxis.set_major_locator(LogLocator(numticks=4))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(places[(places > axes.get_xlim()[0]) & (places < axes.get_xlim()[1])], labels=[])
    axes.tick_params(labelsize=_SMALL, length=0)
    axes.set_ylabel("probability", size=_SMALL)
    axes.yaxis.set_label_coords(-0.55 / (_WIDTH - _LEFT - _RIGHT), 0.5)  # the same place in each row
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
