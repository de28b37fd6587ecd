"""Build a small English corpus from a text that comes with Python: the language reference behind `help()`."""

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
# regex also matches combining marks.
TOKEN = regex.compile(r"\d+(?:[.,]\d+)*|[^\W\d]\w*(?:['.-]\w+)*|[.,;:?!()]|--")
SENTENCE_END = re.compile(r"(?<=[.?!])\)? +(?=[A-Z(])")
FOOTNOTE_OR_BULLET = re.compile(r"^(?:[*-] |\[\d+\] |\d+\. )+|\[\d+\]")
# Quotes and stars around names are markup, not part of the sentence.
MARKUP = str.maketrans(
    {'"': " ", "*": " ", "`": " ", "“": " ", "”": " ", "’": "'", "‘": "'", "—": " -- ", "–": "-"}
)


def is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is English prose, not a heading, grammar rule, table or piece of code."""
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return (
        paragraph.endswith((".", ":", "?", "!", ")"))
        and letters > 0.8 * len(paragraph)
        and len(paragraph.split()) >= 4
        and not any(mark in paragraph for mark in ("::=", ">>>", "(Pdb)", "(com)"))
    )


def tokenize_sentence(sentence: str) -> list[str]:
    """Return the tokens of a sentence: lower-case words, `N` for each number, and `. , ; : ? ! ( ) --`."""
    tokens = TOKEN.findall(sentence.lower().translate(MARKUP))
    return ["N" if token[0].isdigit() else token for token in tokens]


def sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph as lines of space-separated tokens."""
    for sentence in SENTENCE_END.split(FOOTNOTE_OR_BULLET.sub("", paragraph)):
        if tokens := tokenize_sentence(sentence):
            yield " ".join(tokens)


def topic_lines(topics: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the sentences of each topic, with the topics in alphabetical order.

    Some topics repeat paragraphs of other topics. Each paragraph is kept only where it first occurs;
    otherwise the training text would contain parts of the test text.
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
    """Assign whole topics to train, valid and test, with about 80, 10 and 10 % of the tokens.

    Topics differ in size by a factor of a hundred, so assigning them by hash or at regular intervals would
    miss these fractions. Topics are assigned from the largest to the smallest (ties in the order of the
    names' hashes), each to the split that lacks the most tokens. The result is the same on every machine.

    Args:
      sizes: Number of tokens of each topic.

    Returns:
      The sorted names of the topics of each split.
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
    """Return the corpus "pydoc-topics": about 50,000 words of the running Python's language reference.

    With this corpus, a first run needs no download. The text differs between Python versions, and so do
    `source` and `fingerprint`: compare only results of the same version.

    Args:
      min_count: Words that occur fewer times in the training text become `<unk>`. None: 2 for whole words;
        see `make_corpus` for pieces.
      pieces: Units into which words are split; None keeps words whole.

    Raises:
      UserError: `min_count` is too small, such as 1 for whole words: valid and test have words that the
        training text lacks, and need an `<unk>`. Or this Python has no documentation topics.
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
