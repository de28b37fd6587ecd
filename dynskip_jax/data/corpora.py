"""Find and read published corpora: Penn Treebank, IMDB, SST, SICK, and a text that comes with
Python.
"""

import contextlib
import dataclasses
import hashlib
import importlib
import io
import re
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

import numpy as np
import regex

from dynskip_jax.data.files import (
    DATA_VARIABLE,
    SPLIT_WORDS,
    SPLITS,
    NotAvailable,
    PathLike,
    data_folder,
    find_splits,
    is_prepared,
    iter_lines,
    named_folder,
    only_file,
    stream_lines,
    tar_files,
    tfds_folder,
)
from dynskip_jax.data.labelled import (
    LabelledText,
    labelled_words,
    read_labelled_file,
)
from dynskip_jax.data.language import LanguageCorpus, Pieces, corpus_name, make_corpus, read_corpus
from dynskip_jax.data.messages import bad_file, bad_line, quoted, shown
from dynskip_jax.data.notes import COMMENT, EMPTY, DataNotes
from dynskip_jax.data.numbers import read_number
from dynskip_jax.data.sentences import Labelled, has_words, review_words, treebank_words
from dynskip_jax.data.tables import read_table
from dynskip_jax.errors import UserError, needs

PTB, PYDOC_TOPICS = "ptb", "pydoc-topics"
PTB_VERSION, IMDB_VERSION = "2.0.0", "1.0.0"
PTB_URL = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
# SHA-256 of each split's lines with one space between words; public copies agree.
PTB_SHA256: Mapping[str, str] = {
    "train": "5145926136ee9aef6f359b267ac09cc8a920879cd71725de17c490dd111d2998",
    "dev": "fadf6277290823f881b7bf39b84e88536c87a859cd629dcfd1d2dfdef06097cf",
    "test": "c2f8c16a611595d31da5acdb7a61d50e7d5e95f6b9c05fceda5f5ddc4383e791",
}
_PTB_MEMBER = re.compile(r"(?:\./)?simple-examples/data/ptb\.(train|valid|test)\.txt")

IMDB_LABELS = ("negative", "positive")
IMDB_URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
IMDB_SHA256 = "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
_IMDB_FOLDERS = {"neg": "0", "pos": "1"}
_IMDB_NAME = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_\d+\.txt", re.DOTALL)

SST_LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
_SST_FILES = ("train.txt", "dev.txt", "test.txt")
_SST_URL = "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
_SST_BRACKETS = {"-lrb-": "(", "-rrb-": ")"}
# A leaf, whose word may be a bracket as in `(2 ()`; the start of a node and its label; its end; or
# anything else. No \s: some words contain a no-break space.
_BLANK, _TEXT = r"[ \t\n\r\f\v]", r"[^ \t\n\r\f\v()]+"
_SST_PIECE = re.compile(
    rf"\(({_TEXT}){_BLANK}+({_TEXT}|[()]){_BLANK}*\)|\({_BLANK}*({_TEXT})?|\)|{_TEXT}"
)

SICK_RATINGS = 5
_SICK_FILES = {
    "train": "SICK_train.txt",
    "dev": "SICK_trial.txt",
    "test": "SICK_test_annotated.txt",
}
_SICK_URL = "https://alt.qcri.org/semeval2014/task1/"
_SICK_COLUMNS = ("sentence_A", "sentence_B", "relatedness_score")
_SICK_FLAGS = ("", "", "")  # no flag names these columns

# Words keep inner apostrophes, hyphens and dots ("doesn't", "built-in", "sys.maxsize"). `\w` of the
# package regex also matches combining marks.
PROSE_WORD = regex.compile(r"\d+(?:[.,]\d+)*|[^\W\d]\w*(?:['.-]\w+)*|[.,;:?!()]|--")
_SENTENCE_END = re.compile(r"(?<=[.?!])\)? +(?=[A-Z(])")
_FOOTNOTE_OR_BULLET = re.compile(r"^(?:[*-] |\[\d+\] |\d+\. )+|\[\d+\]")
# Quotes and stars around names are markup, not part of the sentence.
_MARKUP = str.maketrans(
    {'"': " ", "*": " ", "`": " ", "“": " ", "”": " ", "’": "'", "‘": "'", "—": " -- ", "–": "-"}
)


# --- Language modelling ---


def find_language_corpus(
    data: PathLike | None, dataset: str | None = None, *, pieces: Pieces | None = None
) -> LanguageCorpus:
    """Load a corpus, of words or of `pieces`, from the first of these places that has one.

    1. `data`, a folder or a file of the user's, see `read_corpus`; `dataset` is then its name;
    2. the sub-folder `dataset` of `$DYNSKIP_DATA_DIR`, or ptb if `dataset` is None;
    3. PTB in the TFDS cache, or its upstream archive; without a network, this fails at once;
    4. the embedded corpus "pydoc-topics", unless `dataset` names another.

    A corpus named "ptb" must be the published text, word for word.
    """
    path = named_folder(dataset or PTB) if data is None else Path(data).expanduser()
    if dataset == PYDOC_TOPICS:
        if data is not None:
            raise UserError(f"{dataset} comes with Python, and nothing is read: leave --data out")
        return embedded_corpus(pieces)
    if path is None and dataset not in (None, PTB):
        remedy = (
            f"use {PTB}, {PYDOC_TOPICS} or a sub-folder of ${DATA_VARIABLE}, or give --data DIR"
        )
        raise UserError(f"there is no dataset {quoted(dataset)}: {remedy}")
    if path is not None:
        name = dataset or (PTB if data is None else corpus_name(path))
        if name != PTB and not (dataset is None and _published_ptb_files(path)):
            return read_corpus(path, name=dataset, pieces=pieces)
        return make_corpus(PTB, read_ptb(path), f"the folder {path}", pieces=pieces)
    try:
        records, source = _kept(PTB, PTB_VERSION, PTB_URL, {"text": str}, _ptb_records)
    except NotAvailable as error:
        if dataset is not None:
            names = "ptb.train.txt, ptb.valid.txt and ptb.test.txt"
            remedy = f"put {names} into a folder and name it with --data DIR, or into ${DATA_VARIABLE}/ptb"
            raise UserError(f"the dataset {dataset!r} was not found ({error}): {remedy}") from None
        corpus = embedded_corpus(pieces)
        return dataclasses.replace(corpus, source=f"{corpus.source} (no PTB: {error})")
    lines = {split: [record["text"].decode() for record in own] for split, own in records.items()}
    check_ptb(lines, source, "delete that folder and run again")
    return make_corpus(PTB, lines, source, pieces=pieces)


def read_ptb(folder: PathLike) -> dict[str, list[str]]:
    """Return the lines of Mikolov's Penn Treebank from a folder."""
    paths = _published_ptb_files(Path(folder)) or find_splits(folder, ["txt"])
    lines = {
        split: [line for line in iter_lines(path) if line.strip()] for split, path in paths.items()
    }
    check_ptb(lines, folder, f"get {PTB_URL} (data/), or call neither its folder nor its files ptb")
    return lines


def _ptb_records() -> dict[str, Iterator[dict[str, str]]]:
    """Return the lines of the upstream archive."""
    with _downloaded(PTB_URL, None) as archive:
        files = {found[1]: data for found, data in tar_files(archive, _PTB_MEMBER, PTB_URL)}
    texts = {split: io.BytesIO(files.get(words[0], b"")) for split, words in SPLIT_WORDS.items()}
    lines = {split: [*stream_lines(text, PTB_URL)] for split, text in texts.items()}
    check_ptb(lines, PTB_URL, "get PTB elsewhere")
    return {split: ({"text": line} for line in own) for split, own in lines.items()}


def check_ptb(lines: Mapping[str, Sequence[str]], where: PathLike, remedy: str) -> None:
    """Raise a `UserError` if the lines are not the published text."""
    for split, expected in PTB_SHA256.items():
        text = "".join(f"{' '.join(line.split())}\n" for line in lines[split])
        found = hashlib.sha256(text.encode()).hexdigest()
        if found != expected:
            count = len(text.split()) + len(lines[split])
            sums = f"{count:,} tokens, SHA-256 {found[:12]}…, not {expected[:12]}…"
            what = f"is not the published text in the {split} split ({sums})"
            raise UserError(f"PTB in {shown(where, 75)} {what}: {remedy}")


def _published_ptb_files(folder: Path) -> dict[str, Path]:
    """Return the files that have upstream's names, if there are any; upstream's folder has others,
    too.
    """
    if not any(folder.glob("ptb.train.txt*")):
        return {}
    return {split: only_file(folder, f"ptb.{words[0]}.txt") for split, words in SPLIT_WORDS.items()}


def embedded_corpus(pieces: Pieces | None = None) -> LanguageCorpus:
    """Return "pydoc-topics": about 50,000 words of the running Python's language reference.

    Whole topics go to train, dev and test, with about 80, 10 and 10 % of the tokens: the largest
    ones first, each to the split that lacks the most tokens.
    """
    lines = _topic_lines(importlib.import_module("pydoc_data.topics").topics)
    sizes = {topic: sum(line.count(" ") + 2 for line in own) for topic, own in lines.items()}
    shares = {"train": 0.8, "dev": 0.1, "test": 0.1}
    missing = {split: share * sum(sizes.values()) for split, share in shares.items()}
    chosen: dict[str, list[str]] = {split: [] for split in SPLITS}
    for topic in sorted(
        sizes, key=lambda topic: (-sizes[topic], hashlib.sha256(topic.encode()).digest())
    ):
        split = max(SPLITS, key=missing.__getitem__)
        missing[split] -= sizes[topic]
        chosen[split].append(topic)
    splits = {
        split: [x for topic in sorted(own) for x in lines[topic]] for split, own in chosen.items()
    }
    source = "CPython {}.{}'s own pydoc_data.topics".format(*sys.version_info)
    return make_corpus(PYDOC_TOPICS, splits, source, pieces)


def _topic_lines(topics: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the sentences of each topic as lines of tokens, without paragraphs that occurred
    before.
    """
    seen: set[str] = set()
    lines: dict[str, list[str]] = {}
    for topic in sorted(topics):
        paragraphs = [
            " ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", topics[topic])
        ]
        fresh = [paragraph for paragraph in dict.fromkeys(paragraphs) if paragraph not in seen]
        seen.update(fresh)
        lines[topic] = [
            line for paragraph in fresh if _is_prose(paragraph) for line in _sentences(paragraph)
        ]
    return lines


def _is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is English prose, not a heading, grammar rule, table or piece of
    code.
    """
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    is_long = letters > 0.8 * len(paragraph) and len(paragraph.split()) >= 4
    is_code = any(mark in paragraph for mark in ("::=", ">>>", "(Pdb)", "(com)"))
    return is_long and not is_code and paragraph.endswith((".", ":", "?", "!", ")"))


def _sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph: lower-case words, `N` for each number, and `. , ; : ? ! (
    ) --`.
    """
    for sentence in _SENTENCE_END.split(_FOOTNOTE_OR_BULLET.sub("", paragraph)):
        tokens = PROSE_WORD.findall(sentence.lower().translate(_MARKUP))
        if tokens:
            yield " ".join("N" if token[0].isdigit() else token for token in tokens)


# --- Sentences ---


def find_imdb(
    data: PathLike | None, notes: DataNotes | None = None
) -> tuple[dict[str, list[LabelledText]], str]:
    """Return the reviews of train and test from a folder, the TFDS cache or upstream, and where
    they were.
    """
    notes = notes or DataNotes()
    folder = named_folder("imdb") if data is None else Path(data).expanduser()
    if folder is not None:
        return read_imdb(folder, notes), f"the folder {folder}"
    try:
        features = {"text": str, "label": np.int32}
        records, source = _kept("imdb", IMDB_VERSION, IMDB_URL, features, _imdb_records)
    except NotAvailable as error:
        remedy = (
            f"fetch {IMDB_URL}, and name it with --data, or unpack it into ${DATA_VARIABLE}/imdb"
        )
        raise UserError(f"IMDB was not found ({error}): {remedy}") from None
    reviews: dict[str, list[LabelledText]] = {}
    for split, own in records.items():
        reviews[split] = []
        for number, record in enumerate(own, 1):
            text = record["text"].decode()
            if has_words(text):
                reviews[split].append(LabelledText(text, str(record["label"]), source, number))
            else:
                notes.leave_out(EMPTY, source, number)
    return reviews, source


def _imdb_records() -> dict[str, list[dict[str, Any]]]:
    """Return the reviews of the upstream archive."""
    with _downloaded(IMDB_URL, IMDB_SHA256) as archive:
        reviews = read_imdb(archive)
    return {
        split: [{"text": r.text, "label": int(r.label)} for r in own]
        for split, own in reviews.items()
    }


def read_imdb(place: PathLike, notes: DataNotes | None = None) -> dict[str, list[LabelledText]]:
    """Read the Large Movie Review Dataset (Maas et al. 2011); the label is 0 for negative, 1 for
    positive.

    `place` is a folder with train.jsonl and test.jsonl (or .gz), which have `text` and `label` on
    each line, the upstream archive, or a folder with what is in it. All negative reviews are first,
    by their numbers.
    """
    place = Path(place)
    notes = notes or DataNotes()
    if any(place.glob("*.jsonl*")):
        files = {split: only_file(place, f"{split}.jsonl") for split in ("train", "test")}
        return {split: read_labelled_file(file, notes=notes) for split, file in files.items()}
    if place.is_file():
        members = tar_files(place, _IMDB_NAME, IMDB_URL)
        found = (
            (name, "\n".join(stream_lines(io.BytesIO(data), name[0]))) for name, data in members
        )
    else:
        names = (_IMDB_NAME.fullmatch(path.as_posix()) for path in place.rglob("*.txt"))
        found = ((name, "\n".join(iter_lines(name[0]))) for name in names if name)
    reviews: dict[str, list[LabelledText]] = {"train": [], "test": []}
    for name, text in sorted(found, key=lambda review: (review[0][2], int(review[0][3]))):
        if has_words(text):
            reviews[name[1]].append(LabelledText(text, _IMDB_FOLDERS[name[2]], name[0], 1))
        else:
            notes.leave_out(EMPTY, name[0], 1)
    for split, own in reviews.items():
        if len({review.label for review in own}) < len(_IMDB_FOLDERS):
            problem = f"has no reviews {split}/neg/0_9.txt, {split}/pos/0_9.txt and so on"
            raise bad_file(place, f"{problem}: get {IMDB_URL} again")
    return reviews


def imdb_splits(reviews: Mapping[str, Sequence[LabelledText]]) -> dict[str, Iterator[Labelled]]:
    """Return the words and labels of each split; a random 15 % of train become `dev`."""
    train = reviews["train"]
    order, count = (
        np.random.default_rng([0, len(train)]).permutation(len(train)),
        round(0.15 * len(train)),
    )
    held, rest = map(np.sort, np.split(order, [count]))
    if not count:
        raise UserError(f"train has {len(train)} reviews, too few to hold some out as dev")
    parts = {
        "train": [train[i] for i in rest],
        "dev": [train[i] for i in held],
        "test": reviews["test"],
    }
    return {split: labelled_words(own, review_words, ("0", "1")) for split, own in parts.items()}


def find_sst(
    data: PathLike | None, *, phrases: bool = False, notes: DataNotes | None = None
) -> tuple[dict[str, list[Labelled]], str]:
    """Return the sentences of SST, or with `phrases` every node of train's trees, and where they
    were.
    """
    folder = data_folder(data, "sst", f"the Stanford Sentiment Treebank ({_SST_URL})", _SST_FILES)
    files = {split: only_file(folder, name) for split, name in zip(SPLITS, _SST_FILES, strict=True)}
    found = {}
    for split, path in files.items():
        found[split] = read_trees(path, phrases=phrases and split == "train", notes=notes)
    return found, f"the folder {folder}"


def read_trees(
    path: PathLike, *, phrases: bool = False, notes: DataNotes | None = None
) -> list[Labelled]:
    r"""Read a file of trees such as `(3 (2 It) (4 shines))` (Socher et al. 2013), in lower case.

    `-LRB-` becomes `(`, and `\/` and `\*` become / and *. With `phrases`, a sentence is followed by
    all other nodes as they open. A line between trees that begins with `#` is a comment.
    """
    notes = notes or DataNotes()
    texts: list[Labelled] = []  # their words are added as they are read
    open_nodes: list[tuple[Labelled, int]] = []  # with the lines on which they open
    for number, line in enumerate(iter_lines(path), 1):
        if line.startswith("#") and not open_nodes:
            notes.leave_out(COMMENT, path, number)
            continue
        for found in _SST_PIECE.finditer(line):
            opens, closes = found[0][0] == "(", found[0][-1] == ")"
            if opens:
                label = found[1] or found[3] or ""
                if label not in ("0", "1", "2", "3", "4"):
                    problem = f"{quoted(label)} is no label: 0, 1, 2, 3 or 4 follows a bracket"
                    raise bad_line(path, number, problem)
                node = Labelled([], int(label))
                if phrases or not open_nodes:
                    texts.append(node)
                open_nodes.append((node, number))
            elif not closes or not open_nodes:
                problem = f"unexpected {quoted(found[0])}: a bracket holds a label and one word, or brackets"
                raise bad_line(path, number, problem)
            leaf = (found[2] or "").lower().replace("\\/", "/").replace("\\*", "*")
            for word in leaf.split():  # a leaf may contain a no-break space
                for node, _ in open_nodes:
                    node.words.append(_SST_BRACKETS.get(word, word))
            if closes and not open_nodes.pop()[0].words:
                raise bad_line(path, number, "a node has no words")
    if open_nodes:
        raise bad_line(path, open_nodes[-1][1], "the bracket that opens here is not closed")
    if not texts:
        raise bad_file(path, "is empty: fetch it again, each split needs some trees")
    return texts


def find_sick(
    data: PathLike | None, notes: DataNotes | None = None
) -> tuple[dict[str, list[Labelled]], str]:
    """Return the pairs of SICK in the split of SemEval-2014 from a folder, and where they were."""
    folder = data_folder(data, "sick", f"SICK ({_SICK_URL})", [*_SICK_FILES.values()])
    files = {split: only_file(folder, name) for split, name in _SICK_FILES.items()}
    return {split: read_pairs(path, notes) for split, path in files.items()}, f"the folder {folder}"


def read_pairs(path: PathLike, notes: DataNotes | None = None) -> list[Labelled]:
    """Read rated pairs of sentences (Marelli et al. 2014): columns separated by tabs, with a
    header.
    """
    notes = notes or DataNotes()
    pairs = []
    for number, fields in read_table(path, _SICK_COLUMNS, _SICK_FLAGS, header=True, notes=notes):
        first, second = map(treebank_words, fields[:2])
        if not first or not second:
            notes.leave_out(EMPTY, path, number)
            continue
        rating = read_number(fields[2].strip())
        if rating is None:
            raise bad_line(path, number, f"the rating {quoted(fields[2])} is no number")
        if not 1 <= rating <= SICK_RATINGS:
            raise bad_line(
                path, number, f"the rating {rating:g} does not lie between 1 and {SICK_RATINGS}"
            )
        pairs.append(Labelled(first, rating, second))
    if not pairs:
        raise bad_file(path, "holds no pair below its first line: fetch it again")
    return pairs


# --- Downloads ---


def is_reachable(url: str, seconds: float = 2.5) -> bool:
    """Return whether `url` can be opened within `seconds`, including the name lookup."""
    answers: list[bool] = []

    def ask() -> None:
        with (
            contextlib.suppress(OSError, HTTPException),
            urllib.request.urlopen(url, timeout=seconds),
        ):
            answers.append(True)

    # A thread, because a socket's timeout does not limit the name lookup.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers)


@contextlib.contextmanager
def _downloaded(url: str, sha256: str | None) -> Iterator[Path]:
    """Yield a downloaded file, whose hash is checked if it is known; the file is deleted
    afterwards.
    """
    with needs("experiments"):
        import pooch
    with tempfile.TemporaryDirectory() as folder:
        yield Path(pooch.retrieve(url, sha256 and f"sha256:{sha256}", "archive", folder))


def _kept(
    name: str, version: str, url: str, features: Mapping[str, Any], records: Callable[[], Any]
) -> tuple[dict[str, list[Mapping[str, Any]]], str]:
    """Return the records of each split from the TFDS cache, filled from `url` if need be, and their
    place.
    """
    folder = tfds_folder(name, version)
    source = f"the TFDS cache {folder}"
    if not is_prepared(folder):
        if not is_reachable(url):  # before TFDS is imported, which takes seconds
            raise NotAvailable("its upstream address does not answer")
        source = f"{url}, now kept in {folder}"
    from dynskip_jax.data import builders

    return builders.kept_records(tfds_folder(), name, version, features, records), source
