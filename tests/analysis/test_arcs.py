"""Check the arcs of a text: the lines for a terminal can be read back, and the picture shows its data."""

import itertools
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import and_slow
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.legend import Legend
from matplotlib.text import Annotation
from rich.cells import cell_len

from dynskip_jax.analysis.arcs import Reading, arcs_text, draw_arcs
from dynskip_jax.analysis.plots import skip_color

NONE = math.nan
WORDS = ["you", "may", "depend", "on", "the", "accuracy", "of", "the", "report", "that", "they", "sent"]
SKIPS = [0, 1, 1, 1, 1, 1, 3, 1, 2, 5, 5, 11]


def reading(skips, words=None, **probabilities):
    return Reading(words or [f"w{t}" for t in range(len(skips))], skips, probabilities)


def lines_of(*args, width=1000, **probabilities):
    return arcs_text(reading(*args, **probabilities), width).split("\n")


def read_back(lines):
    """Return the skips that the brackets in `lines` show: for each word, the number of lines they lead up.

    A skip whose bracket is cut is None.
    """
    beside = lines[0].index("word") - 2
    found = []
    for row, line in enumerate(lines[1:], 1):
        ups = [column for column in range(beside) if line[column] in "╰┴├┼"]
        if line[beside] in "│┤╯╵":
            assert lines[row - 1][beside] in "│┤╮╷⋮" and not ups and "◂" not in line
            found.append(1)
        elif "◂" in line:
            assert not ups
            found.append(None)
        elif not ups:
            found.append(0)
        else:
            (column,) = ups
            assert set(line[column + 1 : beside]) <= set("─│┬") and line[beside] in "─╮"
            above = row - 1
            while lines[above][column] not in "╭┬⋮":
                assert lines[above][column] in "│├┼"
                above -= 1
            found.append(row - above)
    return found


def to_heading(skips):
    """Return the part of `skips` that can be read back: all skips to before the text lead to the heading."""
    return [min(k, t + 1) for t, k in enumerate(skips)]


def pixels(path):
    return imread(path)[..., :3]


@pytest.fixture
def figures(monkeypatch):
    """Return a list to which each saved figure is added, in order."""
    found = []
    save = Figure.savefig

    def savefig(self, *args, **kwargs):
        save(self, *args, **kwargs)
        found.append(self)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


def word_rows(figure):
    """Return the words below the arcs, one list of texts for each row."""
    rows = [[text for text in axes.texts if isinstance(text, Annotation)] for axes in figure.axes]
    return [row for row in rows if row]


def extent(text):
    return text.get_window_extent(text.figure.canvas.get_renderer())


def test_by_hand():
    #                 0  1  2  3  4  5  6  7
    assert lines_of([0, 1, 2, 1, 3, 2, 9, 1]) == [
        "⋮        word  k  from",
        "│   ╭──╮ w0",
        "│ ╭─│──╯ w1    1  w0",
        "│ │ ╰──╮ w2    2  w0",
        "│ │ ╭──╯ w3    1  w2",
        "│ ╰─│─── w4    3  w1",
        "│   ╰─── w5    2  w3",
        "╰──────╮ w6    9  (before)",
        "       ╵ w7    1  w6",
    ]


skips = st.lists(st.integers(0, 12) | st.just(1), min_size=1, max_size=40)


@settings(max_examples=300, deadline=None)
@given(skips)
def test_brackets_can_be_read_back(skips):
    assert read_back(lines_of(skips)) == to_heading(skips)


@settings(max_examples=300, deadline=None)
@given(skips, st.integers(22, 60))
def test_what_is_left_of_the_brackets_can_be_read_back(skips, width):
    lines = lines_of(skips, width=width)
    found = read_back(lines)
    assert all(b in (k, None) for k, b in zip(to_heading(skips), found, strict=True))
    assert max(map(cell_len, lines)) <= width
    if width >= 40:  # 13 lanes of one cell and 25 other cells
        assert None not in found


def test_each_word_is_beside_the_one_it_reached_to():
    lines = lines_of(SKIPS, WORDS)
    begins = lines[0].index("word")
    assert [line[begins:].split() for line in lines] == [
        ["word", "k", "from"],
        ["you"],
        *([word, str(k), WORDS[t - k]] for t, (word, k) in enumerate(zip(WORDS, SKIPS, strict=True)) if k),
    ]


def test_before_the_text():
    lines = lines_of([1, 7, 3, 2])
    assert read_back(lines) == [1, 2, 3, 2] and lines[0].count("⋮") == 2
    assert [line.split()[-1] for line in lines[1:]] == ["(before)", "(before)", "(before)", "w1"]


def test_the_better_probability_and_perplexity_have_a_star():
    lines = lines_of([0, 1, 1, 1, 1], lstm=[NONE, 0.25, 0.5, 1e-5, NONE], dyn=[NONE, 0.5, 0.5, 0.00123, 0.5])
    assert [line[lines[0].index("from") + 4 :].split() for line in lines] == [
        ["lstm", "dyn"],
        ["-", "-"],
        ["0.2500", "0.5000*"],
        ["0.5000", "0.5000"],
        ["1.0e-05", "0.0012*"],
        ["-", "0.5000"],
        ["92.8", "14.8*"],
    ]


@pytest.mark.parametrize(
    ("probabilities", "last"),
    [
        ({}, "w0"),
        ({"lstm": [NONE, NONE]}, "-"),
        ({"lstm": [NONE, 0.0]}, "inf"),
        ({"lstm": [NONE, 0.1]}, "10.0"),
        ({"lstm": [NONE, 0.0], "dyn": [NONE, 0.5]}, "2.0*"),
        ({"lstm": [0.5, NONE], "dyn": [NONE, 0.5]}, "0.5000"),
    ],
)
def test_perplexities_of_few_probabilities(probabilities, last):
    assert lines_of([0, 1], **probabilities)[-1].split()[-1] == last


def test_probabilities_of_predictions_have_no_star_and_no_perplexity():
    """A model that is surer of its own prediction than another is not better."""
    given = {"lstm": [NONE, 0.25], "dyn": [NONE, 0.5]}
    lines = arcs_text(Reading(["a", "b"], [0, 1], given, is_of_predictions=True)).split("\n")
    assert [line.split() for line in lines[1:]] == [
        ["╷", "a", "-", "-"],
        ["╵", "b", "1", "a", "0.2500", "0.5000"],
    ]


odd_words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(odd_words, st.integers(0, 9)), min_size=1, max_size=20), st.integers(70, 120))
def test_lines_stay_within_the_width(text, width):
    words, skips = map(list, zip(*text, strict=True))
    each = [0.5] * len(words)
    lines = lines_of(skips, words, width=width, lstm=each, dynamic=each)
    assert len(lines) == len(words) + 2
    assert all(cell_len(line) <= width for line in lines)
    assert read_back(lines[:-1]) == to_heading(skips)
    assert all(line.isprintable() for line in lines)


def test_words_are_cut_only_where_they_must_be():
    words = ["a" * 30, "b" * 30]
    assert words[1] in lines_of([0, 1], words, width=75)[2]
    cut = lines_of([0, 1], words, width=60)
    assert "…" in cut[2] and max(map(cell_len, cut)) == 60
    assert lines_of([0, 1], ["a\nb", "a b"])[1:] == [" ╷ a\\nb", " ╵ a␣b   1  a\\nb"]


def test_a_picture(tmp_path, figures):
    lstm = [NONE, *np.geomspace(1e-4, 0.9, 11)]
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for path, skips in zip(paths, [SKIPS, SKIPS, SKIPS[::-1], [1] * 12, [0] * 12], strict=True):
        draw_arcs(Reading(WORDS, skips, {"lstm": lstm, "dynamic:11": lstm[::-1]}), path, "T", "a note")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    pictures = [pixels(path) for path in paths[1:]]
    assert all(picture.shape[1] == 1350 and 300 < picture.shape[0] < 700 for picture in pictures)
    assert all(a.shape != b.shape or (a != b).any() for i, a in enumerate(pictures) for b in pictures[:i])
    assert all(
        [[word.get_text() for word in row] for row in word_rows(figure)] == [WORDS] for figure in figures
    )
    assert pyplot.get_fignums() == []


def test_long_texts_are_broken_into_rows(tmp_path, figures):
    words = WORDS * 4
    draw_arcs(Reading(words, SKIPS * 4, {"lstm": [0.5] * 48}), tmp_path / "1.png", "T")
    rows = word_rows(figures[0])
    assert [len(row) for row in rows] == [12] * 4
    assert [word.get_text() for row in rows for word in row] == words


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(WORDS * 4, marks=pytest.mark.slow),
        pytest.param(["incomprehensibilities"] * 20, marks=pytest.mark.slow),
        ["x" * 80, "$", "$a$", "\n"] * 5,
    ],
)
def test_nothing_is_cut_off_or_overlaps(tmp_path, figures, words):
    skips = [(7 * t) % 6 for t in range(len(words))]
    names = ["lstm", "dynamic:5", *(f"attention over the last {k} states" for k in range(2, 6))]
    probabilities = {name: [1e-12] * len(words) for name in names} | {"none": [0.0] * len(words)}
    draw_arcs(
        Reading(words, skips, probabilities), tmp_path / "1.png", "A long title " * 20, "and $ note " * 20
    )
    (figure,) = figures
    for row in word_rows(figure):
        boxes = [extent(word) for word in row]
        assert all(a.x1 < b.x0 for a, b in itertools.pairwise(boxes))
    texts = [text for axes in figure.axes for text in axes.texts]
    texts += [text for legend in figure.findobj(Legend) for text in legend.get_texts()]
    for axes in figure.axes:
        low, high = axes.get_ylim()
        labels = [text for text in axes.get_yticklabels() if low <= text.get_position()[1] <= high]
        texts += [*labels, axes.yaxis.label] if axes.axison else []
    assert {"k = 5", "lstm", "probability", "1"} <= {text.get_text() for text in texts}
    for box in map(extent, texts):
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


@pytest.mark.slow
def test_very_long_texts_are_broken_into_pages(tmp_path, figures):
    words = [f"w{t}" for t in range(400)]
    paths = draw_arcs(Reading(words, [3] * 400, {"lstm": [0.5] * 400}), tmp_path / "1.png", "T")
    assert [path.name for path in paths] == [f"1-page-{n + 1}.png" for n in range(len(paths))]
    assert len(paths) == len(figures) == 6 and {path.name for path in tmp_path.iterdir()} == {
        path.name for path in paths
    }
    assert all(pixels(path).shape[0] < 2400 for path in paths)
    assert [word.get_text() for figure in figures for row in word_rows(figure) for word in row] == words
    titles = [figure.axes[0].texts[0].get_text() for figure in figures]
    assert titles == [f"T (page {n} of 6)" for n in range(1, 7)]


def lines_of_axes(axes):
    return [line for line in axes.lines if len(line.get_xdata()) > 2]


def test_arcs_that_leave_a_row_are_marked_at_both_ends(tmp_path, figures):
    """Twenty words fill two rows. One arc crosses the break, and one comes from before the text."""
    skips = [0] * 20
    skips[12], skips[1] = 5, 4
    draw_arcs(Reading([f"w{t}" for t in range(20)], skips, {}), tmp_path / "1.png", "T")
    (figure,) = figures
    rows = [axes for axes in figure.axes if lines_of_axes(axes)]
    marks = [[line.get_marker() for line in axes.lines if line.get_marker() in "<>"] for axes in rows]
    assert marks == [["<", ">"], ["<"]]
    # The cut arc ends at the right edge of one row and continues at the left edge of the next.
    (right,), (left,) = (
        [line for line in axes.lines if line.get_marker() == marker and line.get_color() == skip_color(5)]
        for axes, marker in zip(rows, "><", strict=True)
    )
    (end,), (begin,) = left.get_xdata(), right.get_xdata()
    assert begin == rows[0].get_xlim()[1] and end == rows[1].get_xlim()[0]
    assert len({line.get_color() for line in (left, right)}) == 1


def test_attention_is_drawn_by_its_weights(tmp_path, figures):
    weights = np.array([[1, 0, 0], [0.5, 0.48, 0.02], [0.2, 0.3, 0.5]])
    words, skips = ["a", "b", "c"], [1, 1, 3]
    draw_arcs(Reading(words, skips, {}, weights, is_attention=True), tmp_path / "1.png", "T")
    (axes,) = [axes for axes in figures[0].axes if lines_of_axes(axes)]
    assert len(lines_of_axes(axes)) == 6  # weights below 5 % are not drawn
    of_three = [line for line in lines_of_axes(axes) if line.get_color() == skip_color(3)]
    of_two = [line for line in lines_of_axes(axes) if line.get_color() == skip_color(2)]
    assert [line.get_linewidth() for line in of_three] == [pytest.approx(2.0)]
    assert [line.get_linewidth() for line in of_two] == [pytest.approx(1.92), pytest.approx(1.2)]
    text = arcs_text(Reading(words, skips, {}, weights, is_attention=True))
    assert "weight" in text.splitlines()[0] and " 3  0.50" in re.sub(" +", " ", text).replace(" 0.", "  0.")
    chosen = arcs_text(Reading(words, skips, {}, weights))
    assert "p(k)" in chosen.splitlines()[0]


def test_a_k_has_the_same_colour_whatever_the_longest_is(tmp_path, figures):
    for longest in (5, 30):
        skips = [0, 0, 0, 3, 0, 0, longest]
        draw_arcs(Reading(list("abcdefg"), skips, {}), tmp_path / f"{longest}.png", "T")
    colours = [
        {line.get_color() for axes in figure.axes for line in lines_of_axes(axes)} for figure in figures
    ]
    assert skip_color(3) in colours[0] & colours[1]
    assert len({skip_color(k) for k in range(1, 21)}) == 20


def test_letters_that_no_font_has_are_one_warning(tmp_path):
    with pytest.warns(UserWarning) as caught:
        draw_arcs(Reading(["\U00013000\U00013001", "b"], [0, 1], {}), tmp_path / "1.png", "T")
    assert [str(warning.message)[:16] for warning in caught] == ["no font here has"]


@pytest.mark.parametrize("skips", and_slow([[0], [1], [9], [0, 300]], [0, 300].__eq__))
def test_small_pictures(tmp_path, skips):
    for name, probabilities in (("1.png", {}), ("2.png", {"lstm": [NONE] * len(skips)})):
        draw_arcs(reading(skips, **probabilities), tmp_path / name, "")
        assert pixels(tmp_path / name).shape[1] == 1350


@pytest.mark.parametrize(
    ("words", "skips", "probabilities", "message"),
    [
        ([], [], {}, "at least one word"),
        (["a", "b"], [1], {}, "1 skips for 2 words"),
        (["a", "b"], [0, 1], {"lstm": [0.5]}, "1 probabilities by lstm for 2 words"),
        (["a"], [-1], {}, "-1 is no skip"),
        (["a"], [1], {"lstm": [-0.5]}, "-0.5 is no probability"),
        (["a"], [1], {"lstm": [1.5]}, "1.5 is no probability"),
    ],
)
def test_what_is_no_reading(words, skips, probabilities, message):
    with pytest.raises(ValueError, match=message):
        Reading(words, skips, probabilities)
