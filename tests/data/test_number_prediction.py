"""Check number prediction: labels and rejection against their definition, and random streams."""

import hashlib

import numpy as np
import pytest

from dynskip_jax.data import load_number_prediction
from dynskip_jax.data.number_prediction import DEFAULT_SIZES, generate, hops_of, num_symbols

UNIFORM_BOUND = 33.7  # 99.99 % quantile of chi-square with nine degrees of freedom


def hops_by_definition(row):
    """Return the positions that lead to the label: two at the paper's length 21, one at all others."""
    pointer = row[-1]
    assert 0 <= pointer < len(row) - 1
    if len(row) != 21:
        return [pointer]
    assert row[pointer] < pointer
    return [pointer, row[pointer]]


@pytest.mark.parametrize("length", [11, 12, 21, 22, 501])
def test_labels_by_definition(length):
    digits, labels = generate(length, 500, seed=3)
    assert digits.shape == (500, length) and digits.dtype == labels.dtype == np.int32
    assert digits[:, :-1].min() == labels.min() == 0 and digits[:, :-1].max() == labels.max() == 9
    hops = [hops_by_definition(row) for row in digits.tolist()]
    assert hops_of(digits).tolist() == hops
    answers = [row[hop[-1]] for row, hop in zip(digits.tolist(), hops, strict=True)]
    assert labels.tolist() == answers
    assert digits.max() < num_symbols(length) == {11: 10, 21: 10}.get(length, length - 1)


@pytest.mark.parametrize("length", [11, 21])
def test_the_papers_lengths_keep_their_examples(monkeypatch, length):
    """The examples are the allowed rows of digits, in the order drawn; the fingerprint is their SHA-256."""
    sizes = {"train": 700, "dev": 30, "test": 1}
    for split in ("dev", "test"):
        monkeypatch.setitem(DEFAULT_SIZES, split, sizes[split])
    digest = hashlib.sha256()
    for stream, (split, size) in enumerate(sizes.items()):
        rng = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(stream,)))
        drawn = rng.integers(10, size=(20 * size, length), dtype=np.int32).tolist()
        rows = [row for row in drawn if length == 11 or row[row[-1]] < row[-1]][:size]
        labels = [row[hops_by_definition(row)[-1]] for row in rows]
        digest.update(f"{split} ({size}, {length})\n".encode())
        for values in (rows, labels):
            digest.update(np.array(values, "<i4").tobytes())
    assert load_number_prediction(length, 700, seed=5).fingerprint == digest.hexdigest()


def chi_square(digits, kinds=10):
    expected = digits.size / kinds
    return float(((np.bincount(digits.ravel(), minlength=kinds) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("length", [11, 51, 301])
def test_digits_and_pointers_are_uniform(length):
    digits, labels = generate(length, 60_000, seed=0)
    freedom = length - 2
    # A value exceeds five standard deviations with a probability of 1 in 10,000, or less.
    assert chi_square(digits[:, -1], length - 1) < freedom + 5 * np.sqrt(2 * freedom)
    assert all(chi_square(digits[:, column]) < UNIFORM_BOUND for column in (0, 9, length - 2))
    assert chi_square(labels) < UNIFORM_BOUND
    assert chi_square(labels[digits[:, -1] == length - 2]) < UNIFORM_BOUND  # independent of the pointer
