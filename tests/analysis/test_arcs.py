"""Check the table, the picture and the HTML page of the skips at each word of a text."""

import math

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from dynskip_jax.analysis.arcs import draw_arcs, table_of_choices
from dynskip_jax.analysis.plots import skip_color
from dynskip_jax.analysis.reading import Reading

NONE = math.nan
WORDS = [
    "you",
    "may",
    "depend",
    "on",
    "the",
    "accuracy",
    "of",
    "the",
    "report",
    "that",
    "they",
    "sent",
]
SKIPS = [0, 1, 1, 1, 1, 1, 3, 1, 2, 5, 5, 11]


def test_a_table_says_where_each_word_goes_back_to():
    weights = np.full((4, 9), 0.5)
    reading = Reading(["you", "a b", "\x1b日", "x" * 30], [0, 1, 2, 9], weights=weights)
    headings, rows = table_of_choices(reading, {"lstm": [NONE, 0.25, 1e-5, 0.00123]})
    assert headings == ["word", "k", "p(k)", "from", "lstm"]
    assert rows == [
        ["you", "", "", "", "-"],
        ["a␣b", "1", "0.50", "you", "0.25"],
        ["\\x1b日", "2", "0.50", "you", "1e-05"],
        ["x" * 23 + "…", "9", "0.50", "(before)", "0.00123"],
    ]


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


def arcs_of(figure):
    return [line for axes in figure.axes[::2] for line in axes.lines if len(line.get_xdata()) > 2]


def test_a_picture_shows_the_words_and_their_arcs(tmp_path, figures):
    lstm = [NONE, *np.geomspace(1e-4, 0.9, 11)]
    paths = [tmp_path / f"{i}.png" for i in range(2)]
    for path in paths:
        draw_arcs(
            Reading(WORDS, SKIPS), {"lstm": lstm, "dynamic:11": lstm[::-1]}, path, "T", "a note"
        )
    assert paths[0].read_bytes() == paths[1].read_bytes() and pyplot.get_fignums() == []
    assert [[word.get_text() for word in row] for row in word_rows(figures[0])] == [WORDS]
    assert len(arcs_of(figures[0])) == 11
    assert {line.get_color() for line in arcs_of(figures[0])} == {skip_color(k) for k in SKIPS if k}
    assert len({skip_color(k) for k in range(1, 21)}) == 20


def test_attention_is_drawn_by_its_weights(tmp_path, figures):
    weights = np.array([[1, 0, 0], [0.5, 0.48, 0.02], [0.2, 0.3, 0.5]])
    reading = Reading(["a", "b", "c"], [1, 1, 3], weights=weights, is_attention=True)
    draw_arcs(reading, {}, tmp_path / "1.png", "T")
    assert len(arcs_of(figures[0])) == 6  # weights below 5 % are not drawn
    of_two = [line for line in arcs_of(figures[0]) if line.get_color() == skip_color(2)]
    assert [line.get_linewidth() for line in of_two] == [pytest.approx(1.92), pytest.approx(1.2)]
    assert table_of_choices(reading, {})[0] == ["word", "k", "weight", "from"]
