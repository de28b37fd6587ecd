"""Examples of a split as arrays, and the batches they are cut into: of one shape, or bucketed."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from dynskip_jax.data.batching import Batch, epoch_order, minibatches
from dynskip_jax.errors import UserError

# Of an epoch. A program takes as long to compile as hundreds of steps, and data is read in several epochs.
_BATCHES_PER_PROGRAM = 20
Arrays = Any  # an array, or a dictionary, tuple or named tuple of arrays, each leading with the examples


@dataclasses.dataclass(frozen=True)
class Examples:
    """A split.

    Attributes:
      inputs: what the model reads, each array (examples, ...), sequences padded to the longest one's length.
      targets: the truth, likewise.
      seq_lengths: true lengths, (examples,); None where all are alike.
      weights: of the examples in the training loss, (examples,); None: 1 each.
      buckets: lengths to which batches are padded, the last at least the longest one; none: all of them to
        the longest one. What has a time axis has it as the second, of one length, and is cut there.
    """

    inputs: Arrays
    targets: Arrays
    seq_lengths: Int[np.ndarray, " examples"] | None = None
    weights: Shaped[np.ndarray, " examples"] | None = None
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raises a `UserError` unless the buckets hold every sequence."""
        if not self.buckets:
            return
        if self.seq_lengths is None:
            raise UserError("buckets are for sequences of several lengths: give seq_lengths")
        if list(self.buckets) != sorted(set(self.buckets)) or self.buckets[-1] < self.longest:
            raise UserError(f"buckets grow and reach {self.longest}, the longest length, got {self.buckets}")

    def __len__(self) -> int:
        return len(_leaves(self.targets)[0])

    @property
    def longest(self) -> int:
        """The longest true length; 0 without lengths."""
        return 0 if self.seq_lengths is None else int(self.seq_lengths.max(initial=0))

    def bucket_of_each(self) -> Int[np.ndarray, " examples"]:
        """The number of the bucket of each example."""
        if not self.buckets:
            return np.zeros(len(self), int)
        return np.searchsorted(np.asarray(self.buckets), self.seq_lengths)

    def batch(
        self, index: Int[np.ndarray, "*lead rows"], mask: Bool[np.ndarray, "*lead rows"] | None, bucket: int
    ) -> Batch:
        """The examples of these numbers, cut at a bucket's length."""
        time = next((leaf.shape[1] for leaf in _leaves(self.inputs) if leaf.ndim > 1), 0)

        def chosen(leaf: np.ndarray) -> np.ndarray:
            if not (self.buckets and leaf.ndim > 1 and leaf.shape[1] == time):
                return leaf[index]
            rows = leaf[:, : self.buckets[bucket]][index]
            missing = self.buckets[bucket] - rows.shape[index.ndim]
            if not missing:
                return rows
            return np.pad(rows, [(0, missing if axis == index.ndim else 0) for axis in range(rows.ndim)])

        return Batch(
            inputs=_map(chosen, self.inputs),
            targets=_map(chosen, self.targets),
            mask=mask,
            seq_lengths=None if self.seq_lengths is None else self.seq_lengths[index].astype(np.int32),
            weights=None if self.weights is None else self.weights[index].astype(np.float32),
            index=index.astype(np.int32),
        )


def train_batches(examples: Examples, batch_size: int, seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
    """The batches of an epoch, (seeds, rows, ...), each seed with an order of its own.

    Where all batches have one shape, the rest of an epoch's order, less than a batch, is left out; each epoch
    leaves out another one. With buckets nothing is: the last batch of each is filled up with rows that do not
    count. The order of the buckets is drawn anew in each epoch, and is the same for all seeds.

    Raises:
      UserError: for a batch size below 1, or above the number of examples.
    """
    orders = [epoch_order(len(examples), seed, epoch) for seed in seeds]
    if not examples.buckets:
        every = (minibatches(order, batch_size, drop_remainder=True) for order in orders)
        for indices in zip(*every, strict=True):
            yield examples.batch(np.stack(indices), None, 0)
        return
    bucket_of = examples.bucket_of_each()
    parts = []  # of each batch: its bucket, the numbers of its examples, and which of them count
    for bucket in range(len(examples.buckets)):
        indices = np.stack([order[bucket_of[order] == bucket] for order in orders])
        for index, mask in _filled(indices, batch_size):
            parts.append((bucket, index, mask))
    for number in np.random.default_rng([0, epoch]).permutation(len(parts)):
        bucket, index, mask = parts[number]
        yield examples.batch(index, mask, bucket)


def num_train_batches(examples: Examples, batch_size: int) -> int:
    """How many `train_batches` gives.

    Raises:
      UserError: as `train_batches`.
    """
    if not examples.buckets:
        every = np.arange(len(examples))
        return sum(1 for _ in minibatches(every, batch_size, drop_remainder=True))
    _check_rows(batch_size)
    sizes = np.bincount(examples.bucket_of_each(), minlength=len(examples.buckets))
    return int((-(-sizes // batch_size)).sum())


def evaluation_batches(examples: Examples, rows: int) -> Iterator[Batch]:
    """Every example once, in order within each bucket; the last batch of each is filled up, masked False.

    Raises:
      UserError: for fewer than one row.
    """
    bucket_of = examples.bucket_of_each()
    for bucket in range(max(1, len(examples.buckets))):
        for index, mask in _filled(np.flatnonzero(bucket_of == bucket), rows):
            yield examples.batch(index, mask, bucket)


def pad_sequences(
    sequences: Sequence[Shaped[np.ndarray, "_ *features"]], length: int | None = None
) -> tuple[Shaped[np.ndarray, "examples time *features"], Int[np.ndarray, " examples"]]:
    """Returns sequences, cut at `length`, as one array padded with zeros, and their lengths.

    Raises:
      UserError: there is none.
    """
    if not len(sequences):
        raise UserError("there is no example to read: each split needs some")
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    if length is not None:
        lengths = np.minimum(lengths, length).astype(np.int32)
    padded = np.zeros((len(sequences), lengths.max(initial=1), *sequences[0].shape[1:]), sequences[0].dtype)
    for row, sequence, size in zip(padded, sequences, lengths, strict=True):
        row[:size] = sequence[:size]
    return padded, lengths


def length_buckets(seq_lengths: Int[np.ndarray, " examples"], count: int) -> tuple[int, ...]:
    """Returns at most `count` lengths to pad to, multiples of 8 that as many sequences each fit into."""
    quantiles = np.quantile(seq_lengths, np.arange(1, count + 1) / count, method="higher")
    return tuple(sorted({max(8, -(-int(length) // 8) * 8) for length in quantiles}))


def worthwhile_buckets(num_examples: int, batch_size: int) -> int:
    """Returns how many lengths of batches are worth the time to compile a program for each."""
    return max(1, num_examples // (_BATCHES_PER_PROGRAM * max(1, batch_size)))


def _filled(
    indices: Int[np.ndarray, "*seeds examples"], rows: int
) -> Iterator[tuple[Int[np.ndarray, "*seeds rows"], Bool[np.ndarray, "*seeds rows"]]]:
    """Consecutive pieces of so many rows, the last one filled up with the first example, masked False."""
    _check_rows(rows)
    for start in range(0, indices.shape[-1], rows):
        index = indices[..., start : start + rows]
        missing = rows - index.shape[-1]
        mask = np.broadcast_to(np.arange(rows) < index.shape[-1], (*indices.shape[:-1], rows))
        if missing:
            index = np.concatenate([index, np.repeat(index[..., :1], missing, axis=-1)], axis=-1)
        yield index, mask


def _check_rows(rows: int) -> None:
    if rows < 1:
        raise UserError(f"--batch-size is {rows}: use 1 or more")


def _map(function: Any, arrays: Arrays) -> Arrays:
    """The function of each array; data knows nothing of JAX and its trees."""
    if isinstance(arrays, dict):
        return {name: _map(function, value) for name, value in arrays.items()}
    if isinstance(arrays, tuple):
        values = [_map(function, value) for value in arrays]
        return type(arrays)(*values) if hasattr(arrays, "_fields") else tuple(values)
    return function(arrays)


def _leaves(arrays: Arrays) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    _map(found.append, arrays)
    return found
