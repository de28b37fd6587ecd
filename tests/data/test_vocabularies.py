"""Check vocabularies of words, characters and taggers by hand, and that JSON keeps them."""

import collections
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynskip_jax.data import EOS, UNK, Vocabulary
from dynskip_jax.data.vocabularies import (
    CAPITALS,
    ClassVocabulary,
    capitalisation,
    character_table,
    normal_form,
    tagger_vocabulary,
    vocabulary_of_counts,
    word_vocabulary,
)
from dynskip_jax.errors import UserError


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c", "d", UNK, EOS]), st.integers(1, 5)),
    st.integers(1, 4),
)
def test_counts_make_an_order(counts, min_count):
    vocabulary = vocabulary_of_counts(counts, min_count)
    kept = collections.Counter(
        {word: n for word, n in counts.items() if word in (UNK, EOS) or n >= min_count}
    )
    rare = sum(counts.values()) - sum(kept.values())
    kept[UNK] += rare
    expected = {EOS, *kept} - (set() if rare or UNK in counts else {UNK})
    assert vocabulary.tokens == tuple(sorted(expected, key=lambda token: (-kept[token], token)))


def test_the_most_frequent_words_are_kept():
    counts = {"b": 3, "a": 3, "rare": 1, "c": 2, "most": 9, UNK: 99}
    assert word_vocabulary(counts).tokens == (UNK, "most", "a", "b", "c", "rare")
    assert word_vocabulary(counts, max_words=2, more_words={"z", "b"}).tokens == (
        UNK,
        "most",
        "a",
        "b",
        "z",
    )


def test_ids_and_tokens():
    vocabulary = Vocabulary((UNK, EOS, "cat"))
    ids = vocabulary.encode(["cat", "dog", EOS])
    assert ids.tolist() == [2, 0, 1] and ids.dtype == np.int32
    assert vocabulary.decode(ids) == ["cat", UNK, EOS] and len(vocabulary) == 3
    with pytest.raises(
        UserError, match="'dog' is not among the 1 of the vocabulary, which has no <unk>"
    ):
        Vocabulary(("cat",)).encode(["dog"])
    with pytest.raises(ValueError, match="occurs twice"):
        Vocabulary(("a", "b", "a"))


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ("", ""),
        ("<eos> the cat <eos>", "the cat"),
        ("<eos> <eos> the cat <eos> sat <eos> <eos> <unk> <eos> <eos>", "the cat\nsat\n\n<unk>"),
        ("the <eos>x x<eos> cat", "the <eos>x x<eos> cat"),
    ],
)
def test_text_of_tokens(tokens, text):
    assert Vocabulary(()).join(tokens.split()) == text


def test_characters_between_marks():
    table, symbols = character_table(["cat", UNK, "a", ""])
    assert symbols == (UNK, "a", "c", "t")
    assert table.tolist() == [[1, 5, 4, 6, 2], [1, 3, 2, 0, 0], [1, 4, 2, 0, 0], [1, 2, 0, 0, 0]]
    assert character_table([])[0].shape == (0, 2)


def test_capitals():
    words = {
        "lower": "the ß",
        "first": "The A",
        "all": "THE U.S.",
        "mixed": "tHe McX",
        "none": "12, 日本",
    }
    for name, of_name in words.items():
        assert {CAPITALS[capitalisation(word)] for word in of_name.split()} == {name}


def test_normal_forms():
    words = {("keep", False): "Ab1²2", ("nine", True): "ab9²9", ("zero", False): "Ab0²0"}
    for (digits, lowercase), form in words.items():
        assert normal_form("Ab1²2", lowercase=lowercase, digits=digits) == form


SENTENCES = [["The", "cat", "cat"], ["the", "Dog", UNK]]


def test_a_taggers_vocabulary():
    vocabulary = tagger_vocabulary(
        SENTENCES, ("X", "O"), lowercase=True, word_length=2, more_words={"cow"}
    )
    assert vocabulary.words == (UNK, "cat", "the", "dog", "cow") and vocabulary.num_frequent == 3
    assert vocabulary.characters == ("e", "h", "t") and vocabulary.num_characters == 2 + 3
    ids = vocabulary.encode(["Cat", "zebra", "t"])
    assert ids.words.tolist() == [1, 0, 0] and ids.capitals.tolist() == [1, 0, 0]
    # Of a longer word the first and the last character are read; t is the last one known.
    assert ids.characters.tolist() == [[1, 4], [1, 1], [4, 0]] and ids.columns.shape == (3, 0)
    assert vocabulary.knows("DOG") and not vocabulary.knows("zebra")


def test_other_columns_and_json():
    columns = [[("N", "x"), ("V", "x")], [("N", "y")]]
    vocabulary = tagger_vocabulary([["a", "b"], ["c"]], ("O",), columns=columns, scheme="IOB1")
    assert vocabulary.columns == (("N", "V"), ("x", "y"))
    ids = vocabulary.encode(["a", "b"], [("V", "z"), ("N", "y")])
    assert ids.columns.tolist() == [[2, 0], [1, 2]]
    with pytest.raises(UserError, match="trained with --columns, which text has not"):
        vocabulary.encode(["a"])
    kept = json.loads(json.dumps(vocabulary.to_json()))
    stored = Vocabulary.from_json(kept)
    classes = ClassVocabulary((UNK, "a"), ("neg", "pos"))
    assert Vocabulary.from_json(json.loads(json.dumps(classes.to_json()))) == classes
    assert stored.scheme == "IOB1" and stored.encode(["a"], [("N", "x")]).columns.tolist() == [
        [1, 1]
    ]
