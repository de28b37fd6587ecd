"""Generate the number prediction task (Gui et al. 2019): follow one or two pointers in a sequence of digits.

The paper uses the lengths 11 (one hop) and 21 (two hops). As an extension, every other length up to 501 is a
one-hop task whose pointer can point to any position before the last.
"""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int

from dynskip_jax.data.files import SPLITS, PathLike, is_prepared, named_folder
from dynskip_jax.data.messages import shown
from dynskip_jax.errors import UserError

NAME, VERSION = "number_prediction", "1.0.0"
DEFAULT_SIZES: Mapping[str, int] = {"train": 100_000, "dev": 10_000, "test": 10_000}
PAPER_LENGTHS = (11, 21)
SHORTEST, LONGEST, TWO_HOPS = 11, 501, 21
NUM_DIGITS = 10
_MOST_SYMBOLS = 1_000_000_000  # of a split, 4 GB

Digits = Int[np.ndarray, "examples time"]
Labels = Int[np.ndarray, " examples"]


@dataclasses.dataclass(frozen=True)
class NumberPredictionData:
    """The digits and labels (int32) of each split, for one length."""

    name: str
    splits: Mapping[str, tuple[Digits, Labels]]
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
    """Return, for each position, the number n of its possible symbols, which are uniform in 0..n-1."""
    return np.array([NUM_DIGITS] * (length - 1) + [num_symbols(length)])


def follow(digits: Digits, hops: int) -> Labels:
    """Return the symbol of each row after `hops` hops: x[x[T-1]] after one, x[x[x[T-1]]] after two."""
    rows = np.arange(len(digits))
    value = digits[:, -1]
    for _ in range(hops):
        value = digits[rows, value]
    return value


def labels_of(digits: Digits) -> Labels:
    """Return the label of each row: the digit at the position to which the last pointer points."""
    return follow(digits, num_hops(digits.shape[1]))


def hops_of(digits: Digits) -> Int[np.ndarray, "examples hops"]:
    """Return the positions to which the pointers point, in order; the answer is at the last of them."""
    return np.stack([follow(digits, hop) for hop in range(num_hops(digits.shape[1]))], axis=1)


def is_allowed(digits: Digits) -> Bool[np.ndarray, " examples"]:
    """Return whether each row is a valid example: with two hops, x[x[T-1]] < x[T-1]."""
    if num_hops(digits.shape[1]) == 1:
        return np.ones(len(digits), bool)
    return follow(digits, 1) < digits[:, -1]


def check_length(length: int) -> None:
    """Raise a `UserError` if the task is not defined for a sequence length."""
    if not SHORTEST <= length <= LONGEST:
        raise UserError(
            f"number prediction has no length {shown(length)}: use --length {TWO_HOPS} (two hops) or any "
            f"other from {SHORTEST} to {LONGEST} (one hop)"
        )


def generate(length: int, num_examples: int, seed: int, stream: int = 0) -> tuple[Digits, Labels]:
    """Draw examples whose digits are uniform in 0..9; rows that are not `is_allowed` are drawn again.

    With one hop, y = x[x[T-1]], and the last symbol is uniform in 0..T-2. With two, x' = x[x[T-1]], y = x[x']
    and x' < x[T-1]. Each `stream` of a seed is independent.
    """
    check_length(length)
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))
    rows = np.empty((0, length), np.int32)
    while len(rows) < num_examples:
        # With two hops, nearly half of the rows are allowed, so two or three rounds are enough.
        size = (num_hops(length) * num_examples, length)
        drawn = rng.integers(symbols_by_position(length), size=size, dtype=np.int32)
        rows = np.concatenate([rows, drawn[is_allowed(drawn)]])
    digits = np.ascontiguousarray(rows[:num_examples])
    return digits, labels_of(digits)


def generate_splits(length: int, seed: int, sizes: Mapping[str, int]) -> dict[str, tuple[Digits, Labels]]:
    """Return the digits and labels of each split, drawn from independent random streams of `seed`."""
    return {split: generate(length, sizes[split], seed, stream) for stream, split in enumerate(SPLITS)}


def load_number_prediction(
    length: int,
    *,
    data: PathLike | None = None,
    seed: int = 0,
    num_train: int = DEFAULT_SIZES["train"],
    num_dev: int = DEFAULT_SIZES["dev"],
    num_test: int = DEFAULT_SIZES["test"],
) -> NumberPredictionData:
    """Return the examples of one length, generated in memory or, with a TFDS directory, kept there.

    The directory is `data`, or `$DYNSKIP_DATA_DIR` if that has a sub-folder number_prediction. If that cannot
    be written, `source` has the reason. Each combination of length, seed and sizes is a TFDS config.
    """
    check_length(length)
    sizes = {"train": num_train, "dev": num_dev, "test": num_test}
    for split, size in sizes.items():
        if not 1 <= size <= _MOST_SYMBOLS // length:
            limit = f"from 1 to {_MOST_SYMBOLS // length:,}"
            raise UserError(f"number prediction cannot have {shown(size)} {split} examples: ask for {limit}")
    if seed < 0:
        raise UserError(f"the seed of number prediction's examples is {shown(seed)}: use 0 or more")
    name, source = f"{NAME}/length_{length}", "generated in memory"
    kept = named_folder(NAME)
    directory = Path(data).expanduser() if data is not None else kept and kept.parent
    if directory is not None:
        from dynskip_jax.data import builders

        folder = directory / NAME / config_name(length, seed, sizes) / VERSION
        source = f"{'the' if is_prepared(folder) else 'generated into the'} TFDS cache {folder}"
        try:
            if not is_prepared(folder):
                builders.prepare(builders.number_prediction(directory, length, seed, sizes))
        except OSError as error:
            # Another process may have prepared the same folder in the meantime; then it can be read.
            reason = error.strerror or " ".join(str(error).split())
            if not is_prepared(folder):
                source = f"generated in memory, as {folder} cannot be written ({reason})"
        if is_prepared(folder):
            return NumberPredictionData(name, _read(directory, folder, length, seed, sizes), source)
    return NumberPredictionData(name, generate_splits(length, seed, sizes), source)


def config_name(length: int, seed: int, sizes: Mapping[str, int]) -> str:
    """Return the name of the TFDS config: `length_11`, followed by seed and sizes unless both are default."""
    if seed == 0 and sizes == DEFAULT_SIZES:
        return f"length_{length}"
    return f"length_{length}-seed_{seed}-" + "_".join(str(sizes[split]) for split in SPLITS)


def _read(
    directory: Path, folder: Path, length: int, seed: int, sizes: Mapping[str, int]
) -> dict[str, tuple[Digits, Labels]]:
    from dynskip_jax.data import builders

    records = builders.read_splits(lambda: builders.number_prediction(directory, length, seed, sizes), folder)
    try:
        splits = {
            split: tuple(
                np.concatenate([record[key] for record in records[split]]).astype(np.int32)
                for key in ("digits", "labels")
            )
            for split in SPLITS
        }
        if any(digits.shape != (sizes[split], length) for split, (digits, _) in splits.items()):
            raise ValueError("it has other sizes")
    except (KeyError, ValueError) as error:
        raise builders.damaged(folder, error) from error
    return splits
