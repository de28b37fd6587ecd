"""Check vocabularies: order, special tokens, encoding and decoding."""

import collections

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.data import EOS, UNK, Vocabulary, build_vocabulary
from dynskip_jax.errors import UserError

WORDS = st.sampled_from(["a", "b", "c", "d", "e", EOS, UNK])


def test_order_is_frequency_then_alphabet():
    vocabulary = build_vocabulary(["b", "a", "c", "c", EOS, EOS, EOS])
    assert vocabulary.tokens == (EOS, "c", "a", "b")
    assert len(vocabulary) == 4
    assert vocabulary.index == {EOS: 0, "c": 1, "a": 2, "b": 3}


def test_eos_is_always_in():
    assert build_vocabulary([]).tokens == (EOS,)
    assert build_vocabulary(["a"]).tokens == ("a", EOS)


def test_min_count_drops_into_unk():
    # a occurs twice, b and c once. The two dropped occurrences give <unk> the same count as a, and "<" sorts
    # before "a".
    assert build_vocabulary(["a", "a", "b", "c"], min_count=2).tokens == (UNK, "a", EOS)


def test_max_size_counts_the_special_tokens():
    words = ["a"] * 5 + ["b"] * 4 + ["c"] * 3 + [EOS]
    assert build_vocabulary(words, max_size=4).tokens == ("a", "b", "c", EOS)
    assert build_vocabulary(words, max_size=3).tokens == (UNK, "a", EOS)
    with pytest.raises(ValueError, match="max_size"):
        build_vocabulary(words, max_size=1)


@given(st.lists(WORDS, max_size=40), st.one_of(st.none(), st.integers(2, 8)), st.integers(1, 3))
@settings(deadline=None)
def test_properties(tokens, max_size, min_count):
    vocabulary = build_vocabulary(tokens, max_size=max_size, min_count=min_count)
    counts = collections.Counter(tokens)
    assert EOS in vocabulary.index
    assert max_size is None or len(vocabulary) <= max_size
    words = [t for t in vocabulary.tokens if t not in (EOS, UNK)]
    assert all(counts[word] >= min_count for word in words)
    assert words == sorted(words, key=lambda word: (-counts[word], word))
    dropped = set(counts) - set(vocabulary.tokens)
    assert (UNK in vocabulary.index) == bool(dropped or counts[UNK])
    # Dropped words are never more frequent than kept ones.
    if dropped and words:
        assert max(counts[t] for t in dropped) <= counts[words[-1]]
    decoded = vocabulary.decode(vocabulary.encode(tokens))
    assert decoded == [token if token in vocabulary.index else UNK for token in tokens]


def test_encode_gives_int32_and_maps_unknown_tokens():
    vocabulary = Vocabulary(("a", UNK))
    ids = vocabulary.encode(["a", "z", "a"])
    assert ids.dtype == np.int32
    assert ids.tolist() == [0, 1, 0]


def test_unknown_token_without_unk_is_named():
    with pytest.raises(UserError, match=r"'zebra'.*<unk>"):
        Vocabulary(("a", "b")).encode(["a", "zebra"])


def test_decode_refuses_foreign_ids():
    vocabulary = Vocabulary(("a", "b"))
    for bad in (-1, 2):
        with pytest.raises(ValueError, match=r"0\.\.1"):
            vocabulary.decode(np.array([0, bad]))


def test_repeated_token_is_refused():
    with pytest.raises(ValueError, match="'a'"):
        Vocabulary(("a", "b", "a"))
