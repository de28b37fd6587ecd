"""The Penn Treebank corpus of language modelling (Mikolov's preprocessing): find, check and read it."""

import hashlib
import http.client
import os
import tempfile
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from dynskip_jax.data import tfds_tools
from dynskip_jax.data.messages import shown
from dynskip_jax.data.pieces import Pieces
from dynskip_jax.data.text import (
    SPLITS,
    LanguageCorpus,
    find_split_files,
    make_corpus,
    read_lines,
    tokenize,
)
from dynskip_jax.data.text_files import open_tar
from dynskip_jax.errors import UserError

NAME = "ptb"
VERSION = "1.0.0"
PREFIX = "ptb."
UPSTREAM_URL = "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz"
ARCHIVE_FOLDER = "simple-examples/data"

# Tokens with one <eos> per line (Mikolov et al. 2010).
PUBLISHED_COUNTS: Mapping[str, int] = {"train": 929_589, "valid": 73_760, "test": 82_430}

# Of that text, by `content_sha256`; public copies of it agree byte for byte.
PUBLISHED_SHA256: Mapping[str, str] = {
    "train": "5145926136ee9aef6f359b267ac09cc8a920879cd71725de17c490dd111d2998",
    "valid": "fadf6277290823f881b7bf39b84e88536c87a859cd629dcfd1d2dfdef06097cf",
    "test": "c2f8c16a611595d31da5acdb7a61d50e7d5e95f6b9c05fceda5f5ddc4383e791",
}


def has_ptb_files(folder: str | os.PathLike[str]) -> bool:
    """Whether `folder` has any of ptb.train.txt, ptb.valid.txt and ptb.test.txt, plain or .gz."""
    names = [f"{PREFIX}{split}.txt{suffix}" for split in SPLITS for suffix in ("", ".gz")]
    return any((Path(folder) / name).is_file() for name in names)


def content_sha256(lines: Iterable[str]) -> str:
    """SHA-256 (hex) of a text's normal form: what a model reads of it, and no more.

    In UTF-8, the words of each line joined by one blank, and a line feed after every line. So the ends of
    lines on other systems, blanks around words and whether the last line is ended change nothing; each word,
    and each line, does.
    """
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{' '.join(line.split())}\n".encode())
    return digest.hexdigest()


def difference(lines: Mapping[str, Sequence[str]]) -> str | None:
    """How a text differs from the published corpus, to follow its name; None where it is the same.

    Args:
      lines: of "train", "valid" and "test". Numbers of tokens are compared first, as they tell more.
    """
    for split, expected in PUBLISHED_COUNTS.items():
        found = len(tokenize(lines[split]))
        if found != expected:
            looks = "looks truncated" if found < expected else "is not the published one"
            return f"{looks}: {found:,} tokens in the {split} split, expected {expected:,}"
    for split, expected in PUBLISHED_SHA256.items():
        found = content_sha256(lines[split])
        if found != expected:
            return (
                f"has other words or lines in the {split} split (SHA-256 {found[:12]}…, not {expected[:12]}…)"
            )
    return None


def check_published(lines: Mapping[str, Sequence[str]], where: str) -> None:
    """Refuse a text that is not the published corpus.

    Args:
      lines: of "train", "valid" and "test".
      where: where the corpus is, for the error.

    Raises:
      UserError: naming the first split that differs.
    """
    if (how := difference(lines)) is not None:
        raise UserError(
            f"PTB in {shown(where, 75)} {how}: get {UPSTREAM_URL} (data/), or call neither its folder nor "
            "its files ptb"
        )


def read_published_lines(folder: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The lines of the three splits in a folder, once they are known to be the published ones.

    Raises:
      UserError: as `read_ptb`.
    """
    paths = find_split_files(folder, prefix=PREFIX if has_ptb_files(folder) else None)
    lines = {split: read_lines(path, blank_lines=False) for split, path in paths.items()}
    check_published(lines, str(folder))
    return lines


def read_ptb(
    folder: str | os.PathLike[str], *, source: str | None = None, pieces: Pieces | None = None
) -> LanguageCorpus:
    """Read and check the corpus from a folder.

    Args:
      folder: holds ptb.train.txt, ptb.valid.txt and ptb.test.txt, or the same text under names that
        `dynskip_jax.data.read_corpus` accepts.
      source: a phrase for where it was found; None says the folder.
      pieces: what words are split into; None keeps them whole.

    Raises:
      UserError: when files are missing or unreadable, or the text is not the published one.
    """
    return make_corpus(NAME, read_published_lines(folder), source or f"the folder {folder}", pieces=pieces)


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


def load_prepared_ptb(
    tfds_dir: str | os.PathLike[str], *, source: str | None = None, pieces: Pieces | None = None
) -> LanguageCorpus:
    """Read and check the corpus from the TFDS cache; see `read_ptb`.

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
    if (how := difference(lines)) is not None:
        raise tfds_tools.damaged(folder, f"PTB in it {how}")
    return make_corpus(NAME, lines, source or f"the TFDS cache {folder}", pieces=pieces)


def extract_ptb(archive: str | os.PathLike[str], folder: str | os.PathLike[str]) -> Path:
    """Copy the three text files of the upstream archive into `folder`.

    Raises:
      UserError: when the archive is damaged or lacks a file.
    """
    folder = Path(folder)
    with open_tar(archive, UPSTREAM_URL) as tar:
        members = {member.name.removeprefix("./"): member for member in tar if member.isfile()}
        for split in SPLITS:
            name = f"{PREFIX}{split}.txt"
            member = members.get(f"{ARCHIVE_FOLDER}/{name}")
            if member is None:
                raise UserError(
                    f"the archive from {UPSTREAM_URL} has no {ARCHIVE_FOLDER}/{name}: get PTB elsewhere"
                )
            # Read and write rather than extract: nothing in the archive chooses where a file goes.
            with tar.extractfile(member) as file:
                (folder / name).write_bytes(file.read())
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
