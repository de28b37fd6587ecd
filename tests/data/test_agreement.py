"""Check agreement at a distance: texts follow the grammar, and only a stack gives the answers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.data import agreement
from dynskip_jax.errors import UserError

NAMES = agreement.symbol_names()


def by_stack(words):
    """Parse `words` with a stack of open clauses; return the form and the place of the innermost open one."""
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


def test_places_and_forms_are_uniform_and_the_last_word_tells_nothing_of_the_form():
    symbols, lengths, forms, places = agreement.generate(20, {"train": 20_000}).splits["train"]
    longest = lengths == 20
    for values, count in ((lengths - 5, 16), (forms, agreement.NUM_FORMS), (places[longest], 19)):
        found = np.bincount(values, minlength=count) / len(values)
        assert len(found) == count
        assert np.abs(found - 1 / count).max() < 4.5 * np.sqrt(1 / count / len(values))
    last = symbols[np.arange(len(symbols)), lengths - 1]
    for symbol in np.unique(last):
        shares = np.bincount(forms[last == symbol], minlength=agreement.NUM_FORMS) / (last == symbol).sum()
        assert np.abs(shares - 0.1).max() < 0.035


def test_a_splits_texts_depend_on_the_seed_alone():
    small, large = (agreement.generate(12, {"train": 5, "dev": size}) for size in (3, 9))
    for own, other in zip(small.splits["dev"], large.splits["dev"], strict=True):
        np.testing.assert_array_equal(own, other[:3])
    assert small.fingerprint == agreement.generate(12, {"train": 5, "dev": 3}).fingerprint
    assert small.fingerprint != agreement.generate(12, {"train": 5, "dev": 3}, seed=1).fingerprint
    assert not np.array_equal(large.splits["train"].symbols, large.splits["dev"].symbols[:5])


@pytest.mark.parametrize("text", ["a3 w0", "a3 w0 )b", "w1 w2", "a3 )a )a"])
def test_a_text_that_asks_for_nothing_has_no_answer(text):
    with pytest.raises(UserError, match="closes a clause"):
        agreement.answer(np.array([NAMES.index(word) for word in text.split()]))
