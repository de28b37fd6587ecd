"""Check texts as characters and as byte pairs: encoding keeps the text, and lengths equal counts by hand."""

import json

import numpy as np
import pytest

from dynskip_jax.data import make_corpus
from dynskip_jax.data.pieces import LanguageVocabulary, Pieces
from dynskip_jax.data.vocabulary import EOS, UNK
from dynskip_jax.tasks import LanguageModelling

LINES = {
    "train": ["the  cat saw the cats", "a naïve cat's tale"] * 30,
    "valid": ["the cat", "tales of cats"],
    "test": ["that's the ☃"],
}
KINDS = {"characters": Pieces("characters"), "bpe": Pieces("bpe", 270)}


@pytest.mark.parametrize("pieces", KINDS.values(), ids=KINDS)
def test_a_corpus_is_its_text_in_pieces(pieces):
    corpus = make_corpus("cats", LINES, "here", pieces=pieces)
    again = make_corpus("cats", LINES, "here", pieces=pieces)
    assert corpus.fingerprint == again.fingerprint and corpus.vocabulary == again.vocabulary
    vocabulary = corpus.vocabulary
    # A vocabulary read back from JSON encodes a line as the corpus does.
    stored = LanguageVocabulary.from_json(json.loads(json.dumps(vocabulary.to_json())))
    assert stored.decode(corpus.train) == vocabulary.decode(corpus.train)
    tokens = stored.decode(corpus.valid)
    again = [*stored.split("the cat"), EOS, *stored.split("tales  of cats"), EOS]
    np.testing.assert_array_equal(stored.encode(again), corpus.valid)
    expected = "the cat\ntales of cats"
    if pieces.kind == "characters":
        rare = set("ltwfo") - set(vocabulary.tokens)  # train has no f and only 30 occurrences of some letters
        expected = "".join(UNK if letter in rare else letter for letter in expected)
    assert stored.join(tokens) == expected
    assert corpus.text_sizes["valid"] == (2 + 1 + 3 + 1, len("the cat\ntales of cats\n"))
    assert "␣" in " ".join(stored.shown(tokens))


def test_characters_that_train_lacks_are_unknown_and_byte_pairs_lack_none():
    characters = make_corpus("cats", LINES, "here", pieces=KINDS["characters"])
    assert characters.min_count == 31  # the rarest characters of train occur 30 times
    (snowman,) = characters.vocabulary.encode(["☃"])
    assert snowman == characters.vocabulary.index[UNK] == characters.test[-2]
    pairs = make_corpus("cats", LINES, "here", pieces=KINDS["bpe"])
    assert UNK not in pairs.vocabulary.index and len(pairs.vocabulary) == 270
    assert pairs.vocabulary.join(pairs.vocabulary.split("Ω the ☃")) == "Ω the ☃"
    # The byte pairs are learned from train only.
    other = make_corpus("cats", {**LINES, "valid": ["zebra"] * 99}, "here", pieces=KINDS["bpe"])
    assert other.vocabulary == pairs.vocabulary
    assert pairs.vocabulary.split("the cats")[0] == "the"


def test_perplexity_per_word_and_bits_per_character():
    corpus = make_corpus("cats", LINES, "here", pieces=KINDS["characters"])
    task = LanguageModelling(corpus, None, batch_size=1)
    found = task.split_metrics("dev", {"perplexity": np.array([2.0, 4.0])})
    nats = corpus.valid.size * np.log([2.0, 4.0])
    np.testing.assert_allclose(found["word_perplexity"], np.exp(nats / 7))
    # A line end counts as a character, so there are as many characters as pieces.
    np.testing.assert_allclose(found["bits_per_character"], [1, 2])
    words = LanguageModelling(make_corpus("cats", LINES, "here", min_count=31), None, batch_size=1)
    assert words.split_metrics("dev", {"perplexity": np.array([2.0])}) == {}


@pytest.mark.parametrize("stored", [{}, {"kind": "syllables", "tokens": []}, {"kind": "bpe"}, "the"])
def test_what_is_no_vocabulary_is_refused(stored):
    with pytest.raises(ValueError):
        LanguageVocabulary.from_json(stored)
