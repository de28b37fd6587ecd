"""Find, check and read the Penn Treebank corpus for language modelling (Mikolov's preprocessing)."""

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

# Number of tokens, with one <eos> per line (Mikolov et al. 2010).
PUBLISHED_COUNTS: Mapping[str, int] = {"train": 929_589, "valid": 73_760, "test": 82_430}

# Result of `content_sha256` for each split; public copies of the text agree byte for byte.
PUBLISHED_SHA256: Mapping[str, str] = {
    "train": "5145926136ee9aef6f359b267ac09cc8a920879cd71725de17c490dd111d2998",
    "valid": "fadf6277290823f881b7bf39b84e88536c87a859cd629dcfd1d2dfdef06097cf",
    "test": "c2f8c16a611595d31da5acdb7a61d50e7d5e95f6b9c05fceda5f5ddc4383e791",
}


def has_ptb_files(folder: str | os.PathLike[str]) -> bool:
    """Return whether `folder` has any of ptb.train.txt, ptb.valid.txt and ptb.test.txt, plain or .gz."""
    names = [f"{PREFIX}{split}.txt{suffix}" for split in SPLITS for suffix in ("", ".gz")]
    return any((Path(folder) / name).is_file() for name in names)


def content_sha256(lines: Iterable[str]) -> str:
    """Return the SHA-256 (hex) of a text after its whitespace is normalized.

    The hashed text is UTF-8, has one space between the words of each line, and a line feed after each line.
    The hash depends on the words and lines only. It does not depend on the line ends of the system, on extra
    whitespace around words, or on whether the last line ends with a line feed.
    """
    digest = hashlib.sha256()
    for line in lines:
        digest.update(f"{' '.join(line.split())}\n".encode())
    return digest.hexdigest()


def difference(lines: Mapping[str, Sequence[str]]) -> str | None:
    """Return how a text differs from the published corpus, or None if it is the same.

    The numbers of tokens are compared before the hashes, because they give a more useful message.

    Args:
      lines: Lines of "train", "valid" and "test".

    Returns:
      Phrase that continues a sentence after the name of the corpus, such as "looks truncated: …".
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
    """Check that a text is the published corpus.

    Args:
      lines: Lines of "train", "valid" and "test".
      where: Location of the corpus, for the error message.

    Raises:
      UserError: If the text differs; the message names the first split that differs.
    """
    if (how := difference(lines)) is not None:
        raise UserError(
            f"PTB in {shown(where, 75)} {how}: get {UPSTREAM_URL} (data/), or call neither its folder nor "
            "its files ptb"
        )


def read_published_lines(folder: str | os.PathLike[str]) -> dict[str, list[str]]:
    """Return the lines of the three splits in a folder, after checking that they are the published text.

    Raises:
      UserError: See `read_ptb`.
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
      folder: Folder with ptb.train.txt, ptb.valid.txt and ptb.test.txt, or with the same text under names
        that `dynskip_jax.data.read_corpus` accepts.
      source: Phrase that describes where the corpus was found; None names the folder.
      pieces: Units into which words are split; None keeps words whole.

    Raises:
      UserError: If files are missing or unreadable, or the text is not the published one.
    """
    return make_corpus(NAME, read_published_lines(folder), source or f"the folder {folder}", pieces=pieces)


def prepared_folder(tfds_dir: str | os.PathLike[str]) -> Path:
    """Return the folder in which TFDS stores the prepared corpus."""
    return Path(tfds_dir) / NAME / VERSION


def prepare_ptb(tfds_dir: str | os.PathLike[str], folder: str | os.PathLike[str] | None = None) -> None:
    """Write the corpus to the TFDS cache, from `folder` or, if that is None, from the upstream archive.

    Raises:
      UserError: If the text is not the published one, or the archive cannot be downloaded.
      OSError: If `tfds_dir` is not writable.
    """
    from dynskip_jax.data.ptb_builder import Ptb

    # A temporary download folder, so that a later call does not reuse a broken download.
    with tempfile.TemporaryDirectory() as downloads, tfds_tools.quietly():
        Ptb(folder=folder, data_dir=tfds_dir).download_and_prepare(download_dir=downloads)


def load_prepared_ptb(
    tfds_dir: str | os.PathLike[str], *, source: str | None = None, pieces: Pieces | None = None
) -> LanguageCorpus:
    """Read and check the corpus from the TFDS cache; for the arguments see `read_ptb`.

    Raises:
      UserError: If the cache is damaged.
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
    """Copy the three text files of the upstream archive into `folder`, and return `folder`.

    Raises:
      UserError: If the archive is damaged or lacks a file.
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
            # Read and write instead of `extract`, so that the archive cannot choose the target path.
            with tar.extractfile(member) as file:
                (folder / name).write_bytes(file.read())
    return folder


def is_reachable(url: str, seconds: float = 2.5) -> bool:
    """Return whether `url` can be opened within `seconds`, including the name lookup.

    An HTTP error status counts as not reachable.
    """
    answers: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(url, timeout=seconds):
                answers.append(True)
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, http.client.HTTPException):
            pass

    # A thread, because a socket's timeout does not limit the name lookup.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(answers)
