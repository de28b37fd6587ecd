"""Check words of raw text, and corpora of labelled texts and of rated pairs, by hand."""

import numpy as np
import pytest

from dynskip_jax.data.corpora import PROSE_WORD
from dynskip_jax.data.sentences import (
    Labelled,
    pair_inputs,
    review_words,
    sentence_corpus,
    treebank_words,
)

TEXTS = {
    "train": [Labelled(["a", "b", "a"], 1), Labelled(["b"], 0)],
    "dev": [Labelled(["z", "a"], 0)],
    "test": [Labelled(["a", "y", "x"], 1)],
}


def test_words_of_reviews_and_treebanks():
    text = "It's <br /><br/>GREAT -- don't miss... WOW!!!!! (9/10) Amélie’s"
    assert (
        " ".join(review_words(text))
        == "it's great -- don't miss ... wow !!! !! ( 9 / 10 ) amélie’s"
    )
    assert review_words(" <br /> \n") == []
    text = "It isn't John's (film): well-made, $3.50!"
    assert " ".join(treebank_words(text)) == "it is n't john 's ( film ) : well-made , $ 3.50 !"
    for tokens in ("a film that 's `` both '' funny , n't it ?", "-lrb- so-so -rrb- ... --"):
        assert treebank_words(tokens) == tokens.split()


@pytest.mark.parametrize(
    "text",
    [
        *("आधुनिक मानक हिन्दी", "తెలుగు భాష", "বাংলা ভাষা", "اَلْعَرَبِيَّةُ لُغَةٌ", "עִבְרִית שָׂפָה"),
        *("cafe\u0301 nai\u0308ve", "می\u200cخواهم", "ภาษาไทย", "Ελληνικά"),
    ],
)
def test_words_keep_the_marks_that_combine_with_their_letters(text):
    assert review_words(text) == treebank_words(text) == text.lower().split()
    assert PROSE_WORD.findall(text) == text.split()


def test_joined_emoji_are_one_word():
    family = "👨\u200d👩\u200d👧"
    thumb = "👍🏽"
    flag = "🇨🇭"
    for words in (review_words, treebank_words):
        assert words(f"so{family}good {thumb}{flag}!") == ["so", family, "good", thumb, flag, "!"]
        assert words(f"{thumb}{thumb} a\x1cb \x1d 10²") == [thumb * 2, "a", "b", "10²"]


def test_texts_are_numbered_by_train_alone():
    corpus = sentence_corpus(TEXTS)
    assert corpus.vocabulary.tokens == ("<unk>", "a", "b")
    train = corpus.splits["train"]
    test = corpus.splits["test"]
    np.testing.assert_array_equal(train.inputs, [[1, 2, 1], [2, 0, 0]])
    np.testing.assert_array_equal(train.seq_lengths, [3, 1])
    np.testing.assert_array_equal(train.targets, [1, 0])
    np.testing.assert_array_equal(test.inputs, [[1, 0, 0]])
    assert corpus.unknown == pytest.approx({"train": 0, "dev": 0.5, "test": 2 / 3})
    data = corpus.dataset("x", "y", corpus.vocabulary)
    assert data.sizes == {"train": 2, "dev": 1, "test": 1, "vocabulary": 3}
    other = sentence_corpus(TEXTS | {"dev": TEXTS["test"]}).dataset("x", "y", None)
    again = sentence_corpus(TEXTS).dataset("x", "y", None)
    assert other.fingerprint != data.fingerprint == again.fingerprint


def test_words_of_dev_and_test_may_be_known_and_are_rare():
    corpus = sentence_corpus(TEXTS, known={"y", "a", "other"})
    assert corpus.vocabulary.tokens == ("<unk>", "a", "b", "y")
    assert corpus.num_frequent == 3  # a and b occur twice in train
    texts = {"train": [Labelled(list("aaabbc"), 0)], "dev": [Labelled(list("ab"), 0)]}
    corpus = sentence_corpus(texts, max_words=1, known={"b", "_"})
    assert corpus.vocabulary.tokens == ("<unk>", "a", "b")
    assert corpus.num_frequent == 3  # b is frequent too


def test_pairs_stand_in_one_row():
    pairs = [Labelled(["a", "b"], 3.5, ["a"]), Labelled(["c"], 1.0, ["a", "b", "c"])]
    train = sentence_corpus({"train": pairs, "test": pairs[:1]}).splits["train"]
    np.testing.assert_array_equal(train.inputs["tokens"], [[1, 2, 1, 0], [3, 1, 2, 3]])
    np.testing.assert_array_equal(train.inputs["sentences"], [[0, 0, 1, 0], [0, 1, 1, 1]])
    np.testing.assert_array_equal(train.seq_lengths, [3, 4])
    np.testing.assert_array_equal(train.targets, np.float32([3.5, 1.0]))
    alone = pair_inputs(np.array([3]), np.array([1, 2, 3]))
    for name, row in alone.items():
        np.testing.assert_array_equal(row, train.inputs[name][1])
