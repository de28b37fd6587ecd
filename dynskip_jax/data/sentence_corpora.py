"""Find and read published sentences: IMDB's reviews, SST's trees, and SICK's pairs."""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynskip_jax.data.files import (
    DATA_VARIABLE,
    PathLike,
    corpus_files,
    iter_lines,
    named_file,
    named_folder,
    stream_lines,
    tar_files,
)
from dynskip_jax.data.labelled import LabelledText, labelled_words, read_labelled_file, read_rows
from dynskip_jax.data.sentences import Labelled, has_words, review_words, treebank_words
from dynskip_jax.data.upstream import NotAvailable, Upstream, find_records
from dynskip_jax.errors import UserError
from dynskip_jax.terminal.messages import bad_file, bad_line, quoted

IMDB_LABELS = ("negative", "positive")
IMDB_URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
_IMDB_FOLDERS = {"neg": "0", "pos": "1"}
_IMDB_NAME = re.compile(r"(?:.*/)?(train|test)/(neg|pos)/(\d+)_\d+\.txt", re.DOTALL)
_IMDB_UNLABELLED = re.compile(r"(?:.*/)?train/unsup/(\d+)_0\.txt", re.DOTALL)

SST_LABELS = ("very negative", "negative", "neutral", "positive", "very positive")
_SST_FILES = {split: f"{split}.txt" for split in ("train", "dev", "test")}
_SST_URL = "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip"
_SST_BRACKETS = {"-lrb-": "(", "-rrb-": ")"}
# The start of a node and its label, its end, or words. No \s: some contain a no-break space.
_SST_PIECE = re.compile(r"\(([^ \t()]*)[ \t]|\)|[^ \t()]+")

SICK_RATINGS = 5
_SICK_FILES = {
    "train": "SICK_train.txt",
    "dev": "SICK_trial.txt",
    "test": "SICK_test_annotated.txt",
}
_SICK_URL = "https://alt.qcri.org/semeval2014/task1/"
_SICK_COLUMNS = ("sentence_A", "sentence_B", "relatedness_score")


def find_imdb(data: PathLike | None) -> tuple[dict[str, list[LabelledText]], str]:
    """Return the reviews of train and test, and where they were.

    They are in a folder, in the TFDS cache, or upstream. TFDS's own copies are shuffled.
    """
    folder = named_folder("imdb") if data is None else Path(data)
    if folder is not None:
        return read_imdb(folder), f"the folder {folder}"
    try:
        records, source = find_records(IMDB_UPSTREAM, ("train", "test"))
    except NotAvailable as error:
        remedy = f"fetch {IMDB_URL}, and name it with --data, or unpack it into"
        raise UserError(f"IMDB was not found ({error}): {remedy} ${DATA_VARIABLE}/imdb") from None
    reviews = {}
    for split, own in records.items():
        texts = enumerate(((record["text"].decode(), str(record["label"])) for record in own), 1)
        reviews[split] = [LabelledText(*text, source, number) for number, text in texts]
    return reviews, source


def _imdb_records(archive: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the reviews of the upstream archive; those without a label have label -1."""
    records = {}
    for split, reviews in read_imdb(archive).items():
        records[split] = [{"text": one.text, "label": int(one.label)} for one in reviews]
    unlabelled = sorted(_archived(archive, _IMDB_UNLABELLED), key=lambda review: int(review[0][1]))
    records["unsupervised"] = [{"text": text, "label": -1} for _, text in unlabelled]
    return records


IMDB_UPSTREAM = Upstream(
    "imdb_reviews",
    "1.0.0",
    IMDB_URL,
    {"text": str, "label": ("neg", "pos")},
    _imdb_records,
    config="plain_text",
    size=84_125_825,
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)


def read_imdb(place: PathLike) -> dict[str, list[LabelledText]]:
    """Read the Large Movie Review Dataset (Maas et al. 2011): label 0 is negative, 1 positive.

    `place` is a folder with train.jsonl and test.jsonl (or .gz), which have `text` and `label` on
    each line, the upstream archive, or a folder with what is in it. All negative reviews are first,
    by their numbers.
    """
    place = Path(place)
    if any(place.glob("*.jsonl*")):
        files = {split: named_file(place, f"{split}.jsonl") for split in ("train", "test")}
        return {split: read_labelled_file(file) for split, file in files.items()}
    if place.is_file():
        found = _archived(place, _IMDB_NAME)
    else:
        names = (_IMDB_NAME.fullmatch(path.as_posix()) for path in place.rglob("*.txt"))
        found = ((name, "\n".join(iter_lines(name[0]))) for name in names if name)

    reviews: dict[str, list[LabelledText]] = {"train": [], "test": []}
    for name, text in sorted(found, key=lambda review: (review[0][2], int(review[0][3]))):
        split, folder, _ = name.groups()
        if not has_words(text):
            raise bad_file(name[0], "has no words: fetch it again")
        reviews[split].append(LabelledText(text, _IMDB_FOLDERS[folder], name[0], 1))
    for split, own in reviews.items():
        if len({review.label for review in own}) < len(_IMDB_FOLDERS):
            problem = f"has no reviews {split}/neg/0_9.txt, {split}/pos/0_9.txt and so on"
            raise bad_file(place, f"{problem}: get {IMDB_URL} again")
    return reviews


def _archived(archive: Path, names: re.Pattern[str]) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the texts of an archive whose names match, with the match."""
    for name, data in tar_files(archive, names, IMDB_URL):
        yield name, "\n".join(stream_lines(io.BytesIO(data), name[0]))


def imdb_splits(reviews: Mapping[str, Sequence[LabelledText]]) -> dict[str, Iterator[Labelled]]:
    """Return the words and labels of each split; a random 15 % of train become `dev`."""
    train = reviews["train"]
    count = round(0.15 * len(train))
    if not count:
        raise UserError(f"train has {len(train)} reviews, too few to hold some out as dev")
    # Published results depend on this order; both parts keep that of the reviews.
    order = np.random.default_rng([0, len(train)]).permutation(len(train))
    parts = {
        "train": [train[i] for i in np.sort(order[count:])],
        "dev": [train[i] for i in np.sort(order[:count])],
        "test": reviews["test"],
    }
    return {split: labelled_words(own, review_words, ("0", "1")) for split, own in parts.items()}


def find_sst(
    data: PathLike | None, *, phrases: bool = False
) -> tuple[dict[str, list[Labelled]], str]:
    """Return the sentences of SST, with `phrases` every node of train's trees, and their place."""
    title = f"the Stanford Sentiment Treebank ({_SST_URL})"
    folder, files = corpus_files(data, "sst", title, _SST_FILES)
    found = {}
    for split, path in files.items():
        found[split] = read_trees(path, phrases=phrases and split == "train")
    return found, f"the folder {folder}"


def read_trees(path: PathLike, *, phrases: bool = False) -> list[Labelled]:
    r"""Read trees such as `(3 (2 It) (4 shines))`, one on each line, in lower case.

    `-LRB-` becomes `(`, and `\/` and `\*` become / and * (Socher et al. 2013). With `phrases`, a
    sentence is followed by all other nodes as they open.
    """
    texts: list[Labelled] = []  # their words are added as they are read
    for number, line in enumerate(iter_lines(path), 1):
        # A word belongs to every node around it.
        open_nodes: list[Labelled] = []
        is_tree = True
        for piece in _SST_PIECE.finditer(line):
            if piece[0] == ")":
                is_tree &= bool(open_nodes) and bool(open_nodes.pop().words)
            elif piece[1] is None:
                is_tree &= bool(open_nodes)
                words = piece[0].lower().replace("\\/", "/").replace("\\*", "*").split()
                for node in open_nodes:
                    node.words.extend(_SST_BRACKETS.get(word, word) for word in words)
            elif piece[1] in ("0", "1", "2", "3", "4"):
                node = Labelled([], int(piece[1]))
                if phrases or not open_nodes:
                    texts.append(node)
                open_nodes.append(node)
            else:
                is_tree = False
        if open_nodes or not is_tree:
            problem = "no tree such as (3 (2 It) (4 shines)), whose labels are 0 to 4"
            raise bad_line(path, number, problem)
    if not texts:
        raise bad_file(path, "is empty: fetch it again, each split needs some trees")
    return texts


def find_sick(data: PathLike | None) -> tuple[dict[str, list[Labelled]], str]:
    """Return the pairs of SICK in the split of SemEval-2014 from a folder, and where they were."""
    folder, files = corpus_files(data, "sick", f"SICK ({_SICK_URL})", _SICK_FILES)
    return {split: read_pairs(path) for split, path in files.items()}, f"the folder {folder}"


def read_pairs(path: PathLike) -> list[Labelled]:
    """Read rated pairs of sentences (Marelli et al. 2014): a table with tabs and a header."""
    pairs = []
    for number, fields in read_rows(path, _SICK_COLUMNS):
        first, second = map(treebank_words, fields[:2])
        if not first or not second:
            raise bad_line(path, number, "a sentence has no words: fetch the file again")
        try:
            rating = float(fields[2])
        except ValueError:
            rating = math.nan
        if not 1 <= rating <= SICK_RATINGS:
            problem = f"the rating {quoted(fields[2])} is none from 1 to {SICK_RATINGS}"
            raise bad_line(path, number, problem)
        pairs.append(Labelled(first, rating, second))
    if not pairs:
        raise bad_file(path, "holds no pair below its first line: fetch it again")
    return pairs
