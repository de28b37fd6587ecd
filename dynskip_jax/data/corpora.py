"""Find and read published texts: the Penn Treebank, and a text that comes with Python."""

import dataclasses
import hashlib
import importlib
import io
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import regex

from dynskip_jax.data.files import (
    DATA_VARIABLE,
    SPLIT_WORDS,
    SPLITS,
    PathLike,
    find_splits,
    iter_lines,
    named_file,
    named_folder,
    stream_lines,
    tar_files,
)
from dynskip_jax.data.language import LanguageCorpus, corpus_name, make_corpus, read_corpus
from dynskip_jax.data.prepared import find_records
from dynskip_jax.data.upstream import NotAvailable, Upstream
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import quoted, shown

PTB = "ptb"
PYDOC_TOPICS = "pydoc-topics"
PTB_URL = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
# SHA-256 of each split's lines with one space between words; public copies agree.
PTB_SHA256: Mapping[str, str] = {
    "train": "5145926136ee9aef6f359b267ac09cc8a920879cd71725de17c490dd111d2998",
    "dev": "fadf6277290823f881b7bf39b84e88536c87a859cd629dcfd1d2dfdef06097cf",
    "test": "c2f8c16a611595d31da5acdb7a61d50e7d5e95f6b9c05fceda5f5ddc4383e791",
}
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

    1. `data`, a folder or a file of the user's, see `read_corpus`; `dataset` is then its name;
    2. the sub-folder `dataset` of `$DYNSKIP_DATA_DIR`, or ptb if `dataset` is None;
    3. PTB in the TFDS cache, or its upstream archive; without a network, this fails at once;
    4. the embedded corpus "pydoc-topics", unless `dataset` names another or `or_embedded` is False.

    A corpus named "ptb" must be the published text, word for word.
    """
    if dataset == PYDOC_TOPICS:
        if data is not None:
            raise UserError(f"{dataset} comes with Python, and nothing is read: leave --data out")
        return embedded_corpus()
    if data is not None:
        path = Path(data)
        return _in_folder(path, dataset or corpus_name(path), dataset)
    if (path := named_folder(dataset or PTB)) is not None:
        return _in_folder(path, dataset or PTB, dataset)
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
    check_ptb(lines, source, "delete that folder and run again")
    return make_corpus(PTB, lines, source)


def _in_folder(path: Path, name: str, dataset: str | None) -> LanguageCorpus:
    """Read a folder; it is PTB if that is its name, or if its files have upstream's names."""
    if name == PTB or (dataset is None and _published_ptb_files(path)):
        return make_corpus(PTB, read_ptb(path), f"the folder {path}")
    return read_corpus(path, name=dataset)


def read_ptb(folder: PathLike) -> dict[str, list[str]]:
    """Return the lines of Mikolov's Penn Treebank from a folder."""
    paths = _published_ptb_files(Path(folder)) or find_splits(folder, ["txt"])
    lines = {
        split: [line for line in iter_lines(path) if line.strip()] for split, path in paths.items()
    }
    check_ptb(lines, folder, f"get {PTB_URL} (data/), or call neither its folder nor its files ptb")
    return lines


def _ptb_records(archive: Path) -> dict[str, Iterator[dict[str, str]]]:
    """Return the lines of the upstream archive."""
    files = {found[1]: data for found, data in tar_files(archive, _PTB_MEMBER, PTB_URL)}
    lines = {}
    for split, words in SPLIT_WORDS.items():
        text = io.BytesIO(files.get(words[0], b""))
        lines[split] = [*stream_lines(text, PTB_URL)]
    check_ptb(lines, PTB_URL, "get PTB elsewhere")
    return {split: ({"text": line} for line in own) for split, own in lines.items()}


PTB_UPSTREAM = Upstream(PTB, "2.0.0", PTB_URL, {"text": str}, _ptb_records)  # TFDS has no PTB


def check_ptb(lines: Mapping[str, Sequence[str]], where: PathLike, remedy: str) -> None:
    """Raise a `UserError` if the lines are not the published text."""
    # Spaces and line ends do not count: public copies differ in them.
    for split, expected in PTB_SHA256.items():
        text = "".join(f"{' '.join(line.split())}\n" for line in lines[split])
        found = hashlib.sha256(text.encode()).hexdigest()
        if found != expected:
            count = len(text.split()) + len(lines[split])
            sums = f"{count:,} tokens, SHA-256 {found[:12]}…, not {expected[:12]}…"
            what = f"is not the published text in the {split} split ({sums})"
            raise UserError(f"PTB in {shown(where, 75)} {what}: {remedy}")


def _published_ptb_files(folder: Path) -> dict[str, Path]:
    """Return the files with upstream's names, if there are any; its folder has others, too."""
    if not any(folder.glob("ptb.train.txt*")):
        return {}
    return {
        split: named_file(folder, f"ptb.{words[0]}.txt") for split, words in SPLIT_WORDS.items()
    }


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
