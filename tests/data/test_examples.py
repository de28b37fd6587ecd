"""Check batches of examples, padded or bucketed, against counts and loops over single examples."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.data import Examples, epoch_order, length_buckets, pad_sequences
from dynskip_jax.data.examples import evaluation_batches, num_train_batches, train_batch_sizes, train_batches
from dynskip_jax.errors import UserError

SIZES = st.tuples(st.integers(1, 25), st.integers(1, 7), st.integers(0, 4))  # examples, rows, buckets


def examples_of(count, num_buckets=0, seed=0, longest=11):
    """Return random sequences and their `Examples`; the first element of sequence i is 100 + i."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, size=count)
    sequences = [np.array([100 + i, *rng.integers(1, 9, size=n - 1)]) for i, n in enumerate(lengths)]
    inputs, seq_lengths = pad_sequences(sequences)
    buckets = ()
    if num_buckets:
        ends = rng.choice(np.arange(1, longest + 3), size=num_buckets - 1, replace=False)
        buckets = tuple(sorted({*ends.tolist(), longest + 2}))
    targets = {"class": np.arange(count) % 5, "of_step": inputs * 2}
    weights = rng.uniform(0.5, 2.0, count)
    return sequences, Examples(inputs, targets, seq_lengths, weights, buckets)


def assert_rows_are_examples(batch, sequences, examples):
    """Check that each row, even one that only fills the batch, is the example that `batch.index` names."""
    for row, number in enumerate(batch.index.tolist()):
        length = len(sequences[number])
        assert batch.seq_lengths[row] == length
        np.testing.assert_array_equal(batch.inputs[row, :length], sequences[number])
        assert not batch.inputs[row, length:].any()
        assert batch.targets["class"][row] == examples.targets["class"][number]
        np.testing.assert_array_equal(batch.targets["of_step"][row], batch.inputs[row] * 2)
        np.testing.assert_allclose(batch.weights[row], examples.weights[number], rtol=1e-6)


def counted(batch):
    """Return the numbers of the examples that count, without rows that only fill the batch."""
    return batch.index[slice(None) if batch.mask is None else batch.mask].tolist()


def bucket_by_hand(length, buckets):
    return min(end for end in buckets if end >= length)


def seed_of(batch, number):
    """Return the rows of seed `number` of a batch of shape (seeds, rows, ...)."""
    targets = {name: leaf[number] for name, leaf in batch.targets.items()}
    mask = None if batch.mask is None else batch.mask[number]
    others = (getattr(batch, name)[number] for name in ("seq_lengths", "weights", "index"))
    return type(batch)(batch.inputs[number], targets, mask, *others)


@given(SIZES, st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_evaluation_reads_every_example_once_and_in_order(sizes, seed):
    count, rows, num_buckets = sizes
    sequences, examples = examples_of(count, num_buckets, seed)
    batches = list(evaluation_batches(examples, rows))
    seen = [counted(batch) for batch in batches]
    assert sorted(itertools.chain(*seen)) == list(range(count))
    of_bucket = {}
    for batch, numbers in zip(batches, seen, strict=True):
        assert batch.mask.shape == batch.index.shape == (rows,)
        assert_rows_are_examples(batch, sequences, examples)
        of_bucket.setdefault(batch.inputs.shape[1], []).extend(numbers)
        if examples.buckets:
            lengths = {len(sequences[number]) for number in batch.index}
            assert {bucket_by_hand(n, examples.buckets) for n in lengths} == {batch.inputs.shape[1]}
    assert all(numbers == sorted(numbers) for numbers in of_bucket.values())
    # There are no more batches than needed: only a bucket's last batch is filled up.
    assert len(batches) == sum(-(-len(numbers) // rows) for numbers in of_bucket.values())


@given(SIZES, st.integers(0, 99), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_an_epoch_with_buckets_reads_every_example_once(sizes, seed, epoch):
    count, rows, num_buckets = sizes
    sequences, examples = examples_of(count, 1 + num_buckets, seed)
    seeds = (3, 4)
    batches = list(train_batches(examples, rows, seeds, epoch))
    assert len(batches) == num_train_batches(examples, rows)
    assert [int(batch.mask[0].sum()) for batch in batches] == train_batch_sizes(examples, rows, epoch)
    for number, own in enumerate(seeds):
        seen = []
        for batch in batches:
            assert batch.inputs.shape[:2] == batch.mask.shape == (2, rows)
            assert batch.inputs.shape[2] in examples.buckets
            of_seed = seed_of(batch, number)
            assert_rows_are_examples(of_seed, sequences, examples)
            ends = {bucket_by_hand(len(sequences[i]), examples.buckets) for i in of_seed.index.tolist()}
            assert ends == {batch.inputs.shape[2]}  # all seeds share the schedule of buckets
            seen.append(counted(of_seed))
        assert sorted(itertools.chain(*seen)) == list(range(count))
        # Within a bucket, examples follow the seed's order, wherever the batches are in the epoch.
        order = epoch_order(count, own, epoch).tolist()
        for bucket in examples.buckets:
            members = [i for i in order if bucket_by_hand(len(sequences[i]), examples.buckets) == bucket]
            pieces = [members[start : start + rows] for start in range(0, len(members), rows)]
            found = [
                piece for batch, piece in zip(batches, seen, strict=True) if batch.inputs.shape[2] == bucket
            ]
            assert sorted(found) == sorted(pieces)


def test_the_order_of_buckets_is_drawn_anew_in_each_epoch():
    _, examples = examples_of(60, 4)

    def schedule(seeds, epoch):
        return [batch.inputs.shape[-1] for batch in train_batches(examples, 4, seeds, epoch)]

    epochs = [schedule((0,), epoch) for epoch in range(6)]
    assert len(set(map(tuple, epochs))) > 3
    assert len(set(map(tuple, map(sorted, epochs)))) == 1
    assert [schedule((7, 8), epoch) for epoch in range(6)] == epochs
    assert sorted(epochs[0]) != epochs[0]  # buckets are not sorted by length


@given(st.integers(1, 25), st.integers(1, 7), st.integers(0, 3))
@settings(deadline=None, max_examples=40)
def test_without_buckets_the_rest_of_an_epochs_order_is_dropped(count, rows, epoch):
    sequences, examples = examples_of(count)
    if count < rows:
        for call in (
            lambda: list(train_batches(examples, rows, (0,), epoch)),
            lambda: num_train_batches(examples, rows),
        ):
            with pytest.raises(UserError, match="smaller --batch-size"):
                call()
        return
    batches = list(train_batches(examples, rows, (3, 4), epoch))
    assert len(batches) == num_train_batches(examples, rows) == count // rows
    for number, own in enumerate((3, 4)):
        seen = []
        for batch in batches:
            assert batch.mask is None and batch.inputs.shape == (2, rows, examples.inputs.shape[1])
            assert_rows_are_examples(seed_of(batch, number), sequences, examples)
            seen += batch.index[number].tolist()
        assert seen == epoch_order(count, own, epoch).tolist()[: count // rows * rows]


def test_rows_that_fill_a_batch_are_masked_and_no_others():
    _, examples = examples_of(7, 1)
    for batch in evaluation_batches(examples, 4):
        assert batch.mask.tolist() in ([True] * 4, [True, True, True, False])
    masks = [batch.mask for batch in train_batches(examples, 4, (0, 1), 0)]
    assert sorted(mask.sum() for mask in masks) == [6, 8]


def test_trees_of_arrays_stay_what_they_are():
    class Pair(NamedTuple):
        premise: np.ndarray
        sizes: np.ndarray

    lengths = np.array([2, 5, 3])
    steps = np.arange(15).reshape(3, 5)
    inputs = {"pair": Pair(steps, np.arange(3)), "both": (steps, steps[..., None] * np.ones(2))}
    examples = Examples(inputs, np.arange(3), lengths, buckets=(3, 8))
    short, long = evaluation_batches(examples, 2)
    assert type(short.inputs["pair"]) is Pair and type(short.inputs["both"]) is tuple
    np.testing.assert_array_equal(short.inputs["pair"].premise, steps[[0, 2], :3])
    np.testing.assert_array_equal(long.inputs["pair"].premise, np.pad(steps[[1, 1]], ((0, 0), (0, 3))))
    assert short.inputs["both"][1].shape == (2, 3, 2) and long.inputs["both"][1].shape == (2, 8, 2)
    assert short.inputs["pair"].sizes.tolist() == [0, 2]
    assert short.weights is None and short.seq_lengths.tolist() == [2, 3]
    assert (short.index.dtype, short.seq_lengths.dtype) == (np.int32, np.int32)


def test_whole_sequences_have_no_lengths():
    examples = Examples(np.zeros((4, 3)), np.arange(4))
    (batch,) = evaluation_batches(examples, 5)
    assert batch.seq_lengths is None and batch.mask.tolist() == [True] * 4 + [False]
    assert len(examples) == 4 and examples.longest == 0


@pytest.mark.parametrize("buckets", [(3, 4), (8, 5), (5, 5, 8), (4,)])
def test_buckets_that_do_not_hold_every_sequence_are_refused(buckets):
    with pytest.raises(UserError, match="reach 5, the longest length"):
        Examples(np.zeros((2, 5)), np.zeros(2), np.array([5, 2]), buckets=buckets)


def test_buckets_without_lengths_are_refused():
    with pytest.raises(UserError, match="give seq_lengths"):
        Examples(np.zeros((2, 5)), np.zeros(2), buckets=(5,))


def test_batches_of_no_rows_are_refused():
    for num_buckets in (0, 2):
        _, examples = examples_of(6, num_buckets)
        for call in (
            lambda e=examples: list(train_batches(e, 0, (0,), 0)),
            lambda e=examples: num_train_batches(e, 0),
            lambda e=examples: list(evaluation_batches(e, 0)),
        ):
            with pytest.raises(UserError, match="--batch-size is 0: use 1 or more"):
                call()


def test_padding_by_hand():
    padded, lengths = pad_sequences([np.array([1, 2, 3]), np.array([], int), np.array([4])])
    assert padded.tolist() == [[1, 2, 3], [0, 0, 0], [4, 0, 0]] and lengths.tolist() == [3, 0, 1]
    padded, lengths = pad_sequences([np.array([1, 2, 3]), np.array([4])], 2)
    assert padded.tolist() == [[1, 2], [4, 0]] and lengths.tolist() == [2, 1]
    vectors = [np.ones((2, 3), np.float32), np.full((1, 3), 2, np.float32)]
    padded, _ = pad_sequences(vectors)
    assert padded.shape == (2, 2, 3) and padded.dtype == np.float32
    assert padded[1].tolist() == [[2] * 3, [0] * 3]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=60), st.integers(1, 6))
@settings(deadline=None)
def test_buckets_of_lengths_hold_as_many_sequences_each(lengths, count):
    buckets = length_buckets(np.array(lengths), count)
    assert list(buckets) == sorted(set(buckets)) and len(buckets) <= count
    assert all(bucket % 8 == 0 for bucket in buckets)
    assert max(lengths) <= buckets[-1] < max(lengths) + 8
    # A bucket is no longer than its share of the lengths requires, rounded up to a multiple of 8.
    for number in range(1, count + 1):
        share = sorted(lengths)[-(-number * (len(lengths) - 1) // count)]
        assert -(-share // 8) * 8 in buckets
    examples = Examples(
        np.zeros((len(lengths), max(lengths))), np.array(lengths), np.array(lengths), None, buckets
    )
    assert sum(len(counted(batch)) for batch in evaluation_batches(examples, 5)) == len(lengths)
