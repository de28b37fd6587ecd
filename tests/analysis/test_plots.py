"""Check that plots are PNG files of 900 x 600 pixels that show the given numbers."""

import math

import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure

from dynskip_jax.analysis.plots import (
    action_against_truth,
    action_distribution,
    learning_curves,
    visited_positions,
)


@pytest.fixture
def axes(monkeypatch):
    """Return a list to which each saved plot's axes are added; check the files' size."""
    found = []
    save = Figure.savefig

    def savefig(self, file, **kwargs):
        save(self, file, **kwargs)
        width, height = (int.from_bytes(file.getvalue()[at : at + 4]) for at in (16, 20))
        assert (width, height) == (900, 600) and pyplot.get_fignums() == []
        found.append(self.axes[0])

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


def texts(labels):
    return [label.get_text() for label in labels]


def shares_of(axes):
    """Return the fractions that a heat map shows."""
    return np.ma.filled(axes.images[0].get_array(), np.nan)


# --- Curves ---


def records(offset=0.0, seeds=False):
    curve = [100 * math.exp(-epoch / 5) + 50 + offset for epoch in range(1, 11)]
    values = [[v - 1, v + 1] if seeds else v for v in curve]
    return [{"epoch": e, "dev_perplexity": v} for e, v in enumerate(values, 1)] + [
        {"step": 3, "loss": 1.0}
    ]


def curves_into(path, curves, y=("dev_perplexity",), x="epoch", **options):
    learning_curves(curves, x, list(y), path, "PTB", **options)


def test_learning_curves_show_means_and_spread(tmp_path, axes):
    curves_into(tmp_path / "1.png", {"lstm": records(seeds=True)})
    curves_into(tmp_path / "2.png", {"lstm": [], "dynamic:10": records(-10)}, log=True)
    (line,) = axes[0].lines
    (band,) = axes[0].collections
    np.testing.assert_allclose(line.get_ydata(), [r["dev_perplexity"] for r in records()[:-1]])
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(line.get_ydata().max() + 2**0.5)
    points = [{"λ": 0.5, "accuracy": [0.7, 0.9]}, {"λ": 0.25, "accuracy": [0.5, 0.5]}]
    curves_into(tmp_path / "6.png", {"dynamic:5": points}, ["accuracy"], "λ")
    np.testing.assert_allclose(axes[-1].lines[0].get_xydata(), [[0.25, 0.5], [0.5, 0.8]])


def test_learning_curves_of_a_diverged_run(tmp_path, axes):
    bad = [{"epoch": e, "a": [1.0, math.inf if e > 1 else 1.5], "b": math.nan} for e in (1, 2, 3)]
    for log in (False, True):
        curves_into(tmp_path / "1.png", {"lstm": bad}, ("a", "b"), log=log)


# --- Heat maps ---


def test_choices_at_each_position(tmp_path, axes):
    counts = np.array([[1, 1], [3000, 1000], [0, 0]])
    action_distribution(counts, tmp_path / "1.png", "choices", "embedded corpus")
    np.testing.assert_allclose(shares_of(axes[0]), [[0.5, 0.75, np.nan], [0.5, 0.25, np.nan]])
    assert axes[0].images[0].get_clim() == (0, 0.75)  # the largest share has the darkest colour
    action_distribution(np.zeros((2, 2), int), tmp_path / "2.png", "no choices", rows=["a", "the"])
    assert np.isnan(shares_of(axes[1])).all() and texts(axes[1].get_xticklabels()) == ["a", "the"]


def test_choices_against_right_ones(tmp_path, axes):
    truth = np.array([[0, 1, 2, -1], [2, 2, 2, 3]])
    actions = np.array([[0, 1, 0, 0], [2, 2, 0, 2]])
    action_against_truth(actions, truth, 3, tmp_path / "1.png", "toy")
    # Four of six: targets -1 and 3 have no correct skip.
    assert axes[0].figure.get_suptitle() == "toy (66.7% of decisions exact)"
    np.testing.assert_allclose(shares_of(axes[0]), [[1, 0, 0], [0, 1, 0], [0.5, 0, 0.5]])
    action_against_truth(actions[:0], truth[:0], 40, tmp_path / "2.png", "toy")
    assert axes[1].figure.get_suptitle() == "toy (no decisions)"

    truth = np.array([0, 0, 0, 0, 2, 2])
    visited = np.zeros((6, 4), bool)
    visited[:, 3] = visited[0, 0] = visited[:2, 1] = visited[4:, 2] = True
    visited_positions(visited, truth, tmp_path / "3.png", "toy", "a note")
    assert axes[2].figure.get_suptitle() == "toy (50.0% of chains visit the right position)"
    np.testing.assert_allclose(shares_of(axes[2]), [[0.25, 0.5, 0, 1], [np.nan] * 4, [0, 0, 1, 1]])
