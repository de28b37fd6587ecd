"""Check that plots are PNG files of 900 x 600 pixels that show the given numbers."""

import math

import numpy as np
import pytest
from matplotlib import colormaps, pyplot
from matplotlib.figure import Figure
from matplotlib.image import imread

from dynskip_jax.analysis.plots import (
    action_against_truth,
    action_distribution,
    learning_curves,
    metric_over_metric,
    policy_over_training,
    visited_positions,
)
from dynskip_jax.errors import UserError


def pixels(path) -> np.ndarray:
    image = imread(path)
    assert image.shape[:2] == (600, 900)
    return image[..., :3]


def shows(path, color) -> bool:
    """Return whether the picture has a patch of `color` that is larger than text or a line."""
    return int((np.abs(pixels(path) - np.asarray(color)[:3]).max(axis=-1) < 0.01).sum()) > 500


@pytest.fixture
def titles(monkeypatch):
    """Return a list to which the title of each plot is added, in order."""
    found = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda _self, label, **_kwargs: found.append(label))
    return found


@pytest.fixture
def axes(monkeypatch):
    """Return a list to which the first axes of each saved plot are added, in order."""
    found = []
    save = Figure.savefig

    def savefig(self, *args, **kwargs):
        save(self, *args, **kwargs)
        found.append(self.axes[0])

    monkeypatch.setattr(Figure, "savefig", savefig)
    return found


def texts(labels):
    return [label.get_text() for label in labels]


def records(offset=0.0, seeds=None):
    curve = [100 * math.exp(-epoch / 5) + 50 + offset for epoch in range(1, 11)]
    values = [[v - 1, v + 1] if seeds else v for v in curve]
    return [{"epoch": e, "dev_perplexity": v} for e, v in enumerate(values, 1)] + [{"step": 3, "loss": 1.0}]


def curves_into(path, curves, y=("dev_perplexity",), **options):
    learning_curves(curves, "epoch", list(y), path, "PTB", **options)
    return pixels(path)


def test_learning_curves_show_means_and_spread(tmp_path, axes):
    one = curves_into(tmp_path / "1.png", {"lstm": records(seeds=True)})
    two = curves_into(tmp_path / "2.png", {"lstm": records(seeds=True)}, log=True)
    curves_into(tmp_path / "3.png", {"lstm": [], "dynamic:10": records(-10)})
    assert not np.array_equal(one, two) and pyplot.get_fignums() == []
    (line,) = axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [r["dev_perplexity"] for r in records()[:-1]])
    (band,) = axes[0].collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert heights.max() == pytest.approx(line.get_ydata().max() + 2**0.5)
    curves_into(tmp_path / "4.png", {"lstm": records(seeds=True)})  # equal plots are equal files
    assert (tmp_path / "1.png").read_bytes() == (tmp_path / "4.png").read_bytes()


@pytest.mark.parametrize("log", [False, True])
def test_learning_curves_of_a_diverged_run(tmp_path, log):
    bad = [{"epoch": e, "a": [1.0, math.inf if e > 1 else 1.5], "b": math.nan} for e in (1, 2, 3)]
    curves_into(tmp_path / "1.png", {"lstm": bad}, ("a", "b"), log=log)


def test_learning_curves_over_many_examples(tmp_path, axes):
    points = [{"examples": n, "train_accuracy": n / 2e6} for n in np.linspace(0, 2e6, 101).tolist()]
    learning_curves({"lstm": points}, "examples", ["train_accuracy"], tmp_path / "1.png", "T")
    assert set(texts(axes[0].get_xticklabels())) >= {"0", "500k", "1M", "1.5M", "2M"}


@pytest.mark.parametrize("name", ["$", "a $5_$ bill", r"$\frac{1}{", "{x}_1^2"])
def test_a_dollar_in_a_name_begins_no_mathematics(name, tmp_path):
    curves_into(tmp_path / "1.png", {name: records()})
    groups, levels = {name: [(name, [1.0], [2.0])]}, {name: [1.0]}
    metric_over_metric(groups, tmp_path / "2.png", name, x_label=name, y_label="y", levels=levels)


def test_a_picture_replaces_a_link_and_leaves_its_target_alone(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "1.png"
    victim.write_text("mine")
    path.symlink_to(victim)
    (tmp_path / "1.png.tmp").symlink_to(victim)
    try:
        curves_into(path, {"lstm": records()})
    except UserError as error:
        assert "1.png" in str(error)
    assert victim.read_text() == "mine"


def test_metric_over_metric(tmp_path, axes):
    points = [("cost 1", [0.2, 0.4], [0.7, 0.9]), ("cost 0", [0.1, 0.1], [0.5, 0.5])]
    groups, levels = {"skip_rnn": points, "lstm_jump": [("", [0.6], [0.8])]}, {"lstm": [0.9, 0.8]}
    metric_over_metric(groups, tmp_path / "1.png", "T", x_label="read", y_label="accuracy", levels=levels)
    pixels(tmp_path / "1.png")
    (plot,) = axes
    mean = plot.containers[0].lines[0]
    np.testing.assert_allclose(mean.get_xydata(), [[0.1, 0.5], [0.3, 0.8]])
    assert [note.get_text() for note in plot.texts] == ["cost 0", "cost 1", ""]
    # Labels stay inside the picture: a point near the right edge has its label on the left.
    assert [note.get_ha() for note in plot.texts] == ["left", "left", "right"]
    assert sorted(texts(plot.get_legend().get_texts())) == ["lstm", "lstm_jump", "skip_rnn"]
    (level,) = (line for line in plot.lines if line.get_linestyle() == "--")
    np.testing.assert_allclose(level.get_ydata(), 0.85)


def test_action_distribution_normalises_each_position(tmp_path):
    path = tmp_path / "1.png"
    counts = np.array([[1, 1], [3000, 1000], [0, 0]])
    action_distribution(counts, path, "choices", "embedded corpus")
    for share in (0.25, 0.5, 0.75):  # the largest share has the darkest colour
        assert shows(path, colormaps["Blues"](share / 0.75)), share
    assert shows(path, (0.93, 0.93, 0.93))  # the position that was never reached
    assert not shows(path, colormaps["Blues"](0.4 / 0.75))
    action_distribution(np.zeros((2, 2), int), tmp_path / "2.png", "no choices")
    assert shows(tmp_path / "2.png", (0.93, 0.93, 0.93))
    assert pyplot.get_fignums() == []


def test_action_against_truth(tmp_path, titles):
    truth = np.array([[0, 1, 2, -1], [2, 2, 2, 3]])
    actions = np.array([[0, 1, 0, 0], [2, 2, 0, 2]])
    action_against_truth(actions, truth, 3, tmp_path / "1.png", "toy")
    assert titles == ["toy (66.7% of decisions exact)"]  # four of six: targets -1 and 3 have no correct skip
    assert shows(tmp_path / "1.png", colormaps["Blues"](0.5))
    assert shows(tmp_path / "1.png", colormaps["Blues"](1.0))
    action_against_truth(actions[:0], truth[:0], 3, tmp_path / "2.png", "toy")
    assert titles[1:] == ["toy (no decisions)"]


def test_visited_positions(tmp_path, titles, axes):
    truth = np.array([0, 0, 0, 0, 2, 2, -1, 4])
    visited = np.zeros((8, 4), bool)
    visited[:, 3] = visited[0, 0] = visited[:2, 1] = visited[4:6, 2] = visited[6:, 0] = True
    visited_positions(visited, truth, tmp_path / "1.png", "toy", "a note")
    # -1 and 4 are not positions of the sequence.
    assert titles == ["toy (50.0% of chains visit the right position)\n"]
    shares = np.ma.filled(axes[0].images[0].get_array(), np.nan)
    np.testing.assert_allclose(shares, [[0.25, 0.5, 0, 1], [np.nan] * 4, [0, 0, 1, 1]])
    for share in (0.25, 0.5, 1.0):
        assert shows(tmp_path / "1.png", colormaps["Blues"](share)), share
    visited_positions(visited[:0], truth[:0], tmp_path / "2.png", "toy")
    assert titles[1:] == ["toy (no examples)"]
    assert pyplot.get_fignums() == []


@pytest.mark.parametrize("num_actions", [1, 40])
def test_few_and_many_skips(tmp_path, num_actions):
    actions = np.arange(num_actions)
    action_against_truth(actions, actions, num_actions, tmp_path / "1.png", "toy")
    action_distribution(np.eye(num_actions, dtype=np.int64), tmp_path / "2.png", "toy")
    assert shows(tmp_path / "1.png", colormaps["Blues"](1.0))
    assert shows(tmp_path / "2.png", colormaps["Blues"](1.0))


@pytest.mark.parametrize(
    ("K", "labels"),
    [
        (3, ["k = 1", "k = 2", "k = 3"]),
        (21, ["k = 1", "k = 2", "k = 3 to 4", "k = 5 to 8", "k = 9 to 16", "k = 17 to 21"]),
        (200, [*"12", "3 to 4", "5 to 8", "9 to 16", "17 to 32", "33 to 64", "65 to 128", "129 to 200"]),
    ],
)
def test_a_policy_over_training_has_an_area_for_each_k_or_for_bands_of_many(tmp_path, axes, K, labels):
    shares = np.random.default_rng(0).dirichlet(np.ones(K), (2, 4)).swapaxes(0, 1)  # (epochs, seeds, K)
    records = [{"epoch": e, "share": of, "entropy": [0.5, 0.6]} for e, of in enumerate(shares.tolist(), 1)]
    policy_over_training(records, "share", "entropy", tmp_path / "policy.png", "PTB")
    labels = [label if label.startswith("k") else f"k = {label}" for label in labels]
    assert texts(axes[0].get_legend().get_texts()) == labels[::-1]
    assert len({tuple(area.get_facecolor()[0]) for area in axes[0].collections}) == len(labels)
    # The first band ends at the share of k = 1, the last one at 1.
    tops = [area.get_paths()[0].vertices[:, 1].max() for area in axes[0].collections]
    np.testing.assert_allclose(tops[0], shares.mean(axis=1)[:, 0].max(), rtol=1e-6)
    np.testing.assert_allclose(tops[-1], 1, rtol=1e-6)
