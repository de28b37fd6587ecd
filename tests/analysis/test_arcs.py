"""Check the arcs of a text: the lines for a terminal can be read back, and the picture shows its data."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from rich.cells import cell_len

from dynskip_jax.analysis import arcs
from dynskip_jax.analysis.arcs import arcs_text, draw_arcs
from dynskip_jax.analysis.plots import skip_color
from dynskip_jax.analysis.reading import Reading

NONE = math.nan
WORDS = ["you", "may", "depend", "on", "the", "accuracy", "of", "the", "report", "that", "they", "sent"]
SKIPS = [0, 1, 1, 1, 1, 1, 3, 1, 2, 5, 5, 11]


def lines_of(skips, words=None, width=1000, **probabilities):
    words = words or [f"w{t}" for t in range(len(skips))]
    return arcs_text(Reading(words, skips), probabilities, width).split("\n")


def read_back(lines):
    """Return the skips that the brackets in `lines` show: for each word, the number of lines they lead up."""
    beside = lines[0].index("word") - 2
    found = []
    for row, line in enumerate(lines[1:], 1):
        ups = [column for column in range(beside) if line[column] in "╰┴├┼"]
        if line[beside] in "│┤╯╵":
            assert lines[row - 1][beside] in "│┤╮╷⋮" and not ups
            found.append(1)
        elif not ups:
            found.append(0)
        else:
            (column,) = ups
            assert set(line[column + 1 : beside]) <= set("─│┬") and line[beside] in "╴╮"
            above = row - 1
            while lines[above][column] not in "╭┬⋮":
                assert lines[above][column] in "│├┼"
                above -= 1
            found.append(row - above)
    return found


def test_by_hand():
    #                 0  1  2  3  4  5  6  7
    assert lines_of([0, 1, 2, 1, 3, 2, 9, 1]) == [
        "⋮       word  k  from",
        "│   ╭─╮ w0",
        "│ ╭─│─╯ w1    1  w0",
        "│ │ ╰─╮ w2    2  w0",
        "│ │ ╭─╯ w3    1  w2",
        "│ ╰─│─╴ w4    3  w1",
        "│   ╰─╴ w5    2  w3",
        "╰─────╮ w6    9  (before)",
        "      ╵ w7    1  w6",
    ]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 12) | st.just(1), min_size=1, max_size=40))
def test_brackets_can_be_read_back(skips):
    # All skips to before the text lead to the heading.
    assert read_back(lines_of(skips)) == [min(k, t + 1) for t, k in enumerate(skips)]


odd_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(odd_words, st.integers(0, 9)), min_size=1, max_size=20), st.integers(80, 120))
def test_lines_stay_within_the_width(text, width):
    words, skips = map(list, zip(*text, strict=True))
    each = [0.5] * len(words)
    lines = lines_of(skips, words, width=width, lstm=each, dynamic=each)
    assert len(lines) == len(words) + 1
    assert all(cell_len(line) <= width and line.isprintable() for line in lines)


def test_probabilities_are_beside_the_words_and_brackets_are_left_out_where_they_do_not_fit():
    probabilities = {"lstm": [NONE, 0.25, 0.5, 1e-5], "dyn": [NONE, 0.5, 0.5, 0.00123]}
    lines = lines_of([0, 2, 3, 4], width=30, **probabilities)
    assert [line.split()[0] for line in lines] == ["word", "w0", "w1", "w2", "w3"]
    expected = ["lstm dyn", "- -", "0.25 0.5", "0.5 0.5", "1e-05 0.00123"]
    assert [" ".join(line.split()[-2:]) for line in lines] == expected


# --- Pictures ---


@pytest.fixture
def figures(monkeypatch):
    """Return a list to which each saved figure is added, in order."""
    found, save = [], Figure.savefig

    def savefig(self, *args, **kwargs):
        save(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


def word_rows(figure):
    """Return the words below the arcs, one list of texts for each row."""
    rows = [[text for text in axes.texts if isinstance(text, Annotation)] for axes in figure.axes]
    return [row for row in rows if row]


def arcs_of(figure):
    return [line for axes in figure.axes[::2] for line in axes.lines if len(line.get_xdata()) > 2]


def test_a_picture_shows_the_words_and_their_arcs(tmp_path, figures):
    lstm = [NONE, *np.geomspace(1e-4, 0.9, 11)]
    paths = [tmp_path / f"{i}.png" for i in range(2)]
    for path in paths:
        draw_arcs(Reading(WORDS, SKIPS), {"lstm": lstm, "dynamic:11": lstm[::-1]}, path, "T", "a note")
    assert paths[0].read_bytes() == paths[1].read_bytes() and pyplot.get_fignums() == []
    assert [[word.get_text() for word in row] for row in word_rows(figures[0])] == [WORDS]
    assert len(arcs_of(figures[0])) == 11
    assert {line.get_color() for line in arcs_of(figures[0])} == {skip_color(k) for k in SKIPS if k}
    assert len({skip_color(k) for k in range(1, 21)}) == 20


def test_nothing_overlaps_or_is_cut_off(tmp_path, figures):
    words = ["x" * 80, "$", "$a$", "\n", "日本"] * 5
    skips = [(7 * t) % 6 for t in range(len(words))]
    names = ["lstm", *(f"attention over the last {k} states" for k in range(2, 6))]
    probabilities = {name: [1e-12] * len(words) for name in names} | {"none": [0.0] * len(words)}
    draw_arcs(Reading(words, skips), probabilities, tmp_path / "1.png", "A long title " * 20, "note $ " * 20)
    (figure,) = figures
    renderer = figure.canvas.get_renderer()
    for row in word_rows(figure):
        boxes = [word.get_window_extent(renderer) for word in row]
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    texts = [*figure.texts, *figure.legends[0].get_texts()]
    assert {"k = 5", "lstm"} <= {text.get_text() for text in texts}
    for box in (text.get_window_extent(renderer) for text in texts):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_long_texts_are_broken_into_rows(tmp_path, figures, monkeypatch):
    monkeypatch.setattr(arcs, "_MOST_ROWS", 3)
    words = [f"w{t}" for t in range(100)]
    draw_arcs(Reading(words, [0] * 13 + [5] * 87), {}, tmp_path / "1.png", "T")
    rows = [[word.get_text() for word in row] for row in word_rows(figures[0])]
    assert len(rows) == 3 and [*itertools.chain(*rows)] == words[:42]
    assert figures[0].texts[1].get_text() == "the first 42 words"
    # An arc that crosses the break is marked at the right end of one row and the left end of the next.
    marks = [{line.get_marker() for line in axes.lines} & set("<>") for axes in figures[0].axes[:4:2]]
    assert marks == [{">"}, {"<", ">"}]


def test_attention_is_drawn_by_its_weights(tmp_path, figures):
    weights = np.array([[1, 0, 0], [0.5, 0.48, 0.02], [0.2, 0.3, 0.5]])
    reading = Reading(["a", "b", "c"], [1, 1, 3], weights=weights, is_attention=True)
    draw_arcs(reading, {}, tmp_path / "1.png", "T")
    assert len(arcs_of(figures[0])) == 6  # weights below 5 % are not drawn
    of_two = [line for line in arcs_of(figures[0]) if line.get_color() == skip_color(2)]
    assert [line.get_linewidth() for line in of_two] == [pytest.approx(1.92), pytest.approx(1.2)]
    lines = arcs_text(reading, {}).splitlines()
    assert "weight" in lines[0] and lines[3].split()[-3:] == ["3", "0.50", "(before)"]


def test_letters_that_no_font_has_are_one_warning(tmp_path, caplog):
    draw_arcs(Reading(["\U00013000\U00013001"], [9]), {"lstm": [NONE]}, tmp_path / "1.png", "")
    (record,) = caplog.records
    assert record.getMessage().startswith("no font here has \U00013000 \U00013001: ")
