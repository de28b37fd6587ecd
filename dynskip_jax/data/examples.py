"""Store the examples of a split as arrays, and cut them into batches of one shape or bucketed by length."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from dynskip_jax.data.batching import Batch, epoch_order, minibatches
from dynskip_jax.errors import UserError

# Minimum number of batches per epoch for each compiled program. To compile one takes as long as hundreds of
# steps, but training has several epochs.
_BATCHES_PER_PROGRAM = 20
Arrays = Any  # an array, or a dictionary, tuple or named tuple of arrays (examples, ...)


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a split.

    Attributes:
      inputs: Inputs of the model, each array (examples, ...). Sequences are padded to the longest one.
      targets: Targets, each array (examples, ...).
      seq_lengths: True lengths, (examples,); None if all sequences have the same length.
      weights: Weights of the examples in the training loss, (examples,); None weights all examples with 1.
      buckets: Increasing lengths to which batches are padded; the last one is at least the longest sequence's
        length. If empty, arrays keep their length. The time axis is the second axis of the inputs; with
        buckets, every array whose second axis has the same length is cut or padded. Give an array without a
        time axis another second axis, as in (examples, 1, features), if its width may equal that length.
    """

    inputs: Arrays
    targets: Arrays
    seq_lengths: Int[np.ndarray, " examples"] | None = None
    weights: Shaped[np.ndarray, " examples"] | None = None
    buckets: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Raise a `UserError` unless buckets are increasing and hold every sequence."""
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
        """Longest true length; 0 without `seq_lengths`."""
        return 0 if self.seq_lengths is None else int(self.seq_lengths.max(initial=0))

    def bucket_of_each(self) -> Int[np.ndarray, " examples"]:
        """Return the index of each example's bucket, (examples,); all 0 without buckets."""
        if not self.buckets:
            return np.zeros(len(self), int)
        return np.searchsorted(np.asarray(self.buckets), self.seq_lengths)

    def batch(
        self, index: Int[np.ndarray, "*lead rows"], mask: Bool[np.ndarray, "*lead rows"] | None, bucket: int
    ) -> Batch:
        """Return the examples with these indices as a batch, padded to the length of a bucket.

        Args:
          index: Indices of the examples, (*lead, rows).
          mask: Mask of the batch; None counts all rows.
          bucket: Index of the bucket; ignored without buckets.
        """
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
    """Yield the batches of an epoch, (seeds, rows, ...); each seed has its own order of the examples.

    Without buckets, examples at the end of the epoch's order that do not fill a batch are dropped; these
    differ between epochs. With buckets, no example is dropped: the last batch of each bucket is filled with
    masked rows. The batches of all buckets are shuffled in each epoch, in the same order for all seeds.

    Args:
      examples: Examples of the split.
      batch_size: Rows per batch and seed.
      seeds: Seed of each order.
      epoch: Number of the epoch.

    Raises:
      UserError: The batch size is below 1 or, without buckets, above the number of examples.
    """
    orders = [epoch_order(len(examples), seed, epoch) for seed in seeds]
    if not examples.buckets:
        every = (minibatches(order, batch_size, drop_remainder=True) for order in orders)
        for indices in zip(*every, strict=True):
            yield examples.batch(np.stack(indices), None, 0)
        return
    bucket_of = examples.bucket_of_each()
    parts = []  # for each batch: its bucket, the indices of its examples, and its mask
    for bucket in range(len(examples.buckets)):
        indices = np.stack([order[bucket_of[order] == bucket] for order in orders])
        for index, mask in _filled(indices, batch_size):
            parts.append((bucket, index, mask))
    for number in _batch_order(len(parts), epoch):
        bucket, index, mask = parts[number]
        yield examples.batch(index, mask, bucket)


def num_train_batches(examples: Examples, batch_size: int) -> int:
    """Return the number of batches that `train_batches` yields per epoch.

    Raises:
      UserError: See `train_batches`.
    """
    return len(train_batch_sizes(examples, batch_size, 0))


def train_batch_sizes(examples: Examples, batch_size: int, epoch: int) -> list[int]:
    """Return the number of examples in each batch that `train_batches` yields, without masked rows.

    Raises:
      UserError: See `train_batches`.
    """
    if not examples.buckets:
        every = minibatches(np.arange(len(examples)), batch_size, drop_remainder=True)
        return [len(index) for index in every]
    _check_rows(batch_size)
    counts = np.bincount(examples.bucket_of_each(), minlength=len(examples.buckets)).tolist()
    sizes = [min(batch_size, count - start) for count in counts for start in range(0, count, batch_size)]
    return [sizes[number] for number in _batch_order(len(sizes), epoch)]


def evaluation_batches(examples: Examples, rows: int) -> Iterator[Batch]:
    """Yield batches with every example once, in order within each bucket.

    The last batch of each bucket is filled with rows whose mask is False.

    Args:
      examples: Examples of the split.
      rows: Rows per batch.

    Raises:
      UserError: `rows` is below 1.
    """
    bucket_of = examples.bucket_of_each()
    for bucket in range(max(1, len(examples.buckets))):
        for index, mask in _filled(np.flatnonzero(bucket_of == bucket), rows):
            yield examples.batch(index, mask, bucket)


def pad_sequences(
    sequences: Sequence[Shaped[np.ndarray, "_ *features"]], length: int | None = None
) -> tuple[Shaped[np.ndarray, "examples time *features"], Int[np.ndarray, " examples"]]:
    """Return sequences as one array padded with zeros, and their lengths.

    Args:
      sequences: At least one sequence, each (time, ...).
      length: Maximum length; longer sequences are cut. None keeps them whole.

    Raises:
      UserError: There are no sequences.
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
    """Return at most `count` lengths to pad to, multiples of 8 near quantiles of `seq_lengths`.

    So about equally many sequences are padded to each length.
    """
    quantiles = np.quantile(seq_lengths, np.arange(1, count + 1) / count, method="higher")
    return tuple(sorted({max(8, -(-int(length) // 8) * 8) for length in quantiles}))


def worthwhile_buckets(num_examples: int, batch_size: int) -> int:
    """Return the number of buckets that is worth the time to compile one program for each, at least 1."""
    return max(1, num_examples // (_BATCHES_PER_PROGRAM * max(1, batch_size)))


def _batch_order(num_batches: int, epoch: int) -> Int[np.ndarray, " batches"]:
    """Return the order of an epoch's batches of all buckets, which all seeds share."""
    return np.random.default_rng([0, epoch]).permutation(num_batches)


def _filled(
    indices: Int[np.ndarray, "*seeds examples"], rows: int
) -> Iterator[tuple[Int[np.ndarray, "*seeds rows"], Bool[np.ndarray, "*seeds rows"]]]:
    """Yield consecutive parts of `rows` indices, each with its mask.

    The last part is filled by repeating its first index, with the mask False.
    """
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
    """Apply `function` to each array, like `jax.tree.map`; the data package does not import JAX."""
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
