"""A small corpus of real English that every Python carries: the language reference behind `help()`."""

import hashlib
import importlib
import re
import sys
from collections.abc import Iterator, Mapping

import regex

from dynskip_jax.data.pieces import Pieces
from dynskip_jax.data.text import SPLITS, LanguageCorpus, make_corpus
from dynskip_jax.errors import UserError

NAME = "pydoc-topics"
SHARES = {"train": 0.8, "valid": 0.1, "test": 0.1}

# Words keep inner apostrophes, hyphens and dots ("doesn't", "built-in", "sys.maxsize"). `\w` of the package
# regex has the marks that combine with letters.
TOKEN = regex.compile(r"\d+(?:[.,]\d+)*|[^\W\d]\w*(?:['.-]\w+)*|[.,;:?!()]|--")
SENTENCE_END = re.compile(r"(?<=[.?!])\)? +(?=[A-Z(])")
FOOTNOTE_OR_BULLET = re.compile(r"^(?:[*-] |\[\d+\] |\d+\. )+|\[\d+\]")
# The quotes and stars around names are the page's typography, not the sentence's.
MARKUP = str.maketrans(
    {'"': " ", "*": " ", "`": " ", "“": " ", "”": " ", "’": "'", "‘": "'", "—": " -- ", "–": "-"}
)


def is_prose(paragraph: str) -> bool:
    """Whether a paragraph is English rather than a heading, grammar rule, table or piece of code."""
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return (
        paragraph.endswith((".", ":", "?", "!", ")"))
        and letters > 0.8 * len(paragraph)
        and len(paragraph.split()) >= 4
        and not any(mark in paragraph for mark in ("::=", ">>>", "(Pdb)", "(com)"))
    )


def tokenize_sentence(sentence: str) -> list[str]:
    """Lower-cased words, `N` for each number, and the punctuation marks `. , ; : ? ! ( ) --`."""
    tokens = TOKEN.findall(sentence.lower().translate(MARKUP))
    return ["N" if token[0].isdigit() else token for token in tokens]


def sentences(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph as lines of blank-separated tokens."""
    for sentence in SENTENCE_END.split(FOOTNOTE_OR_BULLET.sub("", paragraph)):
        if tokens := tokenize_sentence(sentence):
            yield " ".join(tokens)


def topic_lines(topics: Mapping[str, str]) -> dict[str, list[str]]:
    """The sentences of each topic, topics in alphabetical order.

    Chapters quote sections that are topics of their own, so a paragraph counts only where it first occurs:
    otherwise the training text would hold parts of the test text.
    """
    seen: set[str] = set()
    lines: dict[str, list[str]] = {}
    for topic in sorted(topics):
        paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", topics[topic])]
        fresh = [paragraph for paragraph in dict.fromkeys(paragraphs) if paragraph not in seen]
        seen.update(fresh)
        lines[topic] = [line for paragraph in fresh if is_prose(paragraph) for line in sentences(paragraph)]
    return lines


def split_topics(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Deal whole topics to train, valid and test, about 80 : 10 : 10 of the tokens.

    Topics differ a hundredfold in size, so a hash or a stride over them would miss the shares. Taken from
    the largest to the smallest (ties in the order of the names' hashes), each goes to the split that lacks
    most: the same on every machine.
    """
    total = sum(sizes.values())
    missing = {split: share * total for split, share in SHARES.items()}
    chosen: dict[str, list[str]] = {split: [] for split in SPLITS}
    for topic in sorted(sizes, key=lambda topic: (-sizes[topic], hashlib.sha256(topic.encode()).digest())):
        split = max(SPLITS, key=missing.__getitem__)
        missing[split] -= sizes[topic]
        chosen[split].append(topic)
    return {split: sorted(names) for split, names in chosen.items()}


def embedded_corpus(min_count: int | None = None, pieces: Pieces | None = None) -> LanguageCorpus:
    """The corpus "pydoc-topics": about 50,000 words of the running Python's language reference.

    It exists so that a first run needs no download. It differs between Python versions, as its source and
    fingerprint say, so compare only results of the same version.

    Args:
      min_count: words that training has fewer times are `<unk>`; None is 2: those seen once.
      pieces: what words are split into; None keeps them whole.

    Raises:
      UserError: when `min_count` is less than 2, as valid and test have words that training lacks, or when
        this Python was installed without its documentation topics.
    """
    try:
        topics = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise UserError(
            "this Python has no pydoc_data.topics, the embedded corpus: name another with --data DIR"
        ) from error
    lines = topic_lines(topics)
    sizes = {topic: sum(line.count(" ") + 2 for line in text) for topic, text in lines.items()}
    splits = {
        split: [line for topic in names for line in lines[topic]]
        for split, names in split_topics(sizes).items()
    }
    if min_count is None and pieces is None:
        min_count = 2
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return make_corpus(NAME, splits, f"CPython {version}'s own pydoc_data.topics", min_count, pieces)
