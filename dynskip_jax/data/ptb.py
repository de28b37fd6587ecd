"""The Penn Treebank corpus of language modelling (Mikolov's preprocessing): find, check and read it."""

import http.client
import os
import tarfile
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from dynskip_jax.data import tfds_tools
from dynskip_jax.data.text import SPLITS, LanguageCorpus, make_corpus, read_corpus
from dynskip_jax.errors import UserError

NAME = "ptb"
VERSION = "1.0.0"
PREFIX = "ptb."
UPSTREAM_URL = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
ARCHIVE_FOLDER = "simple-examples/data"

# Tokens with one <eos> per line; 9,999 words with <unk>, and <eos> (Mikolov et al. 2010).
PUBLISHED_COUNTS: Mapping[str, int] = {
    "train": 929_589,
    "valid": 73_760,
    "test": 82_430,
    "vocabulary": 10_000,
}


def has_ptb_files(folder: str | os.PathLike[str]) -> bool:
    """Whether `folder` has any of ptb.train.txt, ptb.valid.txt and ptb.test.txt, plain or .gz."""
    names = [f"{PREFIX}{split}.txt{suffix}" for split in SPLITS for suffix in ("", ".gz")]
    return any((Path(folder) / name).is_file() for name in names)


def check_counts(sizes: Mapping[str, int], where: str) -> None:
    """Compare the size of a corpus with the published one.

    Args:
      sizes: tokens of "train", "valid" and "test", one `<eos>` per line included, and entries of the
        "vocabulary" (`LanguageCorpus.sizes`).
      where: where the corpus is, for the error.

    Raises:
      UserError: naming the first split that differs, its count and the published one.
    """
    for part, expected in PUBLISHED_COUNTS.items():
        found = sizes[part]
        if found != expected:
            looks = "looks truncated" if found < expected else "is not the published one"
            what = "entries in the vocabulary" if part == "vocabulary" else f"tokens in the {part} split"
            raise UserError(
                f"the PTB corpus in {where} {looks}: {found:,} {what}, expected {expected:,}; "
                f"get it from {UPSTREAM_URL} (folder data/)"
            )


def read_ptb(folder: str | os.PathLike[str], *, source: str | None = None) -> LanguageCorpus:
    """Read and check the corpus from a folder.

    Args:
      folder: holds ptb.train.txt, ptb.valid.txt and ptb.test.txt, or the same text under names that
        `dynskip_jax.data.read_corpus` accepts.
      source: a phrase for where it was found; None says the folder.

    Raises:
      UserError: when files are missing or unreadable, or the counts are not the published ones.
    """
    prefix = PREFIX if has_ptb_files(folder) else None
    corpus = read_corpus(folder, name=NAME, prefix=prefix, source=source)
    check_counts(corpus.sizes, str(folder))
    return corpus


def prepared_folder(tfds_dir: str | os.PathLike[str]) -> Path:
    """Where TFDS keeps the prepared corpus."""
    return Path(tfds_dir) / NAME / VERSION


def prepare_ptb(tfds_dir: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> None:
    """Put the corpus into the TFDS cache, from `folder` or, without one, from the upstream archive.

    Raises:
      UserError: when the corpus is not as published or the archive cannot be fetched.
      OSError: when `tfds_dir` cannot be written.
    """
    from dynskip_jax.data.ptb_builder import Ptb

    # The download is kept only for the time of the preparation: a broken one must not be found again.
    with tempfile.TemporaryDirectory() as downloads, tfds_tools.quietly():
        Ptb(folder=folder, data_dir=tfds_dir).download_and_prepare(download_dir=downloads)


def load_prepared_ptb(tfds_dir: str | os.PathLike[str], *, source: str | None = None) -> LanguageCorpus:
    """Read and check the corpus from the TFDS cache.

    Raises:
      UserError: when the cache is damaged.
    """
    from dynskip_jax.data.ptb_builder import Ptb

    folder = prepared_folder(tfds_dir)
    records = tfds_tools.read_splits(lambda: Ptb(data_dir=tfds_dir), folder)
    try:
        lines = {split: [record["text"].decode("utf-8") for record in records[split]] for split in SPLITS}
    except (KeyError, UnicodeDecodeError) as error:
        raise tfds_tools.damaged(folder, error) from error
    corpus = make_corpus(NAME, lines, source or f"the TFDS cache {folder}")
    try:
        check_counts(corpus.sizes, str(folder))
    except UserError as error:
        raise tfds_tools.damaged(folder, error) from error
    return corpus


def extract_ptb(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Copy the three text files of the upstream archive into `folder`.

    Raises:
      UserError: when the archive is damaged or lacks a file.
    """
    folder = Path(folder)
    try:
        with tarfile.open(archive) as tar:
            members = {member.name.removeprefix("./"): member for member in tar if member.isfile()}
            for split in SPLITS:
                name = f"{PREFIX}{split}.txt"
                # Read and write rather than extract: nothing in the archive chooses where a file goes.
                with tar.extractfile(members[f"{ARCHIVE_FOLDER}/{name}"]) as file:
                    (folder / name).write_bytes(file.read())
    except KeyError as error:
        raise UserError(
            f"the archive from {UPSTREAM_URL} has no {error.args[0]}: get PTB elsewhere"
        ) from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"the archive from {UPSTREAM_URL} is damaged ({error}): try again later") from error
    return folder


def is_reachable(url: str, seconds: float = 2.5) -> bool:
    """Whether `url` answers within `seconds`, looking up the name included."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=seconds):
                answers.append(True)
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, http.client.HTTPException):
            pass

    # A thread, since a socket's timeout does not bound the look-up of the name.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers)
