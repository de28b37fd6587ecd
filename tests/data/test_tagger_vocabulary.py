"""Check words, characters and capitalisation as numbers, and sentences in buckets."""

import json

import numpy as np
import pytest

from dynskip_jax.data.batches import evaluation_batches, train_batches
from dynskip_jax.data.tagged_examples import padded_length, sentence_buckets, tagged_examples
from dynskip_jax.data.tagger_vocabulary import (
    CAPITALS,
    TaggerVocabulary,
    capitalisation,
    normal_form,
    tagger_vocabulary,
)
from dynskip_jax.errors import UserError

TRAIN = [["The", "cat", "saw", "1984"], ["the", "cat", "sat", "in", "1999"]]


def make(**options):
    return tagger_vocabulary(TRAIN, ["A", "B"], **options)


@pytest.mark.parametrize(
    "word, expected",
    [("cat", "lower"), ("The", "first"), ("I", "first"), ("NATO", "all"), ("McCoy", "mixed"),
     ("iPod", "mixed"), ("U.S.", "all"), ("1984", "none"), ("--", "none"), ("Élan", "first"),
     ("東京", "none")],
)  # fmt: skip
def test_capitalisation(word, expected):
    assert CAPITALS[capitalisation(word)] == expected


def test_normal_forms():
    assert normal_form("In1984", lowercase=True, digits="nine") == "in9999"
    assert normal_form("In1984", lowercase=False, digits="zero") == "In0000"
    assert normal_form("In1984", lowercase=False, digits="keep") == "In1984"


def test_words_by_frequency_in_their_normal_form():
    plain = make()
    assert plain.words == ("<unk>", "cat", "1984", "1999", "The", "in", "sat", "saw", "the")
    assert plain.num_frequent == 2
    folded = make(lowercase=True, digits="nine")
    assert folded.words == ("<unk>", "9999", "cat", "the", "in", "sat", "saw") and folded.num_frequent == 4
    assert make(min_count=2).words == ("<unk>", "cat")
    assert make(more_words={"dog", "cat", "ape"}).words[-2:] == ("ape", "dog")
    ids = folded.encode(["THE", "2001", "dog", "sat"])
    assert ids.words.tolist() == [3, 1, 0, 5]
    assert [CAPITALS[i] for i in ids.capitals] == ["all", "none", "lower", "lower"]
    assert folded.knows("Cat") and not folded.knows("dog") and not plain.knows("Cat")


def test_characters_known_unknown_and_of_long_words():
    vocabulary = make(word_length=5)
    # These characters occur in two or more of the distinct words The, cat, saw, 1984, the, sat, in, 1999.
    assert vocabulary.characters == tuple("19aehst")
    assert vocabulary.spell(["the", "xxt", "", "abcdefgh"]).tolist() == [
        [8, 6, 5, 0, 0],
        [1, 1, 8, 0, 0],
        [0, 0, 0, 0, 0],
        [4, 1, 1, 1, 6],  # a b f g h
    ]
    assert vocabulary.num_characters == 9
    assert vocabulary.unknown_characters(["then", "é"]) == {"n", "é"}
    with pytest.raises(UserError, match="at least 2"):
        make(word_length=1)


def test_it_is_kept_as_json():
    vocabulary = make(lowercase=True, digits="nine", word_length=7)
    assert TaggerVocabulary.from_json(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary


def test_few_padded_lengths():
    assert [padded_length(n) for n in (1, 8, 9, 17, 25, 41, 65, 105)] == [8, 8, 16, 24, 40, 64, 104, 168]
    lengths = np.array([3] * 5 + [12] + [20] * 4 + [50])
    assert sentence_buckets(lengths, 1) == (8, 16, 24, 64)
    assert sentence_buckets(lengths, 4) == (8, 24, 64)
    assert sentence_buckets(lengths, 100) == (64,)
    assert sentence_buckets(lengths, 1, most=3) == (8, 24, 64)
    assert sentence_buckets(lengths, 1, most=1) == (64,)


def test_batches_hold_each_sentence_with_its_own_characters():
    vocabulary, rng = make(), np.random.default_rng(0)
    words = ["The", "cat", "saw", "the", "dog", "1984", "NATO"]
    sentences = [rng.choice(words, size=n).tolist() for n in rng.integers(1, 20, size=23)]
    tags = [rng.integers(2, size=len(sentence)).tolist() for sentence in sentences]
    examples = tagged_examples(sentences, tags, vocabulary, least=4)
    assert len(examples.buckets) > 1

    def check(batch, rows):
        for row in rows:
            number, size = int(batch.index[row]), int(batch.seq_lengths[row])
            expected = vocabulary.encode(sentences[number])
            for found, true in zip(batch.inputs, expected, strict=True):
                np.testing.assert_array_equal(found[row][:size], true)
            assert batch.targets[row][:size].tolist() == tags[number]
            assert size == len(sentences[number])
            assert batch.inputs.characters.shape[-2] in examples.buckets

    seen = []
    for batch in evaluation_batches(examples, 5):
        rows = np.flatnonzero(batch.mask)
        check(batch, rows)
        seen += batch.index[rows].tolist()
    assert sorted(seen) == list(range(23))
    for batch in train_batches(examples, 4, (0, 1), epoch=1):
        assert batch.inputs.characters.shape[:2] == (2, 4)
        for seed in range(2):
            part = batch._replace(
                inputs=type(batch.inputs)(*(leaf[seed] for leaf in batch.inputs)),
                targets=batch.targets[seed], seq_lengths=batch.seq_lengths[seed], index=batch.index[seed],
            )  # fmt: skip
            check(part, range(4))
