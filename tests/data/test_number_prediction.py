"""Number prediction: labels and rejection against their definition, streams, the TFDS cache."""

import numpy as np
import pytest

from dynskip_jax.data import load_number_prediction
from dynskip_jax.data.number_prediction import (
    DEFAULT_SIZES,
    follow,
    generate,
    generate_splits,
    is_allowed,
)
from dynskip_jax.errors import UserError

SMALL = {"num_train": 2300, "num_dev": 40, "num_test": 1}


def label_by_definition(row):
    """The paper's sentence, in plain Python."""
    pointer = row[-1]
    if len(row) == 11:
        return row[pointer]
    first = row[pointer]
    assert first < pointer
    return row[first]


@pytest.mark.parametrize("length", [11, 21])
def test_labels_by_definition(length):
    digits, labels = generate(length, 500, seed=3)
    assert digits.shape == (500, length) and labels.shape == (500,)
    assert digits.dtype == labels.dtype == np.int32
    assert digits.min() == 0 and digits.max() == 9
    assert labels.tolist() == [label_by_definition(row) for row in digits.tolist()]


def test_the_papers_example_of_two_hops():
    digits = np.array([[8, 5, 1, 7, 1, 3, 3, 4, 7, 9, 4]])
    assert follow(digits, 2).tolist() == [5]


def test_rejection_by_definition():
    digits = np.random.default_rng(5).integers(0, 10, (400, 21))
    assert is_allowed(digits).tolist() == [row[row[-1]] < row[-1] for row in digits.tolist()]
    assert is_allowed(digits[:, :11]).all()


# 99.99 % quantile of chi-square with nine degrees of freedom.
UNIFORM_BOUND = 33.7


def chi_square(digits):
    expected = digits.size / 10
    return float(((np.bincount(digits.ravel(), minlength=10) - expected) ** 2 / expected).sum())


def test_digits_are_uniform():
    # A column on its own exceeds UNIFORM_BOUND once in 10,000; twelve are looked at and the seed is fixed.
    digits, labels = generate(11, 20_000, seed=0)
    assert all(chi_square(digits[:, column]) < UNIFORM_BOUND for column in range(11))
    assert chi_square(labels) < UNIFORM_BOUND


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


def test_default_sizes_prepare_once(tmp_path, capfd):
    data = load_number_prediction(21, data=str(tmp_path))
    assert data.name == "number_prediction/length_21"
    assert data.sizes == dict(DEFAULT_SIZES)
    assert "generated" in data.source and str(tmp_path) in data.source
    again = load_number_prediction(21, data=str(tmp_path))
    assert again.source == f"the TFDS cache {tmp_path / 'number_prediction' / 'length_21' / '1.0.0'}"
    assert again.fingerprint == data.fingerprint
    assert capfd.readouterr() == ("", "")


def test_cache_holds_what_is_generated(tmp_path):
    for length in (11, 21):
        data = load_number_prediction(length, data=str(tmp_path), seed=7, **SMALL)
        assert data.sizes == {"train": 2300, "dev": 40, "test": 1}
        expected = generate_splits(length, 7, data.sizes)
        for split, (digits, labels) in data.splits.items():
            np.testing.assert_array_equal(digits, expected[split][0])
            np.testing.assert_array_equal(labels, expected[split][1])
            assert digits.dtype == labels.dtype == np.int32


def test_seeds_and_sizes_do_not_share_a_cache(tmp_path):
    choices = [(11, {}), (21, {}), (11, {"seed": 1}), (11, {"num_dev": 41})]
    loads = [
        [
            load_number_prediction(length, data=str(tmp_path), **(SMALL | more)).fingerprint
            for length, more in choices
        ]
        for _ in range(2)
    ]
    assert loads[0] == loads[1]
    assert len(set(loads[0])) == len(choices)


def test_tfds_directory_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    assert str(tmp_path) in load_number_prediction(11, **SMALL).source


def test_directory_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    data = load_number_prediction(11, data=str(tmp_path / "file"), **SMALL)
    assert "generated in memory" in data.source and "cannot be written" in data.source
    assert data.fingerprint == load_number_prediction(11, data=str(tmp_path), **SMALL).fingerprint


@pytest.mark.parametrize("keep", [0.5, 0.0])
@pytest.mark.parametrize("file", ["dataset_info.json", "number_prediction-train.array_record-00000-of-00001"])
def test_damaged_cache_names_the_folder(tmp_path, file, keep):
    load_number_prediction(11, data=str(tmp_path), **SMALL)
    (path,) = tmp_path.rglob(file)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    with pytest.raises(UserError) as caught:
        load_number_prediction(11, data=str(tmp_path), **SMALL)
    message = str(caught.value)
    assert f"{path.parent} is damaged" in message and "delete that folder" in message and "\n" not in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 12}, "11 .*21"),
        ({"length": 11, "num_dev": 0}, "dev examples"),
        ({"length": 11, "seed": -1}, "seed"),
    ],
)
def test_user_mistakes(tmp_path, arguments, message):
    with pytest.raises(UserError, match=message):
        load_number_prediction(data=str(tmp_path), **arguments)
    assert not list(tmp_path.iterdir())
