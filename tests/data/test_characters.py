"""Check tables of characters: ids, boundary marks, special words, and the cutting of long words."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynskip_jax.data.characters import character_table
from dynskip_jax.errors import UserError

LETTERS = st.text(alphabet="abcñ'<>", max_size=8)
WORDS = st.lists(st.one_of(LETTERS, st.sampled_from(["<unk>", "<eos>"])), min_size=1, max_size=6)


def special(word):
    return len(word) > 2 and word[0] == "<" and word[-1] == ">" and not {"<", ">"} & set(word[1:-1])


def test_a_table_by_hand():
    table, symbols = character_table(["cab", "<unk>", "b", "ab"])
    assert symbols == ("<unk>", "a", "b", "c")  # 3, 4, 5, 6
    assert table.dtype == np.int32
    assert table.tolist() == [[1, 6, 4, 5, 2], [1, 3, 2, 0, 0], [1, 5, 2, 0, 0], [1, 4, 5, 2, 0]]


def test_long_words_are_cut_before_the_mark_of_their_end():
    table, symbols = character_table(["abcdef", "ab", "<unk>"], max_length=4)
    a, b, unk = (3 + symbols.index(symbol) for symbol in ("a", "b", "<unk>"))
    assert table.tolist() == [[1, a, b, 2], [1, a, b, 2], [1, unk, 2, 0]]
    assert character_table(["ab"], max_length=9)[0].shape == (1, 4)


def test_what_only_resembles_a_special_word_is_spelt():
    for word in ("<>", "<", "<a", "a>", "<a><b>", "x<a>"):
        table, symbols = character_table([word])
        assert symbols == tuple(sorted(set(word)))
        assert table.shape == (1, len(word) + 2)


def test_no_words_no_rows():
    table, symbols = character_table([])
    assert (table.shape, symbols) == ((0, 2), ())
    assert character_table([""])[0].tolist() == [[1, 2]]


@given(WORDS, st.one_of(st.none(), st.integers(3, 8)))
def test_rows_spell_their_words(words, max_length):
    table, symbols = character_table(words, max_length)
    assert list(symbols) == sorted(set(symbols))
    assert max_length is None or table.shape[1] <= max_length
    for word, row in zip(words, table, strict=True):
        ids = row[row != 0].tolist()
        assert row[: len(ids)].tolist() == ids  # padding at the end only
        assert (ids[0], ids[-1]) == (1, 2)
        kept = word if max_length is None or special(word) else word[: max_length - 2]
        assert "".join(symbols[i - 3] for i in ids[1:-1]) == kept


@pytest.mark.parametrize("max_length", [2, 0, -1])
def test_rows_without_room_for_a_character_are_refused(max_length):
    with pytest.raises(UserError, match="max_length"):
        character_table(["a"], max_length)
