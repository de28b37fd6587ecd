"""Check associative recall against its definition, row by row."""

import collections

import numpy as np
import pytest

from dynskip_jax.data.recall import NOT_ASKED, NUM_WORDS, generate, load_recall


@pytest.mark.parametrize(("length", "pairs"), [(32, 2), (64, 4), (256, 16)])
def test_each_key_returns_once_and_asks_for_its_value(length, pairs):
    for words, targets in zip(*generate(length, 300, 0), strict=True):
        value_of = dict(words[: 2 * pairs].reshape(-1, 2).tolist())
        assert len(value_of) == len(set(value_of.values())) == pairs
        assert max(value_of) < NUM_WORDS // 2 <= min(value_of.values())
        (asked,) = np.nonzero(targets != NOT_ASKED)
        assert asked.min() >= 2 * pairs and sorted(words[asked].tolist()) == sorted(value_of)
        assert [value_of[key] for key in words[asked].tolist()] == targets[asked].tolist()


def test_keys_return_by_a_power_law():
    """The nearest place is the most likely one, by the ratio that the exponent says."""
    _, targets = generate(32, 40_000, 1)  # two draws without replacement among 14 places
    counts = collections.Counter(np.nonzero(targets != NOT_ASKED)[1].tolist())
    weights = np.arange(1.0, 15.0) ** (0.01 - 1)
    p = weights / weights.sum()
    expected = p + [sum(p[j] * p[i] / (1 - p[j]) for j in range(14) if j != i) for i in range(14)]
    found = np.array([counts[place] for place in range(4, 32, 2)]) / len(targets)
    np.testing.assert_allclose(found, expected, atol=0.012)


def test_splits_differ_and_are_the_same_every_time():
    data = load_recall(32, 100)
    assert data.fingerprint == load_recall(32, 100).fingerprint != load_recall(32, 101).fingerprint
    assert {name: words.shape[1] for name, (words, _) in data.splits.items()} == {
        **dict.fromkeys(("train", "dev", "test"), 32),
        "twice": 64,
    }
    assert len({words[0, :32].tobytes() for words, _ in data.splits.values()}) == 4
