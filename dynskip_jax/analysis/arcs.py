"""Which earlier word each word of a text reached back to, drawn as arcs for a terminal and as a picture."""

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

_BEFORE = "(before)"  # what a word reached to whose k leads to before the first word
_SHORTEST = 8  # cells that words of the terminal keep on the narrowest page
# The glyph beside a word, by whether its line continues up (to the word before), down (from the next word)
# and to the left (where the brackets are).
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
# The same for a line that joins a level one to the word. None begins and ends in one row.
_JOINTS = {
    (True, False, False): "╰",
    (True, False, True): "┴",
    (False, True, False): "╭",
    (False, True, True): "┬",
    (True, True, False): "├",
    (True, True, True): "┼",
}

# The picture; lengths are in inches, sizes of letters in points.
_WIDTH, _LEFT, _RIGHT = 9.0, 0.7, 0.2
_TITLE, _LETTERS, _SMALL = 13.0, 10.0, 9.0
_LINE, _WORDS, _PROBABILITIES, _BETWEEN = 0.26, 0.3, 0.95, 0.3  # heights
_MOST_WORDS = 14  # in a row
_BEYOND = 0.18  # how far arcs go on at the ends of a row, so that those that meet there are seen to cross
_LONGEST = 24  # cells of a word
_MOST_SKIPS = 8  # in the legend
_MARKERS = "oDs^vPX*"
_TRIANGLE = dict(color="0.5", marker="<", markersize=5, markeredgewidth=0, linestyle="none")
_MOST_ROWS = 5  # of a page
_LEAST_WEIGHT = 0.05  # of attention that is drawn
_GOES_ON = Line2D([], [], label="goes on in another row, or comes from before the text", **_TRIANGLE)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How models read a text: which word the agent reached back to at each, and how probable each word was.

    Attributes:
        words: the words of the text.
        skips: k of each word: as word t was read, the state after word t - k entered the LSTM. That may lie
            before the first word; 0 where there is no k.
        probabilities: for each model, by its name, the probability it gave to each word after those before
            it; NaN where there is none, as for the first word.
        weights: how probable each k was at each word, or how heavy, (words, K); None where nobody knows.
        is_attention: whether all of the K states entered, by these weights, and not one that was chosen.

    Raises:
        ValueError: there is no word, something is not given once for each word, a k is negative, or a
            probability is not in 0..1.
    """

    words: Sequence[str]
    skips: Sequence[int]
    probabilities: Mapping[str, Sequence[float]]
    weights: Float[np.ndarray, "words K"] | None = None
    is_attention: bool = False

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
                if p < 0 or p > 1.0001:  # the rounding of a softmax may lead beyond 1
                    raise ValueError(f"{p} is no probability, among those by {name}: they lie in 0..1")

    def reached(self, t: int, least: float = 0.0) -> list[tuple[int, float]]:
        """Returns each k that word t reached back by, with its weight: the one chosen, and of attention all
        that weigh at least so much."""
        if self.is_attention and self.weights is not None:
            return [(k, float(w)) for k, w in enumerate(self.weights[t], 1) if w >= least]
        return [(self.skips[t], 1.0)] if self.skips[t] else []


def arcs_text(reading: Reading, width: int = 100) -> str:
    """Writes a reading for a terminal: a line for each word, with brackets that lead to where it reached.

    Directly to the left of the words, a line from a word to the one above says k = 1. From a word with a
    larger k a line leads to the left, up, and back to the word whose state it took. Words that took the same
    state share the upright line; where a level line is interrupted, it passes below an upright one. Lines
    that come from "⋮" in the heading come from before the text.

    To the right of a word are its k, how probable that k was (of attention: the heaviest k and its weight),
    the word it reached to, and its probabilities, the highest with a star. The last line has the perplexities
    over the words that have a probability by every model.

    Args:
        reading: what is written.
        width: how many cells a line may have. Where they do not suffice, the brackets move together, then
            words are shortened, to 8 cells at the least, then the farthest brackets are left out: "◂" is
            where a word reached to the left. Numbers and names of models are never cut, and may exceed a
            very small width.

    Returns:
        The lines, joined by newlines. What does not print is escaped in words, and blanks in them are "␣".
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

    # The lane of k = 1 takes a cell and has one to either side; columns are two apart.
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
    # Columns without perplexities end one line before.
    return "\n".join((begin + end).rstrip() for begin, end in zip(begins, ends, strict=False))


def draw_arcs(reading: Reading, path: str | Path, title: str, note: str = "") -> list[Path]:
    """Draws a reading into PNG files: arcs above the words, their probabilities below.

    An arc leads from each word back to the one whose state it took; those of k = 1 are faint. Of attention an
    arc leads to every state that weighs at least 5 %, as wide as it is heavy. A long text is broken into
    rows, and these into pages. Arcs go on across the breaks, with a triangle where they leave a row and where
    they enter one; those from before the text leave at the left edge.

    Args:
        reading: what is drawn.
        path: the PNG file; of several pages the first is `…-page-1.png`.
        title: the title; broken into lines where it is too long for one.
        note: a line below the title, such as the name of the dataset.

    Returns:
        The files.

    Source: Gui et al. 2019, "Long Short-Term Memory with Dynamic Skip Connections", Figure 6.
    """
    measure = Figure(figsize=(_WIDTH, 1), dpi=150)
    FigureCanvasAgg(measure)
    words = [_fitted(word, min(cell_len(word), _LONGEST)) for word in map(_visible, reading.words)]
    # Words lie on one endless line, on which the rows are windows: arcs go on where they are cut.
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
    """Some rows of a reading, each the window of the words from one on to another."""
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
            # parse_math: a word such as "$" is text, not mathematics.
            style = dict(size=_LETTERS, ha="center", va="top", parse_math=False)
            above.annotate(word, (place, 0), (0, -6), textcoords="offset points", **style)
        _draw_probabilities(below, places, table)
    save(figure, path)


class _Arc(NamedTuple):
    """From a word back to where it reached: half an ellipse over a line.

    Attributes:
        place: of the word, in inches.
        origin: of the word reached to.
        k: how far that is, in words.
        weight: 1 where it was chosen, of attention less.
    """

    place: float
    origin: float
    k: int
    weight: float

    def crosses(self, end: float) -> bool:
        """Whether it is cut where a row ends."""
        return bool(self.origin < end < self.place)

    def height(self, place: float, longest: int) -> float:
        """Of the arc above the line, where the longest one is 1 high."""
        middle, half = (self.place + self.origin) / 2, (self.place - self.origin) / 2
        share = np.clip((place - middle) / half, -1, 1)
        return float((self.k / longest) ** 0.8 * np.sqrt(1 - share**2))


def _visible(word: str) -> str:
    """The word with blanks made visible and what does not print escaped."""
    return "".join("␣" if c == " " else c if c.isprintable() else ascii(c)[1:-1] for c in word)


def _fitted(text: str, size: int) -> str:
    """The text in exactly so many cells of a terminal: filled with blanks, or cut and ended by "…"."""
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
    """For each model its name, its probabilities and, where all models scored a word, its perplexity.

    The best of the models, unless all are equally good, has a star.
    """
    table = _table(reading)
    scored = table[:, np.isfinite(table).all(axis=0)]
    if not table.size:
        return []
    if scored.size:
        # The mean in logarithms is starred as if it were a word's: its inverse is the perplexity.
        with np.errstate(divide="ignore"):  # a probability of 0 makes the perplexity infinite
            table = np.column_stack([table, np.exp(np.log(scored).mean(axis=1))])
    best, worst = (
        np.where(np.isnan(table), -1, table).max(axis=0),
        np.where(np.isnan(table), 2, table).min(axis=0),
    )
    stars = np.where((table == best) & (worst < best), "*", " ")
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
    """For each word that others reached back to by k > 1 the last of those; -1 stands for before the text."""
    return {max(t - k, -1): t for t, k in enumerate(skips) if k > 1}


def _lanes(ends: Mapping[int, int]) -> dict[int, int]:
    """The lane of each upright line, where 0 is next to the words; lines of one lane share no row."""
    lanes: dict[int, int] = {}
    taken: list[set[int]] = []
    # Shorter lines come nearer to the words, so that fewer level ones pass below others.
    for start, end in sorted(ends.items(), key=lambda line: (line[1] - line[0], line)):
        rows = set(range(start, end + 1))
        lane = next((lane for lane, used in enumerate(taken) if not used & rows), len(taken))
        taken[lane : lane + 1] = [rows.union(*taken[lane : lane + 1])]
        lanes[start] = lane
    return lanes


def _brackets(skips: Sequence[int], lanes: Mapping[int, int], apart: int) -> list[str]:
    """What is to the left of the heading and of each word, in lanes that are so many cells apart."""
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
    """The width of the text, in inches."""
    renderer = figure.canvas.get_renderer()
    font = FontProperties(size=size) if text.isascii() else FontProperties(size=size, family=font_families())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that no font has are named where the picture is saved
        return renderer.get_text_width_height_descent(text, font, False)[0] / figure.dpi


def _broken(figure: Figure, text: str, size: float) -> list[str]:
    """The text in as many lines as the width of the figure makes it need."""
    for length in range(len(text), 0, -1):
        lines = textwrap.wrap(text, length)
        if all(_text_width(figure, line, size) < _WIDTH - 0.4 for line in lines):
            return lines
    return []


def _rows(slots: Sequence[float], room: float) -> list[tuple[int, int]]:
    """The first word of each row and the one after its last: as few rows as fit, of lengths alike."""

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
    """The keys of a legend, as many in a line as fit the width of the figure."""
    widest = max((_text_width(figure, str(key.get_label()), _SMALL) for key in keys), default=0.0)
    most = max(int((_WIDTH - 0.4) / (widest + 0.6)), 1)
    return [keys[i : i + most] for i in range(0, len(keys), most)]


def _draw_head(
    axes: Axes, texts: Sequence[tuple[str, float, str]], keys: Sequence[Sequence[Line2D]], height: float
) -> None:
    """Lines of text, each with its size and colour, and a legend in a line for each group of keys."""
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(-height, 0))
    # The middle of the page is not that of the axes, whose left margin is wider.
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
    """Half an ellipse for each skip in view, the higher the longer it is, with a point where it comes from
    and a triangle where it goes on in another row."""
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
    """The probabilities of the words in view, on a logarithmic axis that is the same in each row."""
    positive = table[table > 0]
    if not table.size:
        axes.set_axis_off()
        return
    lowest = 10 ** np.floor(np.log10(min(positive.min(initial=1.0), 0.5)))
    axes.set_yscale("log")
    axes.set_ylim(lowest * 0.8, 1.3)
    for index, probabilities in enumerate(table):
        # A probability of 0 is at the lower edge.
        axes.plot(places, np.maximum(probabilities, lowest), **_model_style(index))
    axes.yaxis.set_major_locator(LogLocator(numticks=4))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(places[(places > axes.get_xlim()[0]) & (places < axes.get_xlim()[1])], labels=[])
    axes.tick_params(labelsize=_SMALL, length=0)
    axes.set_ylabel("probability", size=_SMALL)
    axes.yaxis.set_label_coords(-0.55 / (_WIDTH - _LEFT - _RIGHT), 0.5)  # the same in each row
    axes.grid(True, color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "bottom", "left"]].set_visible(False)
