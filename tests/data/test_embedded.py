"""Check the embedded corpus: it is real English, split by topic, with no text in two splits."""

import re
import sys

import numpy as np
import pytest

from dynskip_jax.data import EOS, UNK, embedded_corpus
from dynskip_jax.data.embedded import is_prose, sentences, split_topics, topic_lines
from dynskip_jax.errors import UserError


@pytest.fixture(scope="module")
def corpus():
    return embedded_corpus()


def test_name_source_and_shares(corpus):
    assert corpus.name == "pydoc-topics"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert corpus.source == f"CPython {version}'s own pydoc_data.topics"
    sizes = corpus.sizes
    total = sizes["train"] + sizes["valid"] + sizes["test"]
    assert total > 30_000
    assert sizes["train"] / total == pytest.approx(0.8, abs=0.03)
    assert sizes["valid"] / total == pytest.approx(0.1, abs=0.03)
    assert 1_000 < sizes["vocabulary"] < 5_000


def test_same_each_time(corpus):
    assert embedded_corpus().fingerprint == corpus.fingerprint


def test_reads_like_english(corpus):
    words = corpus.vocabulary.decode(corpus.train)
    assert words.count("the") / len(words) > 0.03
    assert words[-1] == EOS
    assert 5 < len(words) / words.count(EOS) < 40
    assert not any(re.search(r"[A-Z\s\"*`=]", w) for w in corpus.vocabulary.tokens if w != "N")
    unknown = corpus.vocabulary.index[UNK]
    assert 0 < np.mean(corpus.train == unknown) == corpus.unknown["train"] < 0.1
    counts = np.bincount(corpus.train, minlength=len(corpus.vocabulary))
    assert all(n >= 2 or token == UNK for token, n in zip(corpus.vocabulary.tokens, counts, strict=True))


def test_a_paragraph_counts_once():
    shared = "This paragraph is told twice, here and there."
    lines = topic_lines({"b": f"{shared}\n\nOnly the second one says this.", "a": f"{shared}\n\n{shared}"})
    assert lines["a"] == ["this paragraph is told twice , here and there ."]
    assert lines["b"] == ["only the second one says this ."]


def test_tokens_by_hand():
    paragraph = 'See "sys.maxsize"; it doesn’t exceed 2,147 (or 2.5). Is *x* built-in? Yes.'
    assert list(sentences(paragraph)) == [
        "see sys.maxsize ; it doesn't exceed N ( or N ) .",
        "is x built-in ?",
        "yes .",
    ]


@pytest.mark.parametrize(
    "noise",
    [
        "The if statement ******************",
        'assert_stmt ::= "assert" expression, and so on (again)',
        "del d[key]",
    ],
)
def test_noise_is_left_out(noise):
    assert not is_prose(noise)
    assert is_prose("A sentence that explains something.")


def test_topics_are_dealt_whole():
    sizes = {f"topic{i}": 1 + i * i for i in range(40)}
    splits = split_topics(sizes)
    assert sorted(topic for topics in splits.values() for topic in topics) == sorted(sizes)
    shuffled = dict(sorted(sizes.items(), key=lambda item: hash(item[0])))
    assert split_topics(shuffled) == splits


def test_python_without_topics(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match="--data DIR"):
        embedded_corpus()
