"""Generate the number prediction task (Gui et al. 2019): follow one or two pointers in a sequence of digits.

The paper uses the lengths 11 (one hop) and 21 (two hops). As an extension, every other length up to 501 is a
one-hop task whose pointer can point to any position before the last.
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
      name: Name with the length, such as "number_prediction/length_11".
      splits: For "train", "dev" and "test", the digits, int32 (examples, time), and the labels, int32
        (examples,).
      source: Readable phrase for where the examples came from.
    """

    name: str
    splits: Mapping[str, tuple[Int[np.ndarray, "examples time"], Int[np.ndarray, "examples"]]]
    source: str

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each split."""
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
    """Return the number of pointers to follow: two at length 21, one at every other length."""
    return 2 if length == TWO_HOPS else 1


def num_symbols(length: int) -> int:
    """Return the number of symbols: 10 with two hops, `max(10, length - 1)` with one hop."""
    return NUM_DIGITS if num_hops(length) == 2 else max(NUM_DIGITS, length - 1)


def symbols_by_position(length: int) -> Int[np.ndarray, "time"]:
    """Return, for each position, the number n of its possible symbols, which are uniform in 0..n-1.

    n is 10 at all positions but the last, where it is `num_symbols(length)`.
    """
    return np.array([NUM_DIGITS] * (length - 1) + [num_symbols(length)])


def follow(digits: Int[np.ndarray, "examples time"], hops: int) -> Int[np.ndarray, "examples"]:
    """Return the symbol of each row after `hops` hops from the last symbol.

    A hop replaces a symbol by the symbol at the position that it denotes, counted from 0. So one hop gives
    x[x[T-1]], and two hops give x[x[x[T-1]]]. The symbols that are followed must be valid positions.
    """
    rows = np.arange(len(digits))
    value = digits[:, -1]
    for _ in range(hops):
        value = digits[rows, value]
    return value


def labels_of(digits: Int[np.ndarray, "examples time"]) -> Int[np.ndarray, "examples"]:
    """Return the label of each row: the digit at the position to which the last pointer points."""
    return follow(digits, num_hops(digits.shape[1]))


def hops_of(digits: Int[np.ndarray, "examples time"]) -> Int[np.ndarray, "examples hops"]:
    """Return the positions to which the pointers point, in order; the answer is at the last of them.

    They are x[T-1] with one hop, and x[T-1] and x[x[T-1]] with two hops.
    """
    return np.stack([follow(digits, hop) for hop in range(num_hops(digits.shape[1]))], axis=1)


def is_allowed(digits: Int[np.ndarray, "examples time"]) -> np.ndarray:
    """Return whether each row is a valid example, (examples,).

    With one hop, all rows are valid. With two hops, the second pointer must point to an earlier position than
    the first: x[x[T-1]] < x[T-1].
    """
    if num_hops(digits.shape[1]) == 1:
        return np.ones(len(digits), bool)
    return follow(digits, 1) < digits[:, -1]


def check_length(length: int) -> None:
    """Check that the task is defined for a sequence length.

    Raises:
      UserError: `length` is not in 11..501.
    """
    if not SHORTEST <= length <= LONGEST:
        raise UserError(
            f"number prediction has no length {length}: use --length {TWO_HOPS} (two hops) or any other from "
            f"{SHORTEST} to {LONGEST} (one hop)"
        )


def generate(
    length: int, num_examples: int, seed: int, stream: int = 0
) -> tuple[Int[np.ndarray, "examples time"], Int[np.ndarray, "examples"]]:
    """Draw examples whose digits are uniform in 0..9; rows that are not `is_allowed` are drawn again.

    With one hop, the last symbol is a position that is uniform in 0..T-2. At T = 11 this is also 0..9.

    Args:
      length: Number of symbols in a row, T: 21 (x' = x[x[T-1]], y = x[x'], x' < x[T-1]) or another from 11 to
        501 (y = x[x[T-1]]).
      num_examples: Number of rows.
      seed: Random seed of the data set, at least 0.
      stream: Number of an independent random stream of this seed; the splits use 0, 1 and 2.

    Returns:
      The symbols (examples, time) and the labels (examples,), both int32.

    Raises:
      UserError: `length` is not in 11..501, or `num_examples` is negative.
    """
    check_length(length)
    if num_examples < 0:
        raise UserError(f"number prediction cannot have {num_examples} examples: ask for 0 or more")
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))
    rows = np.empty((0, length), np.int32)
    while len(rows) < num_examples:
        # With two hops, nearly half of the rows are allowed, so two or three rounds are enough.
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
    """Return the examples of one length.

    By default, they are generated in memory, which takes about 0.1 s at length 11 and 3 s at length 501.

    With a TFDS directory, the same examples are written to it by the first call and read by later ones. The
    directory is `data`, or `$DYNSKIP_DATA_DIR` if that has a sub-folder number_prediction. Each combination
    of length, seed and sizes is a separate TFDS config in a separate folder. If the directory cannot be
    written, the examples are generated in memory, and `source` contains the reason.

    Args:
      length: Number of symbols in a row: 21 (two hops) or another from 11 to 501 (one hop).
      data: The TFDS directory; None writes no files, unless `$DYNSKIP_DATA_DIR/number_prediction` exists.
      seed: Random seed of the examples, at least 0.
      num_train: Number of training examples, at least 1.
      num_dev: Number of development examples, at least 1.
      num_test: Number of test examples, at least 1.
      environ: Environment variables.

    Raises:
      UserError: `length`, `seed` or a size is out of range, or the prepared files are damaged.
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
            # Another process may have prepared the same folder in the meantime; then it can be read.
            if not tfds_tools.is_prepared(folder):
                reason = error.strerror or " ".join(str(error).split())
                source = f"generated in memory, as {folder} cannot be written ({reason})"
                return NumberPredictionData(name, generate_splits(length, seed, sizes), source)
    source = f"{'the' if found else 'generated into the'} TFDS cache {folder}"
    return NumberPredictionData(name, _read(directory, folder, length, seed, sizes), source)


def _tfds_directory(data: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> Path | None:
    """Return the user's TFDS directory for the examples, or None if there is none."""
    if data is not None:
        return Path(data).expanduser()
    folder = named_folder(NAME, environ)
    return None if folder is None else folder.parent


def config_name(length: int, seed: int, sizes: Mapping[str, int]) -> str:
    """Return the name of the TFDS config: `length_11`, followed by seed and sizes unless both are default."""
    if seed == 0 and sizes == DEFAULT_SIZES:
        return f"length_{length}"
    return f"length_{length}-seed_{seed}-" + "_".join(str(sizes[split]) for split in SPLITS)


def generate_splits(
    length: int, seed: int, sizes: Mapping[str, int]
) -> dict[str, tuple[Int[np.ndarray, "examples time"], Int[np.ndarray, "examples"]]]:
    """Return the digits and labels of each split, drawn from independent random streams of `seed`."""
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
