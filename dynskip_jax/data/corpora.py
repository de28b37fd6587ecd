"""Find and read published texts: the Penn Treebank, and a text that comes with Python."""

import dataclasses
import hashlib
import importlib
import io
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import regex

from dynskip_jax.data.files import (
    DATA_VARIABLE,
    SPLIT_WORDS,
    SPLITS,
    PathLike,
    named_file,
    named_folder,
    stream_lines,
    tar_files,
)
from dynskip_jax.data.language import LanguageCorpus, make_corpus, read_corpus, text_lines
from dynskip_jax.data.upstream import NotAvailable, Upstream, find_records
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import quoted

PTB = "ptb"
PYDOC_TOPICS = "pydoc-topics"
PTB_URL = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
_PTB_MEMBER = re.compile(r"(?:\./)?simple-examples/data/ptb\.(train|valid|test)\.txt")

# Words keep inner apostrophes, hyphens and dots ("doesn't", "built-in", "sys.maxsize"). `\w` of the
# package regex also matches combining marks.
PROSE_WORD = regex.compile(r"\d+(?:[.,]\d+)*|[^\W\d]\w*(?:['.-]\w+)*|[.,;:?!()]|--")
_SENTENCE_END = re.compile(r"(?<=[.?!])\)? +(?=[A-Z(])")
_FOOTNOTE_OR_BULLET = re.compile(r"^(?:[*-] |\[\d+\] |\d+\. )+|\[\d+\]")
# Quotes and stars around names are markup, not part of the sentence.
_MARKUP = str.maketrans(
    {'"': " ", "*": " ", "`": " ", "“": " ", "”": " ", "’": "'", "‘": "'", "—": " -- ", "–": "-"}
)


def find_language_corpus(
    data: PathLike | None, dataset: str | None = None, *, or_embedded: bool = True
) -> LanguageCorpus:
    """Load a corpus from the first of these places that has one.

    1. `data`, a folder of the user's, see `read_corpus`; `dataset` is then its name;
    2. the sub-folder `dataset` of `$DYNSKIP_DATA_DIR`, or ptb if `dataset` is None;
    3. PTB in the TFDS cache, or its upstream archive; without a network, this fails at once;
    4. the embedded corpus "pydoc-topics", unless `dataset` names another or `or_embedded` is False.
    """
    if dataset == PYDOC_TOPICS:
        if data is not None:
            raise UserError(f"{dataset} comes with Python, and nothing is read: leave --data out")
        return embedded_corpus()
    if data is not None:
        return _in_folder(Path(data), dataset)
    if (path := named_folder(dataset or PTB)) is not None:
        return _in_folder(path, dataset or PTB)
    if dataset not in (None, PTB):
        others = f"use {PTB}, {PYDOC_TOPICS} or a sub-folder of ${DATA_VARIABLE}"
        raise UserError(f"there is no dataset {quoted(dataset)}: {others}, or give --data DIR")

    try:
        records, source = find_records(PTB_UPSTREAM, SPLITS)
    except NotAvailable as error:
        if dataset is not None or not or_embedded:
            names = "ptb.train.txt, ptb.valid.txt and ptb.test.txt"
            remedy = f"put {names} of {PTB_URL} into ${DATA_VARIABLE}/ptb, or give --data DIR"
            remedy = f"{remedy}, or train on another text: --dataset {PYDOC_TOPICS}"
            raise UserError(f"the dataset {PTB!r} was not found ({error}): {remedy}") from None
        corpus = embedded_corpus()
        return dataclasses.replace(corpus, source=f"{corpus.source} (no PTB: {error})")
    lines = {split: [record["text"].decode() for record in own] for split, own in records.items()}
    return make_corpus(PTB, lines, source)


def _in_folder(path: Path, dataset: str | None) -> LanguageCorpus:
    """Read a folder; files with upstream's names are those of PTB, whose folder has others, too."""
    if any(path.glob("ptb.train.txt*")):
        files = {
            split: named_file(path, f"ptb.{words[0]}.txt") for split, words in SPLIT_WORDS.items()
        }
        lines = {split: text_lines(file) for split, file in files.items()}
        return make_corpus(dataset or PTB, lines, f"the folder {path}")
    return read_corpus(path, name=dataset)


def _ptb_records(archive: Path) -> dict[str, Iterator[dict[str, str]]]:
    """Return the lines of the upstream archive."""
    files = {found[1]: data for found, data in tar_files(archive, _PTB_MEMBER, PTB_URL)}
    lines = {}
    for split, words in SPLIT_WORDS.items():
        text = io.BytesIO(files[words[0]])
        lines[split] = ({"text": line} for line in [*stream_lines(text, PTB_URL)])
    return lines


PTB_UPSTREAM = Upstream(PTB, "2.0.0", PTB_URL, {"text": str}, _ptb_records)  # TFDS has no PTB


def embedded_corpus() -> LanguageCorpus:
    """Return "pydoc-topics": about 50,000 words of the running Python's language reference.

    Whole topics go to train, dev and test, with about 80, 10 and 10 % of the tokens: the largest
    ones first, each to the split that lacks the most tokens.
    """
    lines = _topic_lines(importlib.import_module("pydoc_data.topics").topics)
    sizes = {topic: sum(line.count(" ") + 2 for line in own) for topic, own in lines.items()}
    total = sum(sizes.values())
    missing = {"train": 0.8 * total, "dev": 0.1 * total, "test": 0.1 * total}
    chosen: dict[str, list[str]] = {split: [] for split in SPLITS}
    # Topics of one size are in an order that is not their alphabet's.
    hashes = {topic: hashlib.sha256(topic.encode()).digest() for topic in sizes}
    for topic in sorted(sizes, key=lambda topic: (-sizes[topic], hashes[topic])):
        split = max(SPLITS, key=missing.__getitem__)
        missing[split] -= sizes[topic]
        chosen[split].append(topic)
    splits = {
        split: [line for topic in sorted(own) for line in lines[topic]]
        for split, own in chosen.items()
    }
    source = "CPython {}.{}'s own pydoc_data.topics".format(*sys.version_info)
    return make_corpus(PYDOC_TOPICS, splits, source)


def _topic_lines(topics: Mapping[str, str]) -> dict[str, list[str]]:
    """Return each topic's sentences as lines of tokens, without repeated paragraphs."""
    seen: set[str] = set()
    lines: dict[str, list[str]] = {}
    for topic in sorted(topics):
        lines[topic] = []
        for paragraph in re.split(r"\n\s*\n", topics[topic]):
            paragraph = " ".join(paragraph.split())
            if paragraph not in seen and _is_prose(paragraph):
                lines[topic] += _sentences(paragraph)
            # Topics share paragraphs, which must not be in two splits.
            seen.add(paragraph)
    return lines


def _is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is prose: no heading, grammar rule, table or piece of code."""
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    is_long = letters > 0.8 * len(paragraph) and len(paragraph.split()) >= 4
    is_code = any(mark in paragraph for mark in ("::=", ">>>", "(Pdb)", "(com)"))
    return is_long and not is_code and paragraph.endswith((".", ":", "?", "!", ")"))


def _sentences(paragraph: str) -> Iterator[str]:
    """Yield a paragraph's sentences: words in lower case, `N` for a number, and punctuation."""
    for sentence in _SENTENCE_END.split(_FOOTNOTE_OR_BULLET.sub("", paragraph)):
        tokens = PROSE_WORD.findall(sentence.lower().translate(_MARKUP))
        if tokens:
            yield " ".join("N" if token[0].isdigit() else token for token in tokens)
