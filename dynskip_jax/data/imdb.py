"""Find and read the Large Movie Review Dataset (Maas et al. 2011), and hold out a part of train as dev."""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dynskip_jax.data import tfds_tools
from dynskip_jax.data.data_folder import DATA_VARIABLE, named_folder
from dynskip_jax.data.messages import bad_file, bad_line, quoted
from dynskip_jax.data.ptb import is_reachable
from dynskip_jax.data.sentences import Labelled, held_out, numbered_lines, review_words
from dynskip_jax.data.text import read_lines
from dynskip_jax.data.text_files import open_tar, parse_json, read_text
from dynskip_jax.errors import UserError

NAME = "imdb"
VERSION = "1.0.0"
LABELS = ("negative", "positive")
SPLITS = ("train", "test")
DEV_SHARE = 0.15
UPSTREAM_URL = "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz"
ARCHIVE_FOLDER = "aclImdb"
_FOLDERS = ("neg", "pos")  # the index of each is its label
_FILE = re.compile(r"(\d+)_(\d+)\.txt")


class Review(NamedTuple):
    """A review with its label.

    Attributes:
        text: Original text, including HTML line breaks.
        label: 0 for negative, 1 for positive.
    """

    text: str
    label: int


def read_imdb(folder: str | os.PathLike[str]) -> dict[str, list[Review]]:
    """Read `train` and `test` of the official split.

    Reviews from JSON files keep the order of their lines. Reviews from the upstream archive's folder are in
    the order of their numbers, with all negative reviews before the positive ones.

    Args:
        folder: One of these: a folder with train.jsonl and test.jsonl (or .gz), which have an object with
            `text` and `label` on each line; the folder aclImdb of the upstream archive; or a folder that
            contains aclImdb.

    Raises:
        UserError: Files are missing or invalid; the message contains the file and, where possible, the line.
    """
    folder = Path(folder)
    found = {}
    for split in SPLITS:
        files = [path for end in ("", ".gz") if (path := folder / f"{split}.jsonl{end}").is_file()]
        if len(files) > 1:
            raise bad_file(folder, f"has both {files[0].name} and {files[1].name}: keep one")
        if files:
            found[split] = _read_json_lines(files[0])
    if len(found) == len(SPLITS):
        return found
    if found:
        missing = next(split for split in SPLITS if split not in found)
        raise bad_file(folder, f"has no {missing}.jsonl or {missing}.jsonl.gz: put it there")
    archive = folder / ARCHIVE_FOLDER if (folder / ARCHIVE_FOLDER).is_dir() else folder
    return {split: _read_split_folder(archive / split) for split in SPLITS}


def _read_json_lines(path: Path) -> list[Review]:
    reviews = []
    for _, line, bad in numbered_lines(read_lines(path, blank_lines=True), path):
        if not line.strip():
            continue
        try:
            found = parse_json(line)
        except ValueError as error:
            raise bad(f"no JSON ({error})") from None
        if not isinstance(found, dict) or not {"text", "label"} <= found.keys():
            raise bad("no object with text and label")
        text, label = found["text"], found["label"]
        if not isinstance(label, int) or isinstance(label, bool) or label not in (0, 1):
            raise bad(f"the label {quoted(label)} does not exist: 0 is negative, 1 positive")
        if not isinstance(text, str) or not review_words(text):
            raise bad("the text has no words")
        reviews.append(Review(text, label))
    return reviews


def _read_split_folder(folder: Path) -> list[Review]:
    reviews = []
    for label, name in enumerate(_FOLDERS):
        paths = [(int(named[1]), path) for path, named in _files(folder / name)]
        for _, path in sorted(paths):
            reviews.append(Review(_text(path), label))
    return reviews


def _files(folder: Path) -> Iterator[tuple[Path, re.Match]]:
    try:
        paths = list(folder.iterdir())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        problem = f"is not a readable folder ({reason}): name a folder with train.jsonl and "
        raise bad_file(folder, f"{problem}test.jsonl, or with {ARCHIVE_FOLDER} of {UPSTREAM_URL}") from None
    found = [(path, named) for path in paths if (named := _FILE.fullmatch(path.name))]
    if not found:
        raise bad_file(folder, f"has no reviews, files named like 0_9.txt: unpack {UPSTREAM_URL} again")
    yield from found


def _text(path: Path) -> str:
    text = read_text(path)
    if not review_words(text):
        raise bad_line(path, 1, "the text has no words")
    return text


def imdb_splits(reviews: Mapping[str, Sequence[Review]], dev_seed: int = 0) -> dict[str, Iterator[Labelled]]:
    """Return iterators over the words and labels of `train`, `dev` and `test`.

    A random 15 % of the reviews of `train` become `dev`. The order of the reviews does not change.

    Args:
        reviews: Reviews of `train` and `test`.
        dev_seed: Random seed for the choice of the `dev` reviews.

    Raises:
        UserError: `train` has too few reviews to hold any out.
    """
    rest, held = held_out(len(reviews["train"]), DEV_SHARE, dev_seed)
    if not len(held):
        raise UserError(f"train has {len(reviews['train'])} reviews, too few to hold some out as dev")
    train = reviews["train"]
    parts = {"train": [train[i] for i in rest], "dev": [train[i] for i in held], "test": reviews["test"]}
    return {
        split: (Labelled(review_words(review.text), review.label) for review in own)
        for split, own in parts.items()
    }


def find_imdb(
    data: str | os.PathLike[str] | None,
    *,
    environ: Mapping[str, str] = os.environ,
    tfds_dir: str | os.PathLike[str] | None = None,
) -> tuple[dict[str, list[Review]], str]:
    """Read the reviews from the first of these places that exists.

    1. `data`, the user's folder, if it is given;
    2. the sub-folder imdb of `$DYNSKIP_DATA_DIR`;
    3. the TFDS cache;
    4. the upstream archive, which is then stored in the TFDS cache. Without a network, this fails at once.

    Args:
        data: The folder; see `read_imdb`. None tries the other places.
        environ: Environment variables.
        tfds_dir: The TFDS directory; None uses that of TFDS (`$TFDS_DATA_DIR`, `~/tensorflow_datasets`).

    Returns:
        The reviews of `train` and `test`, and a readable phrase for where they were found.

    Raises:
        UserError: The reviews were not found, or files are invalid.
    """
    folder = named_folder(NAME, environ) if data is None else Path(data).expanduser()
    if folder is not None:
        return read_imdb(folder), f"the folder {folder}"
    directory = Path(tfds_dir) if tfds_dir is not None else tfds_tools.default_directory(environ)
    prepared = prepared_folder(directory)
    if tfds_tools.is_prepared(prepared):
        return load_prepared_imdb(directory), f"the TFDS cache {prepared}"
    problem = "its upstream address does not answer"
    if is_reachable(UPSTREAM_URL):
        try:
            prepare_imdb(directory)
            return load_prepared_imdb(directory), f"{UPSTREAM_URL}, now kept in {prepared}"
        except Exception as error:  # errors of TFDS, requests and the file system
            problem = f"its download failed: {' '.join(str(error).split())[:200]}"
    raise UserError(
        f"IMDB was not found ({problem}): unpack {UPSTREAM_URL} and name the folder with --data DIR, or put "
        f"it into ${DATA_VARIABLE}/{NAME}"
    )


def prepared_folder(tfds_dir: str | os.PathLike[str]) -> Path:
    """Return the folder in which TFDS stores the prepared reviews."""
    return Path(tfds_dir) / NAME / VERSION


def prepare_imdb(tfds_dir: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> None:
    """Write the reviews to the TFDS cache, from `folder` or, if it is None, from the upstream archive.

    Raises:
        UserError: Files of the reviews are missing or invalid.
        OSError: `tfds_dir` cannot be written.
    """
    from dynskip_jax.data.imdb_builder import Imdb

    # The download is deleted after the preparation, so that a broken one cannot be used again.
    with tempfile.TemporaryDirectory() as downloads, tfds_tools.quietly():
        Imdb(folder=folder, data_dir=tfds_dir).download_and_prepare(download_dir=downloads)


def load_prepared_imdb(tfds_dir: str | os.PathLike[str]) -> dict[str, list[Review]]:
    """Read the reviews from the TFDS cache.

    Raises:
        UserError: The cache is damaged.
    """
    from dynskip_jax.data.imdb_builder import Imdb

    folder = prepared_folder(tfds_dir)
    records = tfds_tools.read_splits(lambda: Imdb(data_dir=tfds_dir), folder)
    try:
        return {
            split: [Review(record["text"].decode("utf-8"), int(record["label"])) for record in records[split]]
            for split in SPLITS
        }
    except (KeyError, UnicodeDecodeError) as error:
        raise tfds_tools.damaged(folder, error) from error


def unpack_imdb(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Copy the labelled reviews of the upstream archive to `folder`, and return the folder aclImdb there.

    Raises:
        UserError: The archive is damaged.
    """
    place = re.compile(rf"(?:\./)?{ARCHIVE_FOLDER}/(train|test)/(neg|pos)/(\d+_\d+\.txt)")
    top = Path(folder) / ARCHIVE_FOLDER
    for split in SPLITS:
        for name in _FOLDERS:
            (top / split / name).mkdir(parents=True)
    with open_tar(archive, UPSTREAM_URL) as tar:
        for member in tar:
            named = place.fullmatch(member.name)
            if named and member.isfile():
                # Not extract(): no path from the archive may determine where a file is written.
                with tar.extractfile(member) as file:
                    top.joinpath(*named.groups()).write_bytes(file.read())
    return top
