"""Check segments of random length: their distribution, their sum, and the text that they cover."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.data.batching import num_segments, segments
from dynskip_jax.data.bptt import bptt_lengths, segments_of_lengths
from dynskip_jax.errors import UserError

FIRST = 1000


def generator(seed=0):
    return np.random.default_rng([seed, 1])


def published_lengths(num_tokens, num_steps, rng):
    """Return segment lengths by the loop of the authors' main.py, but keep a single last token."""
    lengths, i = [], 0
    while i < num_tokens:
        bptt = num_steps if rng.random() < 0.95 else num_steps / 2.0
        length = max(5, int(rng.normal(bptt, 5)))
        lengths.append(min(length, num_tokens - i))
        i += length
    return lengths


@given(st.integers(1, 3000), st.integers(1, 100), st.integers(0, 1000))
@settings(deadline=None, max_examples=50)
def test_multiples_of_one_are_the_published_lengths(num_tokens, num_steps, seed):
    found = bptt_lengths(num_tokens, num_steps, generator(seed), multiple=1)
    assert found == published_lengths(num_tokens, num_steps, generator(seed))


@given(
    num_tokens=st.integers(1, 2000),
    num_steps=st.integers(1, 80),
    seed=st.integers(0, 1000),
    minimum=st.integers(1, 12),
    multiple=st.integers(1, 15),
    std=st.floats(0, 40),
)
@settings(deadline=None, max_examples=100)
def test_lengths_are_multiples_that_sum_to_the_tokens(num_tokens, num_steps, seed, **options):
    minimum, multiple = options["minimum"], options["multiple"]
    lengths = bptt_lengths(num_tokens, num_steps, generator(seed), **options)
    assert all(type(length) is int for length in lengths)
    assert sum(lengths) == num_tokens
    assert lengths[-1] >= 1
    assert all(length % multiple == 0 and length >= minimum for length in lengths[:-1])
    # Without the tail, the lengths are the same, but the last one is cut to a multiple.
    shortest = min(m for m in range(multiple, 1000, multiple) if m >= minimum)
    if num_tokens < shortest:
        with pytest.raises(UserError, match=f"{num_tokens:,} tokens.*{shortest} steps.*--batch-size"):
            bptt_lengths(num_tokens, num_steps, generator(seed), drop_tail=True, **options)
        return
    kept = bptt_lengths(num_tokens, num_steps, generator(seed), drop_tail=True, **options)
    assert all(length % multiple == 0 and length >= minimum for length in kept)
    assert 0 <= num_tokens - sum(kept) < shortest
    assert kept[:-1] == lengths[: len(kept) - 1]


def test_rounding_is_to_the_nearest_multiple():
    one, ten = (bptt_lengths(10**5, 70, generator(), multiple=multiple) for multiple in (1, 10))
    count = min(len(one), len(ten)) - 1
    assert ten[:count] == [int(length / 10 + 0.5) * 10 for length in one[:count]]


def test_distribution_of_lengths():
    lengths = np.array(bptt_lengths(10**6, 70, generator(2), short_probability=0.0)[:-1])
    assert abs(lengths.mean() - 70) < 5 * lengths.std() / np.sqrt(lengths.size)
    assert abs(lengths.std() - np.sqrt(25 + 100 / 12)) < 0.3  # rounding adds a uniform error
    lengths = np.array(bptt_lengths(10**6, 70, generator(3), std=0.0, multiple=1)[:-1])
    assert set(lengths.tolist()) == {35, 70}
    share = np.mean(lengths == 35)
    assert abs(share - 0.05) < 5 * np.sqrt(0.05 * 0.95 / lengths.size)
    assert set(bptt_lengths(700, 70, generator(), short_probability=1.0, std=0.0, multiple=1)) == {35}


def test_few_programs_to_compile():
    # Penn Treebank in 80 streams, 100 epochs.
    shapes = {
        length for seed in range(100) for length in bptt_lengths(11_619, 70, generator(seed), drop_tail=True)
    }
    assert len(shapes) <= 10


def test_an_epoch_is_read_again_with_the_same_generator_and_cut_otherwise_with_another():
    assert bptt_lengths(5000, 70, generator(1)) == bptt_lengths(5000, 70, generator(1))
    assert bptt_lengths(5000, 70, generator(1)) != bptt_lengths(5000, 70, generator(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_tokens_per_stream": 0}, "number of tokens is 0: use 1 or more"),
        ({"num_steps": 0}, "number of steps is 0"),
        ({"minimum": 0}, "shortest length is 0"),
        ({"multiple": -1}, "multiple of lengths is -1"),
        ({"short_probability": 1.5}, r"\[0, 1\], got 1.5"),
        ({"std": -1.0}, "must not be negative, got -1.0"),
        ({"std": float("nan")}, "must not be negative, got nan"),
    ],
)
def test_numbers_out_of_range(change, message):
    with pytest.raises(UserError, match=message):
        bptt_lengths(**{"num_tokens_per_stream": 100, "num_steps": 10, "rng": generator(), **change})


CUTS = st.tuples(st.integers(1, 60), st.integers(1, 7), st.lists(st.integers(1, 9), max_size=20))


def joined(found):
    return [np.concatenate(sheets, axis=1) for sheets in zip(*(batch[:3] for batch in found), strict=True)]


@given(CUTS, st.booleans())
@settings(deadline=None)
def test_any_cut_is_the_same_text(cuts, drop_tail):
    num_tokens, batch_size, lengths = cuts
    tokens = np.arange(num_tokens)
    if num_tokens < batch_size and drop_tail:
        with pytest.raises(UserError, match="--batch-size"):
            segments_of_lengths(tokens, batch_size, lengths, first_token=FIRST)
        return
    row_length = num_segments(num_tokens, batch_size, 1, drop_tail=drop_tail)
    while sum(lengths) > row_length:
        lengths = lengths[:-1]
    if sum(lengths) < row_length:
        lengths = [*lengths, row_length - sum(lengths)]
    found = list(segments_of_lengths(tokens, batch_size, lengths, drop_tail=drop_tail, first_token=FIRST))
    assert [segment.inputs.shape for segment in found] == [(batch_size, length) for length in lengths]
    wanted = segments(tokens, batch_size, 1, drop_tail=drop_tail, first_token=FIRST)
    for array, expected in zip(joined(found), joined(wanted), strict=True):
        np.testing.assert_array_equal(array, expected)
        assert array.dtype == expected.dtype


@given(CUTS)
@settings(deadline=None)
def test_equal_lengths_are_segments(cuts):
    num_tokens, batch_size, lengths = cuts
    tokens, num_steps = np.arange(num_tokens), sum(lengths[:1]) or 3
    if num_tokens // batch_size < num_steps:
        return
    wanted = list(segments(tokens, batch_size, num_steps, drop_tail=True, first_token=FIRST))
    found = segments_of_lengths(tokens, batch_size, [num_steps] * len(wanted), first_token=FIRST)
    for segment, expected in zip(found, wanted, strict=True):
        for array, expected_array in zip(segment, expected, strict=True):
            np.testing.assert_array_equal(array, expected_array)


def test_by_hand():
    tokens = np.array([5, 6, 7, 8, 9, 10, 11])
    first, second = segments_of_lengths(tokens, 2, [2, 1], first_token=0)
    assert first.inputs.tolist() == [[0, 5], [7, 8]]
    assert first.targets.tolist() == [[5, 6], [8, 9]]
    assert second.inputs.tolist() == [[6], [9]]
    assert second.targets.tolist() == [[7], [10]]
    _, last = segments_of_lengths(tokens, 2, [3, 1], drop_tail=False, first_token=0)
    assert last.targets.tolist() == [[8], [0]] and last.mask.tolist() == [[True], [False]]


def test_lengths_that_do_not_fit():
    tokens = np.arange(20)
    with pytest.raises(UserError, match=r"11 steps.*2 rows of 10 tokens.*--batch-size"):
        segments_of_lengths(tokens, 2, [6, 5], first_token=0)
    with pytest.raises(ValueError, match=r"9 steps.*rows of 10 over"):
        segments_of_lengths(tokens, 2, [6, 3], drop_tail=False, first_token=0)
    with pytest.raises(UserError, match="0 steps: use 1 or more"):
        segments_of_lengths(tokens, 2, [6, 0], first_token=0)
    with pytest.raises(UserError, match="--batch-size is 0"):
        segments_of_lengths(tokens, 0, [6], first_token=0)


def test_an_epoch_of_drawn_lengths_covers_the_text():
    tokens, batch_size = np.arange(9_999), 7
    lengths = bptt_lengths(num_segments(tokens.size, batch_size, 1, drop_tail=True), 70, generator())
    targets = joined(segments_of_lengths(tokens, batch_size, lengths, first_token=FIRST))[1]
    np.testing.assert_array_equal(targets.ravel(), tokens[: targets.size])
    assert targets.size == tokens.size // batch_size * batch_size
