"""Check the generated tasks against their definitions, and their independent random streams."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.data import agreement, load_number_prediction
from dynskip_jax.data import number_prediction as numbers
from dynskip_jax.data.recall import NOT_ASKED, NUM_WORDS, generate, load_recall

# --- Number prediction ---

UNIFORM_BOUND = 33.7  # 99.99 % quantile of chi-square with nine degrees of freedom


def hops_by_definition(row):
    """Return the positions that lead to the label: two at length 21, one at all others."""
    pointer = row[-1]
    assert 0 <= pointer < len(row) - 1
    if len(row) != 21:
        return [pointer]
    assert row[pointer] < pointer
    return [pointer, row[pointer]]


@pytest.mark.parametrize("length", [11, 12, 21, 22, 501])
def test_labels_by_definition(length):
    digits, labels = numbers.generate(length, 500, seed=3)
    assert digits.shape == (500, length) and digits.dtype == labels.dtype == np.int32
    assert digits[:, :-1].min() == labels.min() == 0 and digits[:, :-1].max() == labels.max() == 9
    hops = [hops_by_definition(row) for row in digits.tolist()]
    assert numbers.hops_of(digits).tolist() == hops
    answers = [row[hop[-1]] for row, hop in zip(digits.tolist(), hops, strict=True)]
    assert labels.tolist() == answers
    assert digits.max() < numbers.num_symbols(length) == {11: 10, 21: 10}.get(length, length - 1)


@pytest.mark.parametrize("length", [11, 21])
def test_the_papers_lengths_keep_their_examples(monkeypatch, length):
    """The examples are the allowed rows of digits, in the order drawn."""
    sizes = {"train": 700, "dev": 30, "test": 1}
    for split in ("dev", "test"):
        monkeypatch.setitem(numbers.DEFAULT_SIZES, split, sizes[split])
    splits = load_number_prediction(length, 700).content
    for stream, (split, size) in enumerate(sizes.items()):
        rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(stream,)))
        drawn = rng.integers(10, size=(20 * size, length), dtype=np.int32).tolist()
        rows = [row for row in drawn if length == 11 or row[row[-1]] < row[-1]][:size]
        assert splits[split][0].tolist() == rows


def chi_square(digits, kinds=10):
    expected = digits.size / kinds
    return float(((np.bincount(digits.ravel(), minlength=kinds) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("length", [11, 51, 301])
def test_digits_and_pointers_are_uniform(length):
    digits, labels = numbers.generate(length, 60_000, seed=0)
    freedom = length - 2
    # A value exceeds five standard deviations with a probability of 1 in 10,000, or less.
    assert chi_square(digits[:, -1], length - 1) < freedom + 5 * np.sqrt(2 * freedom)
    assert all(chi_square(digits[:, column]) < UNIFORM_BOUND for column in (0, 9, length - 2))
    assert chi_square(labels) < UNIFORM_BOUND
    # Independent of the pointer.
    assert chi_square(labels[digits[:, -1] == length - 2]) < UNIFORM_BOUND


# --- Agreement ---

NAMES = agreement.symbol_names()


def by_stack(words):
    """Parse `words` with a stack of open clauses; return the innermost one's form and place."""
    stack = []
    for place, word in enumerate(words[:-1]):
        if word[0] == ")":
            assert stack and stack[-1][0] == word[1], "what is closed is what was opened last"
            stack.pop()
        elif word[0] != "w":
            assert word[0] not in [kind for kind, *_ in stack], "no kind is opened while it is open"
            stack.append((word[0], int(word[1:]), place))
    assert words[-1] == f"){stack[-1][0]}"
    return stack[-1][1:]


@settings(deadline=None, max_examples=30)
@given(length=st.integers(5, 70), seed=st.integers(0, 10_000))
def test_texts_are_of_the_grammar_and_ask_for_the_form_that_a_stack_finds(length, seed):
    symbols, form, place = agreement.example(length, np.random.default_rng(seed))
    assert len(symbols) == length
    assert by_stack([NAMES[symbol] for symbol in symbols]) == (form, place)
    assert agreement.answer(np.array(symbols)) == (form, place)


def agreement_of(monkeypatch, length, train, dev=1):
    for split, size in (("dev", dev), ("test", 1)):
        monkeypatch.setitem(agreement.DEFAULT_SIZES, split, size)
    return agreement.load_agreement(length, train)


def test_places_and_forms_are_uniform_and_the_last_word_tells_nothing_of_the_form(monkeypatch):
    symbols, forms, lengths = agreement_of(monkeypatch, 20, 20_000).content["train"]
    rows = symbols[lengths == 20]
    places = np.array([agreement.answer(row)[1] for row in rows])
    for values, count in ((lengths - 5, 16), (forms, agreement.NUM_FORMS), (places, 19)):
        found = np.bincount(values, minlength=count) / len(values)
        assert len(found) == count
        assert np.abs(found - 1 / count).max() < 4.5 * np.sqrt(1 / count / len(values))
    last = symbols[np.arange(len(symbols)), lengths - 1]
    for symbol in np.unique(last):
        shares = (
            np.bincount(forms[last == symbol], minlength=agreement.NUM_FORMS)
            / (last == symbol).sum()
        )
        assert np.abs(shares - 0.1).max() < 0.035


def test_a_splits_texts_do_not_depend_on_its_size(monkeypatch):
    small, large, again = (agreement_of(monkeypatch, 12, 5, size) for size in (3, 9, 3))
    for own, other in zip(small.content["dev"], large.content["dev"], strict=True):
        np.testing.assert_array_equal(own, other[:3])
    assert small.fingerprint == again.fingerprint != large.fingerprint
    assert not np.array_equal(large.content["train"][0], large.content["dev"][0][:5])


# --- Recall ---


@pytest.mark.parametrize(("length", "pairs"), [(32, 2), (64, 4), (256, 16)])
def test_each_key_returns_once_and_asks_for_its_value(length, pairs):
    for words, targets in zip(*generate(length, 300, 0), strict=True):
        value_of = dict(words[: 2 * pairs].reshape(-1, 2).tolist())
        assert len(value_of) == len(set(value_of.values())) == pairs
        assert max(value_of) < NUM_WORDS // 2 <= min(value_of.values())
        (asked,) = np.nonzero(targets != NOT_ASKED)
        assert asked.min() >= 2 * pairs and sorted(words[asked].tolist()) == sorted(value_of)
        assert [value_of[key] for key in words[asked].tolist()] == targets[asked].tolist()


def test_keys_return_by_a_power_law():
    """The nearest place is the most likely one, by the ratio that the exponent says."""
    _, targets = generate(32, 40_000, 1)  # two draws without replacement among 14 places
    counts = collections.Counter(np.nonzero(targets != NOT_ASKED)[1].tolist())
    weights = np.arange(1.0, 15.0) ** (0.01 - 1)
    p = weights / weights.sum()
    expected = p + [sum(p[j] * p[i] / (1 - p[j]) for j in range(14) if j != i) for i in range(14)]
    found = np.array([counts[place] for place in range(4, 32, 2)]) / len(targets)
    np.testing.assert_allclose(found, expected, atol=0.012)


def test_splits_differ_and_are_the_same_every_time():
    data = load_recall(32, 100)
    assert data.fingerprint == load_recall(32, 100).fingerprint != load_recall(32, 101).fingerprint
    widths = [(name, words.shape[1]) for name, (words, _) in data.content.items()]
    assert widths == [("train", 32), ("dev", 32), ("test", 32), ("twice", 64)]
    assert len({words[0, :32].tobytes() for words, _ in data.content.values()}) == 4
