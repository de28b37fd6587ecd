"""Find and read published corpora: Penn Treebank, IMDB, SST, SICK, and a text that comes with Python."""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import io
import itertools
import re
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import HTTPException
from pathlib import Path

import regex

from dynskip_jax.data.files import (
    DATA_VARIABLE,
    SPLIT_WORDS,
    SPLITS,
    PathLike,
    data_folder,
    find_splits,
    is_prepared,
    iter_lines,
    named_folder,
    read_text,
    stream_lines,
    tar_files,
    tfds_folder,
)
from dynskip_jax.data.labelled import LabelledText, labelled_words, read_labelled_file
from dynskip_jax.data.language import TEXT_ENDINGS, LanguageCorpus, Pieces, make_corpus, read_corpus
from dynskip_jax.data.messages import bad_file, bad_line, quoted, shown
from dynskip_jax.data.sentences import Labelled, Pair, held_out, review_words, treebank_words
from dynskip_jax.data.tagged_files import tree_pieces, unescaped
from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs

PTB, PYDOC_TOPICS = "ptb", "pydoc-topics"
PTB_VERSION, IMDB_VERSION = "2.0.0", "1.0.0"
PTB_URL = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
# Number of tokens, with one <eos> per line (Mikolov et al. 2010).
PTB_COUNTS: Mapping[str, int] = {"train": 929_589, "dev": 73_760, "test": 82_430}
# SHA-256 of each split's lines with one space between words; public copies agree.
PTB_SHA256: Mapping[str, str] = {
    "train": "5145926136ee9aef6f359b267ac09cc8a920879cd71725de17c490dd111d2998",
    "dev": "fadf6277290823f881b7bf39b84e88536c87a859cd629dcfd1d2dfdef06097cf",
    "test": "c2f8c16a611595d31da5acdb7a61d50e7d5e95f6b9c05fceda5f5ddc4383e791",
}
_PTB_PREFIX = "ptb."
_PTB_MEMBER = re.compile(r"(?:\./)?simple-examples/data/ptb\.(train|valid|test)\.txt")

IMDB_LABELS = ("negative", "positive")
IMDB_SPLITS = ("train", "test")
IMDB_URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
IMDB_SHA256 = "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe"
_IMDB_DEV_SHARE = 0.15
_IMDB_FOLDERS = {"neg": "0", "pos": "1"}
_IMDB_NAME = re.compile(r"(train|test)/(neg|pos)/(\d+)_\d+\.txt")

SST_LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
_SST_FILES = ("train.txt", "dev.txt", "test.txt")
_SST_URL = "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
_SST_BRACKETS = {"-lrb-": "(", "-rrb-": ")"}

SICK_RATINGS = 5
_SICK_FILES = {"train": "SICK_train.txt", "dev": "SICK_trial.txt", "test": "SICK_test_annotated.txt"}
_SICK_URL = "https://alt.qcri.org/semeval2014/task1/"
_SICK_COLUMNS = ("sentence_A", "sentence_B", "relatedness_score")

# Words keep inner apostrophes, hyphens and dots ("doesn't", "built-in", "sys.maxsize"). `\w` of the package
# regex also matches combining marks.
PROSE_WORD = regex.compile(r"\d+(?:[.,]\d+)*|[^\W\d]\w*(?:['.-]\w+)*|[.,;:?!()]|--")
_SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}
_SENTENCE_END = re.compile(r"(?<=[.?!])\)? +(?=[A-Z(])")
_FOOTNOTE_OR_BULLET = re.compile(r"^(?:[*-] |\[\d+\] |\d+\. )+|\[\d+\]")
# Quotes and stars around names are markup, not part of the sentence.
_MARKUP = str.maketrans(
    {'"': " ", "*": " ", "`": " ", "“": " ", "”": " ", "’": "'", "‘": "'", "—": " -- ", "–": "-"}
)


class NotAvailable(UserError):
    """A corpus is neither in the TFDS cache nor can it be downloaded."""


# --- Language modelling ---


def find_language_corpus(
    data: PathLike | None,
    dataset: str | None = None,
    *,
    min_count: int | None = None,
    pieces: Pieces | None = None,
) -> LanguageCorpus:
    """Load a corpus from the first of these places that has one.

    1. `data`, the user's folder or file, if it is given;
    2. the sub-folder `dataset` of `$DYNSKIP_DATA_DIR`, or ptb if `dataset` is None;
    3. PTB in the TFDS cache, or its upstream archive; without a network, this fails at once;
    4. the embedded corpus, unless `dataset` names another.

    A corpus named "ptb" must be the published text, word for word.

    Args:
        data: Folder with the files of train, dev and test, or one text file, which is cut into these splits.
        dataset: "ptb", "pydoc-topics" (the embedded corpus) or a sub-folder of `$DYNSKIP_DATA_DIR`. With
            `data`, any other name becomes the name of the corpus.
        min_count: See `make_corpus`; PTB has its own `<unk>`, and allows only None or 1.
        pieces: Units into which words are split; None keeps words whole.
    """
    corpus = _find(data, dataset, min_count, pieces)
    if corpus.name == PTB and min_count not in (None, 1):
        raise UserError(
            "PTB's vocabulary is the published one, with its own <unk>: leave out min_count, not "
            f"{shown(min_count)}"
        )
    return corpus


def _find(
    data: PathLike | None, dataset: str | None, min_count: int | None, pieces: Pieces | None
) -> LanguageCorpus:
    kept = named_folder(dataset or PTB)
    if data is None and dataset not in (None, PTB, PYDOC_TOPICS) and kept is None:
        raise UserError(
            f"there is no dataset {quoted(dataset)}: use one of {PTB}, {PYDOC_TOPICS}, a sub-folder of "
            f"${DATA_VARIABLE}, or give the folder of the corpus with --data DIR"
        )
    if dataset == PYDOC_TOPICS:
        if data is not None:
            raise UserError(f"{dataset} comes with Python, and nothing is read: leave --data out")
        return embedded_corpus(min_count, pieces)
    path = kept if data is None else Path(data).expanduser()
    if path is not None and not path.exists():
        raise bad_file(
            path, "is not there: name a folder with train.txt, valid.txt and test.txt, or a text file"
        )
    if path is not None:
        name = dataset or (PTB if data is None else path.resolve().name)
        if path.is_dir() and (name == PTB or (dataset is None and _has_ptb_files(path))):
            return read_ptb(path, pieces=pieces)
        corpus = read_corpus(path, name=dataset, min_count=min_count, pieces=pieces)
        if corpus.name == PTB:
            problem = "is one file, and PTB is three: name their folder, or call the file otherwise"
            raise bad_file(path, problem)
        return corpus
    try:
        records, source = _from_tfds("Ptb", PTB, PTB_VERSION, PTB_URL)
    except NotAvailable as error:
        if dataset is not None:
            raise UserError(
                f"the dataset {dataset!r} was not found ({error}): put ptb.train.txt, ptb.valid.txt and "
                f"ptb.test.txt into a folder and name it with --data DIR, or into ${DATA_VARIABLE}/ptb"
            ) from None
        corpus = embedded_corpus(min_count, pieces)
        return dataclasses.replace(corpus, source=f"{corpus.source} (no PTB: {error})")
    lines = {split: [record["text"].decode() for record in of_split] for split, of_split in records.items()}
    if (how := ptb_difference(lines)) is not None:
        folder = tfds_folder(PTB, PTB_VERSION)
        raise UserError(f"PTB in the TFDS cache {folder} {how}: delete that folder and run again")
    return make_corpus(PTB, lines, source, pieces=pieces)


def read_ptb(folder: PathLike, *, pieces: Pieces | None = None) -> LanguageCorpus:
    """Read Mikolov's Penn Treebank from a folder, and check that it is the published text."""
    return make_corpus(PTB, read_ptb_lines(folder), f"the folder {folder}", pieces=pieces)


def read_ptb_lines(folder: PathLike | None = None) -> dict[str, list[str]]:
    """Return the lines of each split of PTB from a folder or, if that is None, from its upstream archive."""
    if folder is not None:
        prefix = _PTB_PREFIX if _has_ptb_files(Path(folder)) else None
        paths = find_splits(folder, TEXT_ENDINGS, prefix=prefix)
        lines = {split: [line for line in iter_lines(path) if line.strip()] for split, path in paths.items()}
        return _checked(lines, folder)
    with _downloaded(PTB_URL, None) as archive:
        files = {found[1]: data for found, data in tar_files(archive, _PTB_MEMBER, PTB_URL)}
    words = {split: SPLIT_WORDS[split][0] for split in SPLITS}
    for word in words.values():
        if word not in files:
            raise UserError(f"the archive from {PTB_URL} has no ptb.{word}.txt: get PTB elsewhere")
    lines = {split: [*stream_lines(io.BytesIO(files[word]), PTB_URL)] for split, word in words.items()}
    return _checked(lines, PTB_URL)


def ptb_difference(lines: Mapping[str, Sequence[str]]) -> str | None:
    """Return how the lines differ from the published corpus, in numbers of tokens or in words; else None."""
    for split, expected in PTB_COUNTS.items():
        found = sum(len(line.split()) + 1 for line in lines[split])
        if found != expected:
            looks = "looks truncated" if found < expected else "is not the published one"
            return f"{looks}: {found:,} tokens in the {split} split, expected {expected:,}"
    for split, expected in PTB_SHA256.items():
        digest = hashlib.sha256()
        for line in lines[split]:
            digest.update(f"{' '.join(line.split())}\n".encode())
        if digest.hexdigest() != expected:
            sums = f"SHA-256 {digest.hexdigest()[:12]}…, not {expected[:12]}…"
            return f"has other words or lines in the {split} split ({sums})"
    return None


def _checked(lines: dict[str, list[str]], where: PathLike) -> dict[str, list[str]]:
    if (how := ptb_difference(lines)) is not None:
        remedy = f"get {PTB_URL} (data/), or call neither its folder nor its files ptb"
        raise UserError(f"PTB in {shown(where, 75)} {how}: {remedy}")
    return lines


def _has_ptb_files(folder: Path) -> bool:
    names = (f"{_PTB_PREFIX}{SPLIT_WORDS[split][0]}.txt" for split in SPLITS)
    return any((folder / f"{name}{gz}").is_file() for name in names for gz in ("", ".gz"))


def embedded_corpus(min_count: int | None = None, pieces: Pieces | None = None) -> LanguageCorpus:
    """Return "pydoc-topics": about 50,000 words of the running Python's language reference."""
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
    return make_corpus(PYDOC_TOPICS, splits, f"CPython {version}'s own pydoc_data.topics", min_count, pieces)


def topic_lines(topics: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the sentences of each topic as lines of tokens, without paragraphs that occurred before."""
    seen: set[str] = set()
    lines: dict[str, list[str]] = {}
    for topic in sorted(topics):
        paragraphs = [" ".join(paragraph.split()) for paragraph in re.split(r"\n\s*\n", topics[topic])]
        fresh = [paragraph for paragraph in dict.fromkeys(paragraphs) if paragraph not in seen]
        seen.update(fresh)
        lines[topic] = [line for paragraph in fresh if _is_prose(paragraph) for line in _sentences(paragraph)]
    return lines


def split_topics(sizes: Mapping[str, int]) -> dict[str, list[str]]:
    """Assign whole topics to train, dev and test, with about 80, 10 and 10 % of the tokens.

    The largest topics come first (ties by the names' hashes), each to the split that lacks the most tokens.
    """
    total = sum(sizes.values())
    missing = {split: share * total for split, share in _SHARES.items()}
    chosen: dict[str, list[str]] = {split: [] for split in SPLITS}
    for topic in sorted(sizes, key=lambda topic: (-sizes[topic], hashlib.sha256(topic.encode()).digest())):
        split = max(SPLITS, key=missing.__getitem__)
        missing[split] -= sizes[topic]
        chosen[split].append(topic)
    return {split: sorted(names) for split, names in chosen.items()}


def _is_prose(paragraph: str) -> bool:
    """Return whether a paragraph is English prose, not a heading, grammar rule, table or piece of code."""
    letters = sum(character.isalpha() or character == " " for character in paragraph)
    return (
        paragraph.endswith((".", ":", "?", "!", ")"))
        and letters > 0.8 * len(paragraph)
        and len(paragraph.split()) >= 4
        and not any(mark in paragraph for mark in ("::=", ">>>", "(Pdb)", "(com)"))
    )


def _sentences(paragraph: str) -> Iterator[str]:
    """Yield the sentences of a paragraph: lower-case words, `N` for each number, and `. , ; : ? ! ( ) --`."""
    for sentence in _SENTENCE_END.split(_FOOTNOTE_OR_BULLET.sub("", paragraph)):
        tokens = PROSE_WORD.findall(sentence.lower().translate(_MARKUP))
        if tokens:
            yield " ".join("N" if token[0].isdigit() else token for token in tokens)


# --- Sentences ---


def find_imdb(data: PathLike | None) -> tuple[dict[str, list[LabelledText]], str]:
    """Return the reviews of train and test from a folder, the TFDS cache or upstream, and where they were."""
    folder = named_folder("imdb") if data is None else Path(data).expanduser()
    if folder is not None:
        return read_imdb(folder), f"the folder {folder}"
    try:
        records, source = _from_tfds("Imdb", "imdb", IMDB_VERSION, IMDB_URL)
    except NotAvailable as error:
        raise UserError(
            f"IMDB was not found ({error}): unpack {IMDB_URL} and name the folder with --data DIR, or put it "
            f"into ${DATA_VARIABLE}/imdb"
        ) from None
    return {
        split: [
            LabelledText(record["text"].decode(), str(record["label"]), source, number)
            for number, record in enumerate(of_split, 1)
        ]
        for split, of_split in records.items()
    }, source


def read_imdb(folder: PathLike | None = None) -> dict[str, list[LabelledText]]:
    """Read the Large Movie Review Dataset (Maas et al. 2011); the label is 0 for negative, 1 for positive.

    `folder` has train.jsonl and test.jsonl (or .gz), with an object of `text` and `label` on each line, or is
    the upstream archive's folder aclImdb or its parent. None reads the upstream archive.
    """
    if folder is None:
        with _downloaded(IMDB_URL, IMDB_SHA256) as archive:
            return unpacked_imdb(archive)
    folder = Path(folder)
    files = [path for split in IMDB_SPLITS for path in sorted(folder.glob(f"{split}.jsonl*"))]
    if files:
        names = [path.name.removesuffix(".gz") for path in files]
        if names != ["train.jsonl", "test.jsonl"]:
            listed = ", ".join(shown(path.name) for path in files[:3])
            raise bad_file(folder, f"needs one train.jsonl and one test.jsonl (or .gz), and has {listed}")
        reviews = dict(zip(IMDB_SPLITS, map(read_labelled_file, files), strict=True))
        for review in (*reviews["train"], *reviews["test"]):
            if review.label not in ("0", "1"):
                problem = f"the label {quoted(review.label)} does not exist: 0 is negative, 1 positive"
                raise bad_line(review.file, review.line, problem)
        return reviews
    top = folder / "aclImdb" if (folder / "aclImdb").is_dir() else folder
    paths = ((path, _IMDB_NAME.fullmatch(path.relative_to(top).as_posix())) for path in top.glob("*/*/*.txt"))
    return _in_order(((name, read_text(path), str(path)) for path, name in paths if name), folder)


def unpacked_imdb(archive: PathLike) -> dict[str, list[LabelledText]]:
    """Read the upstream archive of IMDB, in the order of `read_imdb`."""
    members = tar_files(archive, re.compile(rf"(?:\./)?aclImdb/{_IMDB_NAME.pattern}"), IMDB_URL)
    texts = ((name, "\n".join(stream_lines(io.BytesIO(data), name[0])), name[0]) for name, data in members)
    return _in_order(texts, archive)


def _in_order(
    found: Iterable[tuple[re.Match[str], str, str]], where: PathLike
) -> dict[str, list[LabelledText]]:
    """Return reviews by split: all negative ones by their number, then the positive ones."""
    parts: dict[str, list[tuple[str, int, str, str]]] = {split: [] for split in IMDB_SPLITS}
    for name, text, file in found:
        parts[name[1]].append((_IMDB_FOLDERS[name[2]], int(name[3]), text, file))
    for split, kind in itertools.product(IMDB_SPLITS, _IMDB_FOLDERS):
        if not any(label == _IMDB_FOLDERS[kind] for label, *_ in parts[split]):
            raise bad_file(where, f"has no reviews {split}/{kind}/0_9.txt and so on: unpack {IMDB_URL} again")
    return {
        split: [LabelledText(text, label, file, 1) for label, _, text, file in sorted(own)]
        for split, own in parts.items()
    }


def imdb_splits(
    reviews: Mapping[str, Sequence[LabelledText]], dev_seed: int = 0
) -> dict[str, Iterator[Labelled]]:
    """Return iterators over the words and labels of each split; a random 15 % of train become `dev`."""
    train = reviews["train"]
    rest, held = held_out(len(train), _IMDB_DEV_SHARE, dev_seed)
    if not len(held):
        raise UserError(f"train has {len(train)} reviews, too few to hold some out as dev")
    parts = {"train": [train[i] for i in rest], "dev": [train[i] for i in held], "test": reviews["test"]}
    return {split: labelled_words(own, review_words, {"0": 0, "1": 1}) for split, own in parts.items()}


def find_sst(data: PathLike | None) -> tuple[dict[str, list[list[Labelled]]], str]:
    """Return the trees of the Stanford Sentiment Treebank from a folder, and where they were."""
    folder = data_folder(data, "sst", f"the Stanford Sentiment Treebank ({_SST_URL})", _SST_FILES)
    found = {}
    for split, name in zip(SPLITS, _SST_FILES, strict=True):
        packed = folder / f"{name}.gz"
        found[split] = read_trees(packed if packed.is_file() else folder / name)
    return found, f"the folder {folder}"


def read_trees(path: PathLike) -> list[list[Labelled]]:
    r"""Read a file with one tree on each line, such as `(3 (2 It) (4 shines))` (Socher et al. 2013).

    Words are converted to lower case. Brackets become `(` and `)`, whether the file escapes them or not, and
    `\/` and `\*` become / and *. A tree is the list of its nodes as they open; the first one is the sentence.
    """
    trees = [_tree(number, line, path) for number, line in enumerate(iter_lines(path), 1) if line.strip()]
    if not trees:
        raise bad_file(path, "is empty: fetch it again, each split needs some trees")
    return trees


def _tree(number: int, line: str, path: PathLike) -> list[Labelled]:
    """Return the nodes of the tree on a line."""
    nodes: list[tuple[int, int]] = []  # label and index of the first word
    spans: dict[int, int] = {}  # from a node to the index after its last word
    open_nodes: list[int] = []
    words: list[str] = []
    for piece in tree_pieces([(number, line)], path):
        if piece.kind == "close":
            spans[open_nodes.pop()] = len(words)
            continue
        if nodes and not open_nodes:
            raise bad_line(path, number, "a second tree begins: each line has one")
        if piece.label not in ("0", "1", "2", "3", "4"):
            problem = f"{quoted(piece.label)} is no label: 0, 1, 2, 3 or 4 follows a bracket"
            raise bad_line(path, number, problem)
        nodes.append((int(piece.label), len(words)))
        if piece.kind == "open":
            open_nodes.append(len(nodes) - 1)
            continue
        leaf = unescaped(piece.word.lower()).split()  # a leaf may contain a no-break space
        if not leaf:
            raise bad_line(path, number, "a node has no words")
        words += [_SST_BRACKETS.get(word, word) for word in leaf]
        spans[len(nodes) - 1] = len(words)
    return [Labelled(words[start : spans[i]], label) for i, (label, start) in enumerate(nodes)]


def sst_splits(
    trees: Mapping[str, Sequence[Sequence[Labelled]]], *, phrases: bool
) -> dict[str, list[Labelled]]:
    """Return the sentences of each split; with `phrases`, every node of every tree of train."""
    return {
        split: [node for tree in own for node in (tree if phrases and split == "train" else tree[:1])]
        for split, own in trees.items()
    }


def find_sick(data: PathLike | None) -> tuple[dict[str, list[Pair]], str]:
    """Return the pairs of SICK in the split of SemEval-2014 from a folder, and where they were."""
    folder = data_folder(data, "sick", f"SICK ({_SICK_URL})", [*_SICK_FILES.values()])
    return {split: read_pairs(folder / name) for split, name in _SICK_FILES.items()}, f"the folder {folder}"


def read_pairs(path: PathLike) -> list[Pair]:
    """Read rated pairs of sentences (Marelli et al. 2014): columns separated by tabs, with a header."""
    pairs, header = [], None
    for number, line in enumerate(iter_lines(path), 1):
        bad = functools.partial(bad_line, path, number)
        fields = [field.strip() for field in line.split("\t")]
        if fields == [""]:
            continue
        if header is None:
            header = fields
            missing = [name for name in _SICK_COLUMNS if name not in fields]
            if missing:
                raise bad(f"the first line names no column {missing[0]}")
            continue
        if len(fields) != len(header):
            raise bad(f"{len(fields)} columns separated by tabs, but the first line names {len(header)}")
        first, second, rating = (fields[header.index(name)] for name in _SICK_COLUMNS)
        try:
            value = float(rating)
        except ValueError:
            raise bad(f"the rating {quoted(rating)} is no number") from None
        if not 1 <= value <= SICK_RATINGS:
            raise bad(f"the rating {value:g} does not lie between 1 and {SICK_RATINGS}")
        pair = Pair(treebank_words(first), treebank_words(second), value)
        if not pair.first or not pair.second:
            raise bad("a sentence has no words")
        pairs.append(pair)
    if not pairs:
        raise bad_file(path, "holds no pair below its first line: fetch it again")
    return pairs


# --- Downloads ---


def is_reachable(url: str, seconds: float = 2.5) -> bool:
    """Return whether `url` can be opened within `seconds`, including the name lookup."""
    answers: list[bool] = []

    def ask() -> None:
        with contextlib.suppress(OSError, HTTPException), urllib.request.urlopen(url, timeout=seconds):
            answers.append(True)

    # A thread, because a socket's timeout does not limit the name lookup.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers)


@contextlib.contextmanager
def _downloaded(url: str, sha256: str | None) -> Iterator[Path]:
    """Yield a downloaded file, whose hash is checked if it is known; the file is deleted afterwards."""
    if not is_reachable(url):
        raise NotAvailable("its upstream address does not answer")
    with needs("experiments"):
        import pooch
    with tempfile.TemporaryDirectory() as folder:
        yield Path(pooch.retrieve(url, sha256 and f"sha256:{sha256}", "archive", folder))


def _from_tfds(
    builder: str, name: str, version: str, url: str
) -> tuple[dict[str, list[Mapping[str, bytes]]], str]:
    """Return the records of each split from the TFDS cache, filled if need be, and their place."""
    folder, found = tfds_folder(name, version), True
    if not is_prepared(folder):
        found = False
        if not is_reachable(url):  # known before TFDS is imported, which takes seconds
            raise NotAvailable("its upstream address does not answer")
    from dynskip_jax.data import builders

    kind = getattr(builders, builder)
    if not found:
        try:
            builders.prepare(kind(data_dir=tfds_folder()))
        except Exception as error:  # no error of TFDS, pooch or the file system may stop a first run
            reason = " ".join(str(error).split())[:200]
            raise NotAvailable(f"its download failed: {reason}") from error
    records = builders.read_splits(lambda: kind(data_dir=tfds_folder()), folder)
    return records, f"the TFDS cache {folder}" if found else f"{url}, now kept in {folder}"
