"""Cut texts into segments for truncated back-propagation, and examples into batches."""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int, Shaped

from dynskip_jax.data.dataset import Dataset
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import shown

Arrays = Any  # an array, or a dictionary, tuple or named tuple of arrays (examples, ...)
_MOST_BUCKETS = 8
# Fewest batches per epoch for each compiled program: compiling takes as long as hundreds of steps.
_BATCHES_PER_PROGRAM = 20
_MIN_LENGTH = 5
_LENGTH_STD = 5.0
_SHORT_PROBABILITY = 0.05
_LENGTH_MULTIPLE = 10


class Batch(NamedTuple):
    """A batch for one step, rows first; optional fields are None if a task does not use them.

    `mask` is False for padding rows or steps, which do not count. `index` is each row's example in
    its split.
    """

    inputs: Any
    targets: Any
    mask: Bool[np.ndarray, "rows *time"] | None = None
    seq_lengths: Int[np.ndarray, " rows"] | None = None
    index: Int[np.ndarray, " rows"] | None = None


def segments(
    tokens: Int[np.ndarray, "tokens"],
    batch_size: int,
    num_steps: int | Sequence[int],
    *,
    drop_tail: bool,
    first_token: int,
) -> Iterator[Batch]:
    """Cut a text of N tokens into segments whose rows continue those of the segment before.

    The text is laid out as B = `batch_size` contiguous rows, which are cut every `num_steps`
    columns; several numbers are those of each segment. The input for each target is the token
    before it; for the first target it is `first_token`, usually `<eos>`. With `drop_tail`, for
    training, rows have N // B tokens, and columns that do not fill a segment are dropped (Zaremba
    et al. 2014). Without it, for evaluation, rows have ceil(N / B) tokens, and padding is masked,
    so that every token counts once.
    """
    row_length = tokens.size // batch_size
    if not drop_tail:
        row_length = -(-tokens.size // batch_size)
    if isinstance(num_steps, int) and drop_tail:
        num_steps = [num_steps] * num_segments(tokens.size, batch_size, num_steps)
    elif isinstance(num_steps, int):
        steps = min(num_steps, max(1, row_length))
        num_steps = [steps] * -(-row_length // steps)
    # Each token is predicted from the one before it.
    inputs = np.concatenate([np.array([first_token], np.int32), tokens[:-1].astype(np.int32)])
    missing = max(0, sum(num_steps) - row_length)

    def sheet(flat: np.ndarray, padding: int | bool) -> np.ndarray:
        whole = np.full(batch_size * row_length, padding, flat.dtype)
        whole[: tokens.size] = flat[: whole.size]
        rows = whole.reshape(batch_size, row_length)
        return np.pad(rows, ((0, 0), (0, missing)), constant_values=padding)

    targets = tokens.astype(np.int32)
    mask = np.ones(tokens.size, bool)
    sheets = sheet(inputs, first_token), sheet(targets, first_token), sheet(mask, False)
    spans = itertools.pairwise(itertools.accumulate(num_steps, initial=0))
    return (Batch(*(whole[:, start:stop] for whole in sheets)) for start, stop in spans)


def num_segments(num_tokens: int, batch_size: int, num_steps: int) -> int:
    """Return the number of segments in which `segments` cuts a training text."""
    count = num_tokens // batch_size // num_steps
    if not count:
        size = f"{shown(batch_size)} rows by {shown(num_steps)} steps"
        problem = f"does not fill one segment of {size}"
        remedy = "use a smaller --batch-size or --num-steps"
        raise UserError(f"the training text of {num_tokens:,} tokens {problem}: {remedy}")
    return count


def bptt_lengths(num_tokens_per_stream: int, num_steps: int, rng: np.random.Generator) -> list[int]:
    """Draw the lengths of an epoch's segments (Merity et al. 2018, Section 4.1).

    As in the authors' code, a length is a sample of N(mean, 5), at least 5; the mean is
    `num_steps`, or half of it with probability 0.05. It is rounded to a multiple of 10, because
    each length needs a compiled program. Tokens that do not fill a last segment are dropped.
    """
    least = _LENGTH_MULTIPLE
    rest = num_tokens_per_stream
    if rest < least:
        problem = f"a stream of {rest:,} tokens does not fill one segment of {least} steps"
        raise UserError(f"{problem}: use a smaller --batch-size, or another --recipe than awd")
    lengths: list[int] = []
    while rest >= least:
        is_short = rng.random() >= 1.0 - _SHORT_PROBABILITY
        mean = num_steps / 2 if is_short else num_steps
        length = max(_MIN_LENGTH, int(rng.normal(mean, _LENGTH_STD)))
        rounded = max(least, (length + least // 2) // least * least)
        # The last segment is cut to what is left, also a multiple.
        lengths.append(min(rounded, rest // least * least))
        rest -= lengths[-1]
    return lengths


@dataclasses.dataclass(frozen=True)
class Examples:
    """The examples of a split.

    Attributes:
        inputs, targets: Arrays (examples, ...). Sequences are padded to the longest one.
        seq_lengths: True lengths; None if all sequences have the same length.
        buckets: Increasing lengths to which batches are padded; empty keeps the arrays' length.
            Every array whose second axis is as long as the first input's is cut or padded: an array
            without a time axis whose width may equal that length needs another second axis, as in
            (examples, 1, features).
    """

    inputs: Arrays
    targets: Arrays
    seq_lengths: Int[np.ndarray, " examples"] | None = None
    buckets: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(leaves(self.targets)[0])

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
        self,
        index: Int[np.ndarray, "*lead rows"],
        mask: Bool[np.ndarray, "*lead rows"] | None,
        bucket: int,
    ) -> Batch:
        """Return the examples `index` as a batch, padded to the length of a bucket."""
        # Arrays with this second axis are cut to the bucket's length.
        time = next((leaf.shape[1] for leaf in leaves(self.inputs) if leaf.ndim > 1), 0)

        def chosen(leaf: np.ndarray) -> np.ndarray:
            if not (self.buckets and leaf.ndim > 1 and leaf.shape[1] == time):
                return leaf[index]
            # Cut first: copying rows of the longest example would take the time that buckets save.
            rows = leaf[:, : self.buckets[bucket]][index]
            missing = self.buckets[bucket] - rows.shape[index.ndim]
            return np.pad(rows, [(0, missing * (axis == index.ndim)) for axis in range(rows.ndim)])

        lengths = None
        if self.seq_lengths is not None:
            lengths = self.seq_lengths[index].astype(np.int32)
        inputs = _map(chosen, self.inputs)
        targets = _map(chosen, self.targets)
        return Batch(inputs, targets, mask, lengths, index.astype(np.int32))


def generated(
    name: str, splits: Mapping[str, Sequence[np.ndarray]], vocabulary: Any = None
) -> Dataset:
    """Return the arrays of each split, (examples, ...), of a task whose examples are generated."""
    sizes = {split: len(arrays[0]) for split, arrays in splits.items()}
    content = fingerprint(*itertools.chain(*splits.values()))
    return Dataset(name, sizes, content, "generated in memory", splits, vocabulary)


def fingerprint(*content: str | np.ndarray) -> str:
    """Return the SHA-256 (hex) of texts, and of arrays with their types and shapes."""
    digest = hashlib.sha256()
    for part in content:
        if isinstance(part, str):
            size = len(part)
            data = part.encode()
        else:
            size = f"{part.dtype} {part.shape}"
            data = part.tobytes()
        # The size keeps ("ab", "c") and ("a", "bc") apart.
        digest.update(f"{size}\n".encode() + data)
    return digest.hexdigest()


def epoch_order(num_examples: int, seed: int, epoch: int) -> Int[np.ndarray, "examples"]:
    """Return the order of the examples in an epoch, which depends only on (seed, epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)


def train_batches(
    examples: Examples, batch_size: int, seeds: Sequence[int], epoch: int
) -> Iterator[Batch]:
    """Yield an epoch's batches, (seeds, rows, ...); each seed has its own order of the examples.

    Without buckets, the examples that do not fill a last batch are dropped. With buckets, masked
    rows fill the last batch of each bucket; batches of all buckets are shuffled, in the same order
    for all seeds.
    """
    sizes = train_batch_sizes(examples, batch_size, epoch)
    orders = np.stack([epoch_order(len(examples), seed, epoch) for seed in seeds])
    if not examples.buckets:
        for start in range(0, len(sizes) * batch_size, batch_size):
            yield examples.batch(orders[:, start : start + batch_size], None, 0)
        return
    # A seed's order decides which examples share a batch, and in which bucket's batches they are.
    bucket_of = examples.bucket_of_each()
    parts = []  # for each batch: the indices of its examples, its mask, and its bucket
    for bucket in range(len(examples.buckets)):
        indices = np.stack([order[bucket_of[order] == bucket] for order in orders])
        parts += [(*part, bucket) for part in _filled(indices, batch_size)]
    for number in _batch_order(len(parts), epoch):
        yield examples.batch(*parts[number])


def train_batch_sizes(examples: Examples, batch_size: int, epoch: int) -> list[int]:
    """Return the number of examples without masked rows in each batch of `train_batches`."""
    if not examples.buckets:
        if len(examples) < batch_size:
            problem = f"{len(examples):,} examples do not fill one batch of {shown(batch_size)}"
            raise UserError(f"{problem}: use a smaller --batch-size")
        return [batch_size] * (len(examples) // batch_size)
    counts = np.bincount(examples.bucket_of_each(), minlength=len(examples.buckets)).tolist()
    sizes = [
        min(batch_size, count - start) for count in counts for start in range(0, count, batch_size)
    ]
    return [sizes[number] for number in _batch_order(len(sizes), epoch)]


def _batch_order(num_batches: int, epoch: int) -> Int[np.ndarray, " batches"]:
    """Return the order of an epoch's batches of all buckets, which all seeds share."""
    return np.random.default_rng([0, epoch]).permutation(num_batches)


def evaluation_batches(examples: Examples, rows: int) -> Iterator[Batch]:
    """Yield batches with every example once, in order within each bucket; the last are filled."""
    bucket_of = examples.bucket_of_each()
    for bucket in range(max(1, len(examples.buckets))):
        for index, mask in _filled(np.flatnonzero(bucket_of == bucket), rows):
            yield examples.batch(index, mask, bucket)


def _filled(
    indices: Int[np.ndarray, "*seeds examples"], rows: int
) -> Iterator[tuple[Int[np.ndarray, "*seeds rows"], Bool[np.ndarray, "*seeds rows"]]]:
    """Yield parts of `rows` indices with their masks; the masked first index fills the last one."""
    for start in range(0, indices.shape[-1], rows):
        index = indices[..., start : start + rows]
        missing = rows - index.shape[-1]
        mask = np.broadcast_to(np.arange(rows) < index.shape[-1], (*indices.shape[:-1], rows))
        yield np.concatenate([index, np.repeat(index[..., :1], missing, axis=-1)], axis=-1), mask


def pad_sequences(
    sequences: Sequence[Shaped[np.ndarray, "_ *features"]],
) -> tuple[Shaped[np.ndarray, "examples time *features"], Int[np.ndarray, " examples"]]:
    """Return sequences as one array padded with zeros, and their lengths."""
    if not len(sequences):
        raise UserError("there is no example to read: each split needs some")
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    padded = np.zeros(
        (len(sequences), lengths.max(initial=1), *sequences[0].shape[1:]), sequences[0].dtype
    )
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return padded, lengths


def length_buckets(seq_lengths: Int[np.ndarray, " examples"], count: int) -> tuple[int, ...]:
    """Return at most `count` lengths, multiples of 8, with which sequences need least padding."""
    sizes, numbers = np.unique(-(-np.maximum(seq_lengths, 1) // 8) * 8, return_counts=True)
    # Dynamic programming over the distinct sizes, one bucket more in each round.
    up_to = np.cumsum(numbers)
    # Padded steps of the sequences up to each size, and the buckets that they are padded to.
    steps = sizes * up_to
    buckets = [(int(size),) for size in sizes]
    for _ in range(count - 1):
        # [j, i]: one more bucket, for the sizes after j up to i.
        more = steps[:, None] + sizes * (up_to - up_to[:, None])
        more = np.where(np.tri(len(sizes), dtype=bool), np.iinfo(np.int64).max, more)
        # Where one more bucket saves steps, it is the one that saves the most.
        best = more.argmin(axis=0)
        is_better = more.min(axis=0) < steps
        fewer = buckets
        buckets = list(fewer)
        for i in np.flatnonzero(is_better):
            buckets[i] = (*fewer[best[i]], int(sizes[i]))
        steps = np.minimum(steps, more.min(axis=0))
    return buckets[-1]


def with_buckets(splits: Mapping[str, Examples], batch_size: int) -> dict[str, Examples]:
    """Return splits with the lengths to which batches are padded: at most 8, or fewer.

    The lengths are chosen from train; another split has one more if it has longer sequences.
    """
    train = splits["train"]
    found = {}
    count = min(_MOST_BUCKETS, len(train) // (_BATCHES_PER_PROGRAM * batch_size))
    shared = length_buckets(train.seq_lengths, max(1, count))
    for split, examples in splits.items():
        more = ()
        if examples.longest > shared[-1]:
            more = length_buckets(examples.seq_lengths, 1)
        found[split] = dataclasses.replace(examples, buckets=shared + more)
    return found


def _map(function: Callable[[np.ndarray], Any], arrays: Arrays) -> Arrays:
    """Apply `function` to each array, like `jax.tree.map`; the data package does not import JAX."""
    if isinstance(arrays, dict):
        return {name: _map(function, value) for name, value in arrays.items()}
    if isinstance(arrays, tuple):
        values = [_map(function, value) for value in arrays]
        if hasattr(arrays, "_fields"):  # a named tuple
            return type(arrays)(*values)
        return tuple(values)
    return function(arrays)


def leaves(arrays: Arrays) -> list[np.ndarray]:
    """Return the arrays of a dictionary or a tuple of arrays."""
    found: list[np.ndarray] = []
    _map(found.append, arrays)
    return found
