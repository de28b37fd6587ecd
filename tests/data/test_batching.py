"""Check batches against slow definitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.data import epoch_order, minibatches, num_segments, segments
from dynskip_jax.errors import UserError

FIRST = 1000
SIZES = st.tuples(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9))


def slow_rows(num_tokens, batch_size, row_length):
    """Return the text positions of each row, None past the end of the text."""
    positions = range(batch_size * row_length)
    rows = [
        [p if p < num_tokens else None for p in positions[b * row_length :][:row_length]]
        for b in range(batch_size)
    ]
    return rows


def check(tokens, batch_size, num_steps, rows, found):
    """Check that the segments `found` contain the tokens at the positions `rows`, cell by cell."""
    for number, segment in enumerate(found):
        for array in segment[:3]:
            assert array.shape == (batch_size, num_steps)
        assert segment[3:] == (None,) * 3  # streams have no lengths, no weights and no numbers
        assert segment.inputs.dtype == segment.targets.dtype == np.int32 and segment.mask.dtype == bool
        for b in range(batch_size):
            for t in range(num_steps):
                column = number * num_steps + t
                position = rows[b][column] if column < len(rows[b]) else None
                assert segment.mask[b, t] == (position is not None)
                if position is None:
                    continue
                assert segment.targets[b, t] == tokens[position]
                assert segment.inputs[b, t] == (tokens[position - 1] if position else FIRST)


@given(SIZES)
@settings(deadline=None)
def test_evaluation_segments(sizes):
    num_tokens, batch_size, num_steps = sizes
    tokens = np.arange(num_tokens)
    found = list(segments(tokens, batch_size, num_steps, drop_tail=False, first_token=FIRST))
    row_length = -(-num_tokens // batch_size)
    check(tokens, batch_size, num_steps, slow_rows(num_tokens, batch_size, row_length), found)
    assert len(found) == num_segments(num_tokens, batch_size, num_steps, drop_tail=False)
    seen = np.concatenate([segment.targets[segment.mask] for segment in found])
    assert sorted(seen.tolist()) == tokens.tolist()  # each token is a target exactly once
    ids = {*tokens.tolist(), FIRST}
    assert all(
        ids >= {*segment.inputs.ravel().tolist(), *segment.targets.ravel().tolist()} for segment in found
    )


@given(SIZES)
@settings(deadline=None)
def test_training_segments(sizes):
    num_tokens, batch_size, num_steps = sizes
    tokens = np.arange(num_tokens)
    row_length = num_tokens // batch_size
    if row_length < num_steps:
        with pytest.raises(UserError, match=f"{num_tokens} tokens.*{batch_size} rows.*--batch-size"):
            segments(tokens, batch_size, num_steps, drop_tail=True, first_token=FIRST)
        return
    found = list(segments(tokens, batch_size, num_steps, drop_tail=True, first_token=FIRST))
    check(tokens, batch_size, num_steps, slow_rows(num_tokens, batch_size, row_length), found)
    assert len(found) == row_length // num_steps
    assert len(found) == num_segments(num_tokens, batch_size, num_steps, drop_tail=True)
    assert all(segment.mask.all() for segment in found)


def test_segments_by_hand():
    tokens = np.array([5, 6, 7, 8, 9])
    first, second = segments(tokens, 2, 2, drop_tail=False, first_token=0)
    assert first.inputs.tolist() == [[0, 5], [7, 8]]
    assert first.targets.tolist() == [[5, 6], [8, 9]]
    assert second.inputs.tolist() == [[6, 0], [0, 0]]
    assert second.targets.tolist() == [[7, 0], [0, 0]]
    assert second.mask.tolist() == [[True, False], [False, False]]
    (only,) = segments(tokens, 2, 2, drop_tail=True, first_token=0)
    assert only.inputs.tolist() == [[0, 5], [6, 7]]
    assert only.targets.tolist() == [[5, 6], [7, 8]]


def test_published_number_of_segments():
    # Zaremba et al.: 929,589 tokens in 20 rows of 46,479, cut into 1,327 stretches of 35.
    assert num_segments(929_589, 20, 35, drop_tail=True) == 1327


@pytest.mark.parametrize(("batch_size", "num_steps"), [(0, 5), (5, 0), (-1, 5)])
def test_sizes_below_one(batch_size, num_steps):
    with pytest.raises(UserError, match="1 or more"):
        segments(np.arange(100), batch_size, num_steps, drop_tail=False, first_token=0)


def test_epoch_order_is_a_permutation_of_seed_and_epoch():
    orders = {(seed, epoch): epoch_order(50, seed, epoch) for seed in range(3) for epoch in range(3)}
    for key, order in orders.items():
        assert sorted(order.tolist()) == list(range(50))
        assert np.array_equal(order, epoch_order(50, *key))
    assert len({tuple(order.tolist()) for order in orders.values()}) == len(orders)


@given(st.integers(0, 40), st.integers(1, 9), st.booleans())
@settings(deadline=None)
def test_minibatches(num_examples, batch_size, drop_remainder):
    order = epoch_order(num_examples, 0, 0)
    if drop_remainder and num_examples < batch_size:
        with pytest.raises(UserError, match="smaller --batch-size"):
            minibatches(order, batch_size, drop_remainder)
        return
    batches = list(minibatches(order, batch_size, drop_remainder))
    flat = [index for batch in batches for index in batch.tolist()]
    kept = num_examples - num_examples % batch_size if drop_remainder else num_examples
    assert flat == order.tolist()[:kept]
    assert all(len(batch) == batch_size for batch in batches[: None if drop_remainder else -1])


def test_batch_size_below_one():
    with pytest.raises(UserError, match="--batch-size is 0"):
        minibatches(np.arange(3), 0, False)
