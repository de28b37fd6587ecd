"""Find the corpus for language modelling: in a folder, the TFDS cache, upstream, or the embedded one."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

from dynskip_jax.data import embedded, ptb, tfds_tools
from dynskip_jax.data.data_folder import DATA_VARIABLE, named_folder
from dynskip_jax.data.embedded import embedded_corpus
from dynskip_jax.data.messages import bad_file, quoted, shown
from dynskip_jax.data.pieces import Pieces
from dynskip_jax.data.text import LanguageCorpus, read_corpus
from dynskip_jax.errors import UserError

KNOWN_NAMES = (ptb.NAME, embedded.NAME)


def find_language_corpus(
    data: str | os.PathLike[str] | None,
    dataset: str | None = None,
    *,
    min_count: int | None = None,
    blank_lines: bool | None = None,
    pieces: Pieces | None = None,
    environ: Mapping[str, str] = os.environ,
    tfds_dir: str | os.PathLike[str] | None = None,
    allow_download: bool = True,
) -> LanguageCorpus:
    """Load the first corpus found, in this order.

    1. `data`, the user's folder;
    2. the sub-folder `dataset` (or ptb) of `$DYNSKIP_DATA_DIR`;
    3. the TFDS cache;
    4. the upstream archive, which is then kept in the TFDS cache; gives up at once without a network;
    5. the embedded corpus, unless `dataset` asks for another.

    A corpus called "ptb" is the published one, word for word, or an error.

    Args:
      data: folder with the files of train, valid and test, or one text file to cut into them; None goes on to
        the next place.
      dataset: "ptb", "pydoc-topics" (the embedded corpus, straight away) or a sub-folder of
        `$DYNSKIP_DATA_DIR`; None takes PTB where it is found and else the embedded corpus.
      min_count: words that train has fewer times are `<unk>`; None keeps them where it can
        (`dynskip_jax.data.make_corpus`), and is 2 for the embedded corpus. PTB has its own `<unk>`, and takes
        None or 1.
      blank_lines: whether each blank line of the user's own text is an `<eos>`; None says yes for WikiText's
        file names alone (`dynskip_jax.data.text.read_lines`).
      pieces: what words are split into; None keeps them whole.
      environ: the environment variables.
      tfds_dir: the TFDS directory; None takes TFDS's own (`$TFDS_DATA_DIR`, `~/tensorflow_datasets`).
      allow_download: whether the network may be used.

    Returns:
      The corpus; its `source` says where it was found.

    Raises:
      UserError: for an unknown `dataset`, one that is asked for by name and not found, a missing folder,
        unusable files and a `min_count` that the corpus cannot have.
    """
    corpus = _find(data, dataset, min_count, blank_lines, pieces, environ, tfds_dir, allow_download)
    if corpus.name == ptb.NAME and min_count not in (None, 1):
        raise UserError(
            f"PTB's vocabulary is the published one, with its own <unk>: leave out min_count, not {min_count}"
        )
    return corpus


def _find(
    data: str | os.PathLike[str] | None,
    dataset: str | None,
    min_count: int | None,
    blank_lines: bool | None,
    pieces: Pieces | None,
    environ: Mapping[str, str],
    tfds_dir: str | os.PathLike[str] | None,
    allow_download: bool,
) -> LanguageCorpus:
    """The first corpus found; PTB has no choice of `min_count`."""
    kept = named_folder(dataset or ptb.NAME, environ)
    if dataset is not None and dataset not in KNOWN_NAMES and kept is None:
        raise UserError(
            f"there is no dataset {quoted(dataset)}: use one of {', '.join(KNOWN_NAMES)}, a sub-folder of "
            f"${DATA_VARIABLE}, or --data DIR alone"
        )
    if dataset == embedded.NAME:
        if data is not None:
            raise UserError(f"{dataset} comes with Python, and nothing is read: leave --data out")
        return embedded_corpus(min_count, pieces)
    if data is not None:
        folder = Path(data).expanduser()
        return _read_folder(folder, dataset, f"the folder {data}", min_count, blank_lines, pieces)
    if kept is not None:
        source = f"the folder {kept} (${DATA_VARIABLE})"
        return _read_folder(kept, dataset or ptb.NAME, source, min_count, blank_lines, pieces)

    directory = Path(tfds_dir) if tfds_dir is not None else tfds_tools.default_directory(environ)
    if tfds_tools.is_prepared(ptb.prepared_folder(directory)):
        return ptb.load_prepared_ptb(directory, pieces=pieces)
    problem = _download(directory) if allow_download else "downloading is switched off"
    if problem is None:
        source = f"{ptb.UPSTREAM_URL}, now kept in {ptb.prepared_folder(directory)}"
        return ptb.load_prepared_ptb(directory, source=source, pieces=pieces)
    if dataset is not None:
        raise UserError(
            f"the dataset {dataset!r} was not found ({problem}): put ptb.train.txt, ptb.valid.txt and "
            f"ptb.test.txt into a folder and name it with --data DIR, or into ${DATA_VARIABLE}/ptb"
        )
    corpus = embedded_corpus(min_count, pieces)
    return dataclasses.replace(corpus, source=f"{corpus.source} (no PTB: {problem})")


def _read_folder(
    folder: Path,
    dataset: str | None,
    source: str,
    min_count: int | None,
    blank_lines: bool | None,
    pieces: Pieces | None,
) -> LanguageCorpus:
    """Read `folder`, holding it to PTB's text where it would be called PTB."""
    how = dict(blank_lines=blank_lines, min_count=min_count, pieces=pieces)
    if folder.is_file():
        corpus = read_corpus(folder, name=dataset, **how)
        if corpus.name == ptb.NAME:
            raise bad_file(
                folder, "is one file, and PTB is three: name their folder, or call the file otherwise"
            )
        return corpus
    if not folder.is_dir():
        raise UserError(
            f"the folder {shown(folder, 120)} does not exist: put train.txt, valid.txt and test.txt there, "
            "or ptb.train.txt and so on, or name another folder, or a text file, with --data"
        )
    name = dataset or folder.resolve().name
    if name == ptb.NAME or (dataset is None and ptb.has_ptb_files(folder)):
        return ptb.read_ptb(folder, source=source, pieces=pieces)
    return read_corpus(folder, name=name, source=source, **how)


def _download(directory: Path) -> str | None:
    """Put PTB into the TFDS cache; None, or in a few words why that failed."""
    # Asked before TFDS starts, which would retry for long without a network.
    if not ptb.is_reachable(ptb.UPSTREAM_URL):
        return "its upstream address does not answer"
    try:
        ptb.prepare_ptb(directory)
    except Exception as error:  # TFDS's own, requests' and the file system's: none may stop a first run.
        return f"its download failed: {' '.join(str(error).split())[:200]}"
    return None
