"""Check segments of texts and batches of examples against slow definitions."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.data import Examples, length_buckets, num_segments, pad_sequences, segments
from dynskip_jax.data.batches import (
    bptt_lengths,
    epoch_order,
    evaluation_batches,
    train_batch_sizes,
    train_batches,
    with_buckets,
)
from dynskip_jax.errors import UserError

FIRST = 1000
TEXTS = st.tuples(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9))  # tokens, rows, steps
# Examples, rows, buckets.
SIZES = st.tuples(st.integers(1, 25), st.integers(1, 7), st.integers(0, 4))


def joined(found):
    return [
        np.concatenate(sheets, axis=1)
        for sheets in zip(*(batch[:3] for batch in found), strict=True)
    ]


@given(TEXTS, st.booleans())
@settings(deadline=None)
def test_segments_are_the_text_cell_by_cell(sizes, drop_tail):
    num_tokens, rows, steps = sizes
    tokens = np.arange(num_tokens)
    row_length = num_tokens // rows if drop_tail else -(-num_tokens // rows)
    if drop_tail and row_length < steps:
        with pytest.raises(
            UserError, match=f"{num_tokens} tokens.*{rows} rows.*--batch-size or --num-steps"
        ):
            segments(tokens, rows, steps, drop_tail=True, first_token=FIRST)
        return
    found = list(segments(tokens, rows, steps, drop_tail=drop_tail, first_token=FIRST))
    steps_of_a_row = min(steps, row_length)  # a segment is no longer than the text
    count = num_segments(num_tokens, rows, steps) if drop_tail else -(-row_length // steps_of_a_row)
    assert len(found) == count
    inputs, targets, mask = joined(found)
    assert (inputs.dtype, targets.dtype, mask.dtype) == (np.int32, np.int32, bool)
    for b, t in itertools.product(range(rows), range(inputs.shape[1])):
        position = (
            b * row_length + t if t < row_length and b * row_length + t < num_tokens else None
        )
        assert mask[b, t] == (position is not None)
        if position is not None:
            assert (inputs[b, t], targets[b, t]) == (position - 1 if position else FIRST, position)
    if not drop_tail:
        assert sorted(targets[mask].tolist()) == tokens.tolist()  # every token is a target once
    assert {*inputs.ravel(), *targets.ravel()} <= {*tokens, FIRST}


def test_sizes_of_segments():
    (batch,) = segments(np.arange(10), 2, 10**12, drop_tail=False, first_token=0)
    assert batch.inputs.shape == (2, 5)  # a segment is no longer than the text
    # Zaremba et al.: 929,589 tokens in 20 rows of 46,479, cut into 1,327 stretches of 35.
    assert num_segments(929_589, 20, 35) == 1327
    found = list(segments(np.arange(20), 2, [3, 1, 4], drop_tail=True, first_token=FIRST))
    assert [segment.inputs.shape for segment in found] == [(2, 3), (2, 1), (2, 4)]
    whole = joined(segments(np.arange(20), 2, 1, drop_tail=True, first_token=FIRST))
    for array, expected in zip(joined(found), whole, strict=True):
        np.testing.assert_array_equal(array, expected[:, :8])


def published_lengths(num_tokens, num_steps, rng):
    """Return segment lengths by the loop of Merity et al.'s main.py, without a last short one."""
    lengths = []
    i = 0
    while num_tokens - i >= 5:
        bptt = num_steps if rng.random() < 0.95 else num_steps / 2.0
        length = max(5, int(rng.normal(bptt, 5)))
        lengths.append(min(length, num_tokens - i))
        i += length
    return lengths


@given(st.integers(20, 3000), st.integers(1, 100), st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_lengths_are_the_published_ones_rounded(num_tokens, num_steps, seed):
    exact = published_lengths(num_tokens, num_steps, np.random.default_rng(seed))
    rounded = bptt_lengths(num_tokens, num_steps, np.random.default_rng(seed))
    assert all(length % 10 == 0 for length in rounded) and 0 <= num_tokens - sum(rounded) < 10
    count = min(len(exact), len(rounded)) - 1
    assert rounded[:count] == [max(10, int(length / 10 + 0.5) * 10) for length in exact[:count]]


def examples_of(count, num_buckets=0, seed=0, longest=11):
    """Return random sequences and their `Examples`; the first element of sequence i is 100 + i."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, size=count)
    sequences = [
        np.array([100 + i, *rng.integers(1, 9, size=n - 1)]) for i, n in enumerate(lengths)
    ]
    inputs, seq_lengths = pad_sequences(sequences)
    buckets = ()
    if num_buckets:
        ends = rng.choice(np.arange(1, longest + 3), size=num_buckets - 1, replace=False)
        buckets = tuple(sorted({*ends.tolist(), longest + 2}))
    targets = {"class": np.arange(count) % 5, "of_step": inputs * 2}
    return sequences, Examples(inputs, targets, seq_lengths, buckets)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: bptt_lengths(3, 70, np.random.default_rng(0)),
            "3 tokens.*10 steps.*another --recipe",
        ),
        (lambda: pad_sequences([]), "each split needs some"),
    ],
)
def test_what_cannot_be_cut(call, message):
    with pytest.raises(UserError, match=message):
        call()


def check_rows(batch, sequences, examples):
    """Check that each row, even a filling one, is the example that `batch.index` names."""
    for row, number in enumerate(batch.index.tolist()):
        length = len(sequences[number])
        assert batch.seq_lengths[row] == length
        np.testing.assert_array_equal(batch.inputs[row, :length], sequences[number])
        assert not batch.inputs[row, length:].any()
        assert batch.targets["class"][row] == examples.targets["class"][number]
        np.testing.assert_array_equal(batch.targets["of_step"][row], batch.inputs[row] * 2)
        if examples.buckets:
            assert batch.inputs.shape[1] == min(end for end in examples.buckets if end >= length)


def counted(batch):
    return batch.index[slice(None) if batch.mask is None else batch.mask].tolist()


def seed_of(batch, number):
    """Return the rows of seed `number` of a batch of shape (seeds, rows, ...)."""
    targets = {name: leaf[number] for name, leaf in batch.targets.items()}
    mask = None if batch.mask is None else batch.mask[number]
    return type(batch)(
        batch.inputs[number], targets, mask, batch.seq_lengths[number], batch.index[number]
    )


@given(SIZES, st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_evaluation_reads_every_example_once_and_in_order(sizes, seed):
    count, rows, num_buckets = sizes
    sequences, examples = examples_of(count, num_buckets, seed)
    batches = list(evaluation_batches(examples, rows))
    of_bucket = {}
    for batch in batches:
        assert batch.mask.shape == batch.index.shape == (rows,)
        check_rows(batch, sequences, examples)
        of_bucket.setdefault(batch.inputs.shape[1], []).extend(counted(batch))
    assert sorted(itertools.chain(*of_bucket.values())) == list(range(count))
    assert all(numbers == sorted(numbers) for numbers in of_bucket.values())
    assert len(batches) == sum(-(-len(numbers) // rows) for numbers in of_bucket.values())


@given(SIZES, st.integers(0, 99), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_training_reads_each_seeds_order(sizes, seed, epoch):
    count, rows, num_buckets = sizes
    sequences, examples = examples_of(count, num_buckets, seed)
    if not num_buckets and count < rows:
        return
    batches = list(train_batches(examples, rows, (3, 4), epoch))
    sizes = [rows if batch.mask is None else int(batch.mask[0].sum()) for batch in batches]
    assert sizes == train_batch_sizes(examples, rows, epoch)
    for number, own in enumerate((3, 4)):
        seen = {}
        for batch in batches:
            assert batch.inputs.shape[:2] == (2, rows)
            check_rows(seed_of(batch, number), sequences, examples)
            seen.setdefault(batch.inputs.shape[2], []).append(counted(seed_of(batch, number)))
        order = epoch_order(count, own, epoch).tolist()
        read = list(itertools.chain(*itertools.chain(*seen.values())))
        if not num_buckets:  # the rest of the order is dropped
            assert read == order[: count // rows * rows]
            continue
        assert sorted(read) == list(range(count))
        for parts in seen.values():  # a bucket's batches, shuffled, are pieces of the seed's order
            members = [i for i in order if i in set(itertools.chain(*parts))]
            assert sorted(parts) == sorted(
                members[i : i + rows] for i in range(0, len(members), rows)
            )


def test_epochs_have_their_own_orders():
    orders = {
        (seed, epoch): epoch_order(50, seed, epoch).tolist()
        for seed in range(3)
        for epoch in range(3)
    }
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len(set(map(tuple, orders.values()))) == len(orders)
    _, examples = examples_of(60, 4)
    buckets = [
        [batch.inputs.shape[-1] for batch in train_batches(examples, 4, seeds, epoch)]
        for epoch in range(6)
        for seeds in ((0,), (7, 8))
    ]
    assert buckets[::2] == buckets[1::2] and len(set(map(tuple, buckets))) > 3  # all seeds share it


def test_trees_of_arrays_stay_what_they_are():
    class Pair(NamedTuple):
        premise: np.ndarray
        sizes: np.ndarray

    lengths = np.array([2, 5, 3])
    steps = np.arange(15).reshape(3, 5)
    inputs = {"pair": Pair(steps, np.arange(3)), "both": (steps, steps[..., None] * np.ones(2))}
    short, long = evaluation_batches(Examples(inputs, np.arange(3), lengths, buckets=(3, 8)), 2)
    assert type(short.inputs["pair"]) is Pair and type(short.inputs["both"]) is tuple
    np.testing.assert_array_equal(short.inputs["pair"].premise, steps[[0, 2], :3])
    np.testing.assert_array_equal(
        long.inputs["pair"].premise, np.pad(steps[[1, 1]], ((0, 0), (0, 3)))
    )
    assert short.inputs["both"][1].shape == (2, 3, 2) and long.inputs["both"][1].shape == (2, 8, 2)
    assert short.inputs["pair"].sizes.tolist() == [0, 2]


@given(st.lists(st.integers(0, 60), min_size=1, max_size=30), st.integers(1, 4))
@settings(deadline=None)
def test_buckets_need_the_least_padding(lengths, count):
    sizes = sorted({max(8, -(-length // 8) * 8) for length in lengths})

    def padded(buckets):
        return sum(min(end for end in buckets if end >= length) for length in lengths)

    choices = itertools.chain(*(itertools.combinations(sizes[:-1], n) for n in range(count)))
    buckets = length_buckets(np.array(lengths), count)
    assert len(buckets) <= count and {*buckets} <= {*sizes}
    assert padded(buckets) == min(padded((*chosen, sizes[-1])) for chosen in choices)


def test_small_data_has_few_lengths():
    """Train has a length per 20 batches; other splits have one more for longer texts."""
    splits = {}
    for split, longest in (("train", 100), ("dev", 130), ("test", 10)):
        sequences, lengths = pad_sequences([np.ones(n, int) for n in range(1, longest + 1)])
        splits[split] = Examples(sequences, np.zeros(longest), lengths)
    found = [[own.buckets for own in with_buckets(splits, size).values()] for size in (1, 2, 50)]
    assert [len(own[0]) for own in found] == [5, 2, 1]
    assert all(own[1] == (*own[0], 136) and own[2] == own[0] for own in found)
