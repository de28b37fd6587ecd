"""Check number prediction: labels and rejection against their definition, random streams, the TFDS cache."""

import hashlib

import numpy as np
import pytest

from dynskip_jax.data import GeneratedData, load_number_prediction
from dynskip_jax.data.number_prediction import DEFAULT_SIZES, generate, generate_splits, hops_of, num_symbols
from dynskip_jax.errors import UserError

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
def test_the_papers_lengths_keep_their_examples(length):
    """The examples are the allowed rows of digits, in the order drawn; the fingerprint is their SHA-256."""
    sizes = {"train": 700, "dev": 30, "test": 1}
    digest = hashlib.sha256()
    for stream, (split, size) in enumerate(sizes.items()):
        rng = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(stream,)))
        drawn = rng.integers(10, size=(20 * size, length), dtype=np.int32).tolist()
        rows = [row for row in drawn if length == 11 or row[row[-1]] < row[-1]][:size]
        labels = [row[hops_by_definition(row)[-1]] for row in rows]
        digest.update(f"{split} ({size}, {length})\n".encode())
        for values in (rows, labels):
            digest.update(np.array(values, "<i4").tobytes())
    assert GeneratedData("", generate_splits(length, 5, sizes)).fingerprint == digest.hexdigest()


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


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for split, size in (("dev", 40), ("test", 1)):
        monkeypatch.setitem(DEFAULT_SIZES, split, size)


def test_where_examples_are_kept(tmp_path, monkeypatch, nothing_temporary_left):
    root = tmp_path / "root"
    (root / "ptb").mkdir(parents=True)
    monkeypatch.setenv("DYNSKIP_DATA_DIR", str(root))
    data = load_number_prediction(11, num_train=2300)
    assert data.source == "generated in memory" and data.name == "number_prediction/length_11"
    assert not (root / "number_prediction").exists()
    (root / "number_prediction").mkdir()  # if the sub-folder exists, the data are written to it as files
    folder = root / "number_prediction" / "length_11-train_2300" / "1.1.0"
    for source in (f"generated into the TFDS cache {folder}", f"the TFDS cache {folder}"):
        kept = load_number_prediction(11, num_train=2300)
        assert kept.source == source and kept.fingerprint == data.fingerprint
    for length in (21, 501):
        kept = load_number_prediction(length, data=tmp_path / "own", num_train=2300)
        expected = generate_splits(length, 0, kept.sizes)
        for split, arrays in kept.splits.items():
            for array, wanted in zip(arrays, expected[split], strict=True):
                np.testing.assert_array_equal(array, wanted)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match=r"cannot be written.*name another folder with --data"):
        load_number_prediction(11, data=tmp_path / "file", num_train=10)


@pytest.mark.parametrize("keep", [0.5, 0.0])
@pytest.mark.parametrize("file", ["dataset_info.json", "number_prediction-train.array_record-00000-of-00001"])
def test_damaged_cache_names_the_folder(tmp_path, file, keep):
    load_number_prediction(301, data=tmp_path, num_train=2300)
    (path,) = tmp_path.rglob(file)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(UserError, match=r"is damaged .*delete that folder") as caught:
        load_number_prediction(301, data=tmp_path, num_train=2300)
    assert str(path.parent) in str(caught.value) and "\n" not in str(caught.value)
