"""Number prediction (Gui et al. 2019): follow one or two pointers in a sequence of random digits.

The paper has lengths 11 (one hop) and 21 (two hops). Beyond the paper, every other length up to 501 is the
one-hop task with a pointer that reaches the whole sequence.
"""

import dataclasses
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Int

from dynskip_jax.data import tfds_tools
from dynskip_jax.data.data_folder import named_folder
from dynskip_jax.errors import UserError

NAME = "number_prediction"
VERSION = "1.0.0"
SPLITS = ("train", "dev", "test")
DEFAULT_SIZES: Mapping[str, int] = {"train": 100_000, "dev": 10_000, "test": 10_000}
PAPER_LENGTHS = (11, 21)
SHORTEST, LONGEST, TWO_HOPS = 11, 501, 21
NUM_DIGITS = 10


@dataclasses.dataclass(frozen=True)
class NumberPredictionData:
    """The examples of one length.

    Attributes:
      name: such as "number_prediction/length_11".
      splits: for "train", "dev" and "test" the digits, int32 (examples, time), and labels, int32 (examples,).
      source: a phrase for people: where the examples came from.
    """

    name: str
    splits: Mapping[str, tuple[Int[np.ndarray, "examples time"], Int[np.ndarray, "examples"]]]
    source: str

    @property
    def sizes(self) -> dict[str, int]:
        """Examples of each split."""
        return {split: len(labels) for split, (_, labels) in self.splits.items()}

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over the digits and labels of the splits."""
        digest = hashlib.sha256()
        for split, (digits, labels) in self.splits.items():
            digest.update(f"{split} {digits.shape}\n".encode())
            digest.update(digits.astype("<i4").tobytes())
            digest.update(labels.astype("<i4").tobytes())
        return digest.hexdigest()


def num_hops(length: int) -> int:
    """How many pointers lead to the answer: two at length 21, one at every other."""
    return 2 if length == TWO_HOPS else 1


def num_symbols(length: int) -> int:
    """How many symbols there are: the ten digits, with one hop as many as the positions before the last."""
    return NUM_DIGITS if num_hops(length) == 2 else max(NUM_DIGITS, length - 1)


def symbols_by_position(length: int) -> Int[np.ndarray, "time"]:
    """For each position n, where its symbol is uniform in 0..n-1: ten, at the last one all symbols."""
    return np.array([NUM_DIGITS] * (length - 1) + [num_symbols(length)])


def follow(digits: Int[np.ndarray, "examples time"], hops: int) -> Int[np.ndarray, "examples"]:
    """Start from the last symbol and `hops` times take the one at the position (from 0) that it names.

    One hop is x[x[T-1]], two hops are x[x[x[T-1]]]. The symbols that are followed must be positions.
    """
    rows = np.arange(len(digits))
    value = digits[:, -1]
    for _ in range(hops):
        value = digits[rows, value]
    return value


def labels_of(digits: Int[np.ndarray, "examples time"]) -> Int[np.ndarray, "examples"]:
    """The label of each row: the digit where the last hop leads."""
    return follow(digits, num_hops(digits.shape[1]))


def hops_of(digits: Int[np.ndarray, "examples time"]) -> Int[np.ndarray, "examples hops"]:
    """The positions that the pointers lead to, in order; at the last of them stands the answer.

    One hop has x[T-1], two hops have x[T-1] and x[x[T-1]].
    """
    return np.stack([follow(digits, hop) for hop in range(num_hops(digits.shape[1]))], axis=1)


def is_allowed(digits: Int[np.ndarray, "examples time"]) -> np.ndarray:
    """Which rows the task has: with two hops, those whose first hop leads backwards, x' < x[T-1]."""
    if num_hops(digits.shape[1]) == 1:
        return np.ones(len(digits), bool)
    return follow(digits, 1) < digits[:, -1]


def check_length(length: int) -> None:
    """Refuse a sequence length that the task does not define.

    Raises:
      UserError: when `length` is not in 11..501.
    """
    if not SHORTEST <= length <= LONGEST:
        raise UserError(
            f"number prediction has no length {length}: use --length {TWO_HOPS} (two hops) or any other from "
            f"{SHORTEST} to {LONGEST} (one hop)"
        )


def generate(
    length: int, num_examples: int, seed: int, stream: int = 0
) -> tuple[Int[np.ndarray, "examples time"], Int[np.ndarray, "examples"]]:
    """Draw examples: digits uniform in 0..9, rows that `is_allowed` refuses drawn again.

    With one hop the last symbol is no digit but a position, uniform in 0..T-2; at T = 11 that is the same.

    Args:
      length: symbols in a row, T: 21 (x' = x[x[T-1]], y = x[x'], x' < x[T-1]) or another from 11 to 501
        (y = x[x[T-1]]).
      num_examples: rows.
      seed: of the dataset, at least 0.
      stream: number of an independent stream of the same seed; the splits use 0, 1 and 2.

    Returns:
      The symbols and the labels, both int32.

    Raises:
      UserError: for another length or a negative number of examples.
    """
    check_length(length)
    if num_examples < 0:
        raise UserError(f"number prediction cannot have {num_examples} examples: ask for 0 or more")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))
    rows = np.empty((0, length), np.int32)
    while len(rows) < num_examples:
        # The first of two hops leads backwards in nearly half of the rows, so two or three rounds are enough.
        size = (num_hops(length) * num_examples, length)
        drawn = rng.integers(symbols_by_position(length), size=size, dtype=np.int32)
        rows = np.concatenate([rows, drawn[is_allowed(drawn)]])
    digits = np.ascontiguousarray(rows[:num_examples])
    return digits, labels_of(digits)


def load_number_prediction(
    length: int,
    *,
    data: str | os.PathLike[str] | None = None,
    seed: int = 0,
    num_train: int = DEFAULT_SIZES["train"],
    num_dev: int = DEFAULT_SIZES["dev"],
    num_test: int = DEFAULT_SIZES["test"],
    environ: Mapping[str, str] = os.environ,
) -> NumberPredictionData:
    """The examples of one length, generated in memory: a matter of 0.1 s at length 11, of 3 s at length 501.

    Where a TFDS directory is named, by `data` or as `$DYNSKIP_DATA_DIR` with a sub-folder number_prediction,
    the same examples are prepared in it the first time, and read from there later: each length, seed and
    choice of sizes is a TFDS config, and so a folder, of its own. If the directory cannot be written, they
    are generated in memory after all, and `source` says so.

    Args:
      length: symbols in a row: 21 (two hops) or another from 11 to 501 (one hop).
      data: the TFDS directory; None writes no files, unless `$DYNSKIP_DATA_DIR/number_prediction` exists.
      seed: of the examples, at least 0.
      num_train: training examples, at least 1.
      num_dev: development examples, at least 1.
      num_test: test examples, at least 1.
      environ: the environment variables.

    Raises:
      UserError: for another length, seed or size, or when the prepared files are damaged.
    """
    check_length(length)
    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    for split, size in sizes.items():
        if size < 1:
            raise UserError(f"number prediction needs {split} examples: ask for at least 1, not {size}")
    if seed < 0:
        raise UserError(f"the seed of number prediction's examples is {seed}: use 0 or more")

    name = f"{NAME}/length_{length}"
    directory = _tfds_directory(data, environ)
    if directory is None:
        return NumberPredictionData(name, generate_splits(length, seed, sizes), "generated in memory")
    folder = directory / NAME / config_name(length, seed, sizes) / VERSION
    found = tfds_tools.is_prepared(folder)
    if not found:
        try:
            _prepare(directory, length, seed, sizes)
        except OSError as error:
            # Another process may have prepared the same folder in the meantime; then it is ready to be read.
            if not tfds_tools.is_prepared(folder):
                reason = error.strerror or " ".join(str(error).split())
                source = f"generated in memory, as {folder} cannot be written ({reason})"
                return NumberPredictionData(name, generate_splits(length, seed, sizes), source)
    source = f"{'the' if found else 'generated into the'} TFDS cache {folder}"
    return NumberPredictionData(name, _read(directory, folder, length, seed, sizes), source)


def _tfds_directory(data: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    """Where the user keeps prepared examples, if anywhere."""
    if data is not None:
        return Path(data).expanduser()
    folder = named_folder(NAME, environ)
    return None if folder is None else folder.parent


def config_name(length: int, seed: int, sizes: Mapping[str, int]) -> str:
    """The TFDS config: `length_11`, with the seed and sizes appended where they are not the default ones."""
    if seed == 0 and sizes == DEFAULT_SIZES:
        return f"length_{length}"
    return f"length_{length}-seed_{seed}-" + "_".join(str(sizes[split]) for split in SPLITS)


def generate_splits(
    length: int, seed: int, sizes: Mapping[str, int]
) -> dict[str, tuple[Int[np.ndarray, "examples time"], Int[np.ndarray, "examples"]]]:
    """Digits and labels of each split, from independent streams of `seed`."""
    return {split: generate(length, sizes[split], seed, stream) for stream, split in enumerate(SPLITS)}


def _prepare(directory: Path, length: int, seed: int, sizes: Mapping[str, int]) -> None:
    from dynskip_jax.data.number_prediction_builder import make_builder

    with tfds_tools.quietly():
        make_builder(directory, length, seed, sizes).download_and_prepare()


def _read(
    directory: Path, folder: Path, length: int, seed: int, sizes: Mapping[str, int]
) -> dict[str, tuple[Int[np.ndarray, "examples time"], Int[np.ndarray, "examples"]]]:
    from dynskip_jax.data.number_prediction_builder import make_builder

    records = tfds_tools.read_splits(lambda: make_builder(directory, length, seed, sizes), folder)
    splits = {}
    for split in SPLITS:
        try:
            digits, labels = (
                np.concatenate([record[key] for record in records[split]]).astype(np.int32)
                for key in ("digits", "labels")
            )
            sound = (
                digits.shape == (sizes[split], length)
                and bool((digits < symbols_by_position(length)).all())
                and np.array_equal(labels, labels_of(digits))
            )
        except (KeyError, ValueError, IndexError) as error:
            raise tfds_tools.damaged(folder, error) from error
        if not sound:
            raise tfds_tools.damaged(folder, f"its {split} split is not what was written")
        splits[split] = digits, labels
    return splits
