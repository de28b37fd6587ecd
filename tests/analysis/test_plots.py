"""Plots are PNG files of 900 x 600 pixels that show the numbers they were given."""

import math

import numpy as np
import pytest
from matplotlib import colormaps, pyplot
from matplotlib.image import imread

from dynskip_jax.analysis.plots import action_against_truth, action_distribution, learning_curves


def pixels(path) -> np.ndarray:
    image = imread(path)
    assert image.shape[:2] == (600, 900)
    return image[..., :3]


def shows(path, color) -> bool:
    """Whether a patch of the colour is in the picture, larger than text or a line would make."""
    return int((np.abs(pixels(path) - np.asarray(color)[:3]).max(axis=-1) < 0.01).sum()) > 500


def records(offset=0.0, seeds=None):
    curve = [100 * math.exp(-epoch / 5) + 50 + offset for epoch in range(1, 11)]
    values = [[v - 1, v + 1] if seeds else v for v in curve]
    return [{"epoch": e, "dev_perplexity": v} for e, v in enumerate(values, 1)] + [{"step": 3, "loss": 1.0}]


def curves_into(path, curves, y=("dev_perplexity",), **options):
    learning_curves(curves, "epoch", list(y), path, "PTB", **options)
    return pixels(path)


def test_learning_curves(tmp_path):
    one = curves_into(tmp_path / "1.png", {"lstm": records()})
    two = curves_into(tmp_path / "2.png", {"lstm": records(), "dynamic:10": records(-10)})
    log = curves_into(tmp_path / "3.png", {"lstm": records()}, log=True)
    blank = curves_into(tmp_path / "4.png", {"lstm": []})
    pictures = [one, two, log, blank]
    assert all(not np.array_equal(a, b) for i, a in enumerate(pictures) for b in pictures[:i])
    assert pyplot.get_fignums() == []


def test_learning_curves_show_the_spread_over_seeds(tmp_path):
    alone = curves_into(tmp_path / "1.png", {"lstm": records()})
    seeds = curves_into(tmp_path / "2.png", {"lstm": records(seeds=True)})
    blue = np.array([0.82, 0.89, 0.94])  # C0 at 20 %
    band = [int((np.abs(image - blue).max(axis=-1) < 0.03).sum()) for image in (alone, seeds)]
    assert band[1] > band[0] + 1000


def test_learning_curves_of_a_diverged_run(tmp_path):
    bad = [
        {"epoch": 1, "a": 1.0, "b": 2.0},
        {"epoch": 2, "a": math.nan, "b": math.inf},
        {"epoch": 3, "a": 3.0},
    ]
    curves_into(tmp_path / "1.png", {"lstm": bad}, ("a", "b"))
    curves_into(tmp_path / "2.png", {"lstm": bad}, ("a", "b"), log=True)


def test_action_distribution_normalises_each_position(tmp_path):
    path = tmp_path / "1.png"
    counts = np.array([[1, 1], [3000, 1000], [0, 0]])
    action_distribution(counts, path, "choices", "embedded corpus")
    for share in (0.25, 0.5, 0.75):
        assert shows(path, colormaps["Blues"](share)), share
    assert shows(path, (0.93, 0.93, 0.93))  # the position that was never reached
    assert not shows(path, colormaps["Blues"](0.4))
    assert pyplot.get_fignums() == []


def test_action_against_truth(tmp_path, monkeypatch):
    titles = []
    monkeypatch.setattr(
        "matplotlib.axes.Axes.set_title", lambda _self, label, **_kwargs: titles.append(label)
    )
    truth = np.array([[0, 1, 2, -1], [2, 2, 2, 3]])
    actions = np.array([[0, 1, 0, 0], [2, 2, 0, 2]])
    action_against_truth(actions, truth, 3, tmp_path / "1.png", "toy")
    assert titles == ["toy (66.7% of decisions exact)"]  # four of six: -1 and 3 have no right skip
    assert shows(tmp_path / "1.png", colormaps["Blues"](0.5))
    assert shows(tmp_path / "1.png", colormaps["Blues"](1.0))
    action_against_truth(actions[:0], truth[:0], 3, tmp_path / "2.png", "toy")
    assert titles[1:] == ["toy (no decisions)"]


@pytest.mark.parametrize("num_actions", [1, 40])
def test_few_and_many_skips(tmp_path, num_actions):
    actions = np.arange(num_actions)
    action_against_truth(actions, actions, num_actions, tmp_path / "1.png", "toy")
    action_distribution(np.eye(num_actions, dtype=np.int64), tmp_path / "2.png", "toy")
    assert shows(tmp_path / "1.png", colormaps["Blues"](1.0))
    assert shows(tmp_path / "2.png", colormaps["Blues"](1.0))


def test_equal_plots_are_equal_files(tmp_path):
    for name in ("1.png", "2.png"):
        curves_into(tmp_path / name, {"lstm": records(seeds=True)})
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "2.png").read_bytes()
