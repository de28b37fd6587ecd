"""Check number prediction: labels and rejection against their definition, random streams, the TFDS cache."""

import hashlib

import numpy as np
import pytest

from dynskip_jax.data import builders, load_number_prediction
from dynskip_jax.data.number_prediction import (
    NumberPredictionData,
    follow,
    generate,
    generate_splits,
    hops_of,
    labels_of,
    num_symbols,
)
from dynskip_jax.errors import UserError

SMALL = {"num_train": 2300, "num_dev": 40, "num_test": 1}


def hops_by_definition(row):
    """Return the positions that lead to the label, as the paper defines them.

    The paper has only lengths 11 and 21. Here, lengths other than 21 have one hop.
    """
    pointer = row[-1]
    assert 0 <= pointer < len(row) - 1
    if len(row) != 21:
        return [pointer]
    first = row[pointer]
    assert first < pointer
    return [pointer, first]


@pytest.mark.parametrize("length", [11, 12, 20, 21, 22, 51, 501])
def test_labels_by_definition(length):
    digits, labels = generate(length, 500, seed=3)
    assert digits.shape == (500, length) and labels.shape == (500,)
    assert digits.dtype == labels.dtype == np.int32
    assert digits[:, :-1].min() == labels.min() == 0 and digits[:, :-1].max() == labels.max() == 9
    hops = [hops_by_definition(row) for row in digits.tolist()]
    assert hops_of(digits).tolist() == hops
    answers = [row[hop[-1]] for row, hop in zip(digits.tolist(), hops, strict=True)]
    assert labels.tolist() == labels_of(digits).tolist() == answers
    assert digits.max() < num_symbols(length)


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
    data = NumberPredictionData("", generate_splits(length, 5, sizes), "")
    assert data.fingerprint == digest.hexdigest()


def test_the_papers_example_of_two_hops():
    digits = np.array([[8, 5, 1, 7, 1, 3, 3, 4, 7, 9, 4]])
    assert follow(digits, 2).tolist() == [5]


# 99.99 % quantile of chi-square with nine degrees of freedom.
UNIFORM_BOUND = 33.7


def chi_square(digits, kinds=10):
    expected = digits.size / kinds
    return float(((np.bincount(digits.ravel(), minlength=kinds) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("length", [12, 51, 301])
def test_pointers_are_uniform(length):
    digits, labels = generate(length, 60_000, seed=0)
    freedom = length - 2
    # Chi-square has the mean `freedom` and the variance 2 * `freedom`. A value exceeds five standard
    # deviations with a probability of 1 in 10,000, or less if there are many degrees of freedom.
    assert chi_square(digits[:, -1], length - 1) < freedom + 5 * np.sqrt(2 * freedom)
    assert all(chi_square(digits[:, column]) < UNIFORM_BOUND for column in (0, 9, 10, length - 2))
    assert chi_square(labels) < UNIFORM_BOUND
    # The pointer is independent of the digits.
    assert chi_square(labels[digits[:, -1] == length - 2]) < UNIFORM_BOUND


def test_two_hops_keep_the_conditional_law():
    # Rejection keeps an example with last digit d with probability d / 10: P(d) = d / 45. The digits that no
    # pointer can reach stay uniform.
    digits, _ = generate(21, 20_000, seed=0)
    expected = np.arange(10) / 45 * 20_000
    counts = np.bincount(digits[:, -1], minlength=10)
    assert counts[0] == 0
    assert ((counts - expected)[1:] ** 2 / expected[1:]).sum() < 31.8  # 99.99 %, eight degrees of freedom
    assert all(chi_square(digits[:, column]) < UNIFORM_BOUND for column in range(10, 20))


@pytest.mark.parametrize("length", [11, 21])
def test_seeds_and_splits_are_independent_streams(length):
    sizes = {"train": 3000, "dev": 3000, "test": 3000}
    first, again, other = (generate_splits(length, seed, sizes) for seed in (0, 0, 1))
    rows = {}
    for name, splits in (("first", first), ("other", other)):
        for split, (digits, _) in splits.items():
            rows[name, split] = set(map(bytes, digits.astype(np.uint8)))
            assert len(rows[name, split]) > 2990
    assert all(np.array_equal(first[split][0], again[split][0]) for split in sizes)
    names = list(rows)
    for i, one in enumerate(names):
        for two in names[i + 1 :]:
            assert len(rows[one] & rows[two]) < 10


def test_cache_holds_what_is_generated(tmp_path, nothing_temporary_left):
    for length in (11, 257, 258, 501):
        data = load_number_prediction(length, data=tmp_path, seed=7, **SMALL)
        assert data.sizes == {"train": 2300, "dev": 40, "test": 1}
        expected = generate_splits(length, 7, data.sizes)
        for split, (digits, labels) in data.splits.items():
            np.testing.assert_array_equal(digits, expected[split][0])
            np.testing.assert_array_equal(labels, expected[split][1])
            assert digits.dtype == labels.dtype == np.int32


def test_where_examples_are_kept(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "ptb").mkdir(parents=True)
    monkeypatch.setenv("DYNSKIP_DATA_DIR", str(root))
    data = load_number_prediction(11, **SMALL)
    assert data.source == "generated in memory" and data.name == "number_prediction/length_11"
    assert not (root / "number_prediction").exists()
    (root / "number_prediction").mkdir()  # if the sub-folder exists, the data are written to it as files
    sources = [load_number_prediction(11, **SMALL) for _ in range(2)]
    folder = root / "number_prediction" / "length_11-seed_0-2300_40_1" / "1.0.0"
    assert [each.source for each in sources] == [
        f"generated into the TFDS cache {folder}",
        f"the TFDS cache {folder}",
    ]
    assert {each.fingerprint for each in sources} == {data.fingerprint}
    choices = [(11, {}), (21, {}), (11, {"seed": 1}), (11, {"num_dev": 41}), (51, {})]
    kept = [
        load_number_prediction(n, data=tmp_path / "own", **SMALL | more).fingerprint for n, more in choices
    ]
    assert kept[0] == data.fingerprint and len(set(kept)) == len(choices)


def test_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    data = load_number_prediction(11, data=tmp_path / "file", **SMALL)
    assert "generated in memory" in data.source and "cannot be written" in data.source
    assert data.fingerprint == load_number_prediction(11, data=tmp_path, **SMALL).fingerprint


@pytest.mark.parametrize(("length", "keep"), [(11, 0.5), (301, 0.0)])
@pytest.mark.parametrize("file", ["dataset_info.json", "number_prediction-train.array_record-00000-of-00001"])
def test_damaged_cache_names_the_folder(tmp_path, file, keep, length):
    load_number_prediction(length, data=tmp_path, **SMALL)
    (path,) = tmp_path.rglob(file)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(UserError) as caught:
        load_number_prediction(length, data=tmp_path, **SMALL)
    message = str(caught.value)
    assert f"{path.parent} is damaged" in message and "delete that folder" in message and "\n" not in message


def one_digit_less(digits, labels):
    return digits[:, :-1], labels


def another_label(digits, labels):
    return digits, (labels + 1) % 10


def pointer_to_itself(digits, labels):
    digits[0, -1] = labels[0] = digits.shape[1] - 1
    return digits, labels


def pointer_to_nowhere(digits, labels):
    digits[0, -1] = digits.shape[1]
    return digits, labels


@pytest.mark.parametrize("length", [51])
@pytest.mark.parametrize("damage", [one_digit_less, another_label, pointer_to_itself, pointer_to_nowhere])
def test_examples_that_were_not_written(tmp_path, monkeypatch, length, damage):
    load_number_prediction(length, data=tmp_path, **SMALL)
    read = builders.read_splits

    def read_splits(*arguments):
        records = read(*arguments)
        record = records["dev"][0]
        record["digits"], record["labels"] = damage(record["digits"].copy(), record["labels"].copy())
        return records

    monkeypatch.setattr(builders, "read_splits", read_splits)
    with pytest.raises(UserError, match="is damaged"):
        load_number_prediction(length, data=tmp_path, **SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 10}, r"no length 10: use --length 21 \(two hops\) or .* 11 to 501 \(one hop\)$"),
        ({"length": 502}, "no length 502"),
        ({"length": -51}, "no length -51"),
        ({"length": 11, "num_dev": 0}, "cannot have 0 dev examples: ask for from 1 to 90,909,090"),
        ({"length": 11, "num_train": 10**30}, "train examples: ask for from 1 to"),
        ({"length": 11, "seed": -1}, "seed"),
    ],
)
def test_user_mistakes(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        load_number_prediction(data=tmp_path, **arguments)
    assert not list(tmp_path.iterdir())
    with pytest.raises(UserError, match=message):
        load_number_prediction(**arguments)
