"""Check texts as token ids: each token once, and `<unk>` trained."""

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import write

from dynskip_jax.data import EOS, UNK, make_corpus
from dynskip_jax.data.language import read_corpus
from dynskip_jax.errors import UserError

SPLITS = ("train", "dev", "test")
WORDS = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=12).map(" ".join)


def corpus_of(train, dev="the", test="the"):
    return make_corpus("x", {"train": [train], "dev": [dev], "test": [test]}, "here")


def write_splits(folder, template="{}.txt", **texts):
    texts = {
        "train": "the cat sat\nthe dog\n",
        "valid": "the cat\n",
        "test": "a cat\nsat\n",
    } | texts
    for split, text in texts.items():
        write(folder / template.format(split), text)
    return folder


def test_tokens_and_vocabulary_by_hand(tmp_path):
    corpus = read_corpus(write_splits(tmp_path / "cats"))
    # <eos> and "the" occur twice. The other words occur once and become <unk>, as does "a", which
    # is new.
    assert corpus.vocabulary.tokens == (UNK, EOS, "the")
    assert corpus.train.tolist() == [2, 0, 0, 1, 2, 0, 1]
    assert (corpus.dev.tolist(), corpus.test.tolist()) == ([2, 0, 1], [0, 0, 1, 0, 1])
    assert corpus.sizes == {"train": 7, "dev": 3, "test": 5, "vocabulary": 3}
    assert {ids.dtype for ids in corpus.splits.values()} == {np.dtype(np.int32)}
    packed = read_corpus(write_splits(tmp_path / "packed", "wiki.{}.tokens.gz"))
    assert packed.fingerprint == corpus.fingerprint


def test_what_a_token_is(tmp_path):
    # Blank lines count in WikiText only.
    for template, kept in (("{}.txt", 0), ("wiki.{}.tokens", 3)):
        texts = dict(train="the cat\nsat\n\nthe cat\n \t\n\n", test="sat")
        corpus = read_corpus(write_splits(tmp_path / template, template, **texts))
        assert corpus.vocabulary.decode(corpus.train).count(EOS) == 3 + kept
    # Runs of spaces, no last line end, and a form feed, at which str.splitlines would split.
    text = "the  cat\r\nx\u00b7y \x0c\r\n\r\nend"
    corpus = read_corpus(write_splits(tmp_path, train=text, valid="the", test="cat"))
    assert corpus.vocabulary.decode(corpus.train) == [
        "the",
        "cat",
        EOS,
        "x\u00b7y",
        EOS,
        "end",
        EOS,
    ]
    # An <eos> of the text's own, at a line's end, counts once.
    corpus = make_corpus(
        "x", {"train": ["a b <eos>", "<eos>", "a <eos> b"], "dev": ["a"], "test": ["b"]}, ""
    )
    assert corpus.vocabulary.decode(corpus.train) == ["a", "b", EOS, EOS, "a", EOS, "b", EOS]


@settings(deadline=None, max_examples=60)
@given(st.tuples(WORDS, WORDS, WORDS))
def test_no_corpus_has_an_unk_that_is_not_trained(words):
    corpus = corpus_of(*words)
    assert set(corpus.train.tolist()) == set(range(len(corpus.vocabulary)))
    for split, text in zip(SPLITS, words, strict=True):
        # Every word is counted, as itself or as <unk>.
        expected = [
            word if word in corpus.vocabulary.index else UNK for word in [*text.split(), EOS]
        ]
        assert corpus.vocabulary.decode(corpus.splits[split]) == expected
        assert corpus.unknown[split] == pytest.approx(expected.count(UNK) / len(expected))


@pytest.mark.parametrize(
    ("train", "dev", "tokens", "line"),
    [
        ("a <unk> <unk>", "b", f"{UNK} {EOS} a", "<unk>: 50 %"),
        ("a b", "b", f"{EOS} a b", "<unk>: 0 %"),
        (
            "a a b b b b",
            "d",
            f"b {UNK} {EOS}",
            "<unk>, seen fewer than 3 times in train: 28.6",
        ),
    ],
)
def test_rare_words_become_unknown_where_it_is_needed(train, dev, tokens, line):
    corpus = corpus_of(train, dev, train)
    assert corpus.vocabulary.tokens == tuple(tokens.split()) and corpus.about.startswith(line)


def test_the_fingerprint_depends_on_content_alone():
    corpus = corpus_of("the cat", "the", "cat")
    assert (
        dataclasses.replace(corpus, name="another", source="elsewhere").fingerprint
        == corpus.fingerprint
    )
    assert corpus_of("the sat", "the", "sat").fingerprint != corpus.fingerprint
    moved = {"train": corpus.train[:-1], "dev": np.concatenate([corpus.train[-1:], corpus.dev])}
    assert dataclasses.replace(corpus, **moved).fingerprint != corpus.fingerprint
    digest = hashlib.sha256(b"5\n<eos>3\ncat3\nthe")  # run folders keep it
    for ids in ([2, 1, 0], [2, 0], [1, 0]):
        digest.update(f"int32 ({len(ids)},)\n".encode() + np.int32(ids).tobytes())
    assert corpus.fingerprint == digest.hexdigest()


def test_a_split_without_words_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"valid\.txt is empty"):
        read_corpus(write_splits(tmp_path / "x", valid=" \n\n"))
