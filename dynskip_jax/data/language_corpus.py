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
    """Load a corpus from the first of these places that has one.

    1. `data`, the user's folder or file, if it is given;
    2. the sub-folder `dataset` of `$DYNSKIP_DATA_DIR`, or ptb if `dataset` is None;
    3. PTB in the TFDS cache;
    4. PTB's upstream archive, which is then stored in the TFDS cache; without a network, this fails at once;
    5. the embedded corpus, unless `dataset` names another.

    A corpus named "ptb" must be the published text, word for word; otherwise a `UserError` is raised.

    Args:
      data: Folder with the files of train, valid and test, or one text file, which is cut into these
        splits; None tries the other places.
      dataset: "ptb", "pydoc-topics" (the embedded corpus, without trying other places) or a sub-folder of
        `$DYNSKIP_DATA_DIR`. None uses PTB if it is found, otherwise the embedded corpus. With `data`, any
        other name becomes the name of the corpus.
      min_count: Words that occur fewer times in the training text become `<unk>`. None keeps all words where
        possible (see `dynskip_jax.data.make_corpus`), and is 2 for whole words of the embedded corpus. PTB
        has its own `<unk>`, and allows only None or 1.
      blank_lines: Whether each blank line of the user's text becomes an `<eos>`. None: only in files with
        names like those of WikiText (see `dynskip_jax.data.text.text_lines`).
      pieces: Units into which words are split; None keeps words whole.
      environ: Environment variables.
      tfds_dir: The TFDS directory; None uses that of TFDS (`$TFDS_DATA_DIR`, `~/tensorflow_datasets`).
      allow_download: Whether the network may be used.

    Returns:
      The corpus; its `source` is a readable phrase for where it was found.

    Raises:
      UserError: `dataset` is unknown or was not found and there is no `data`; `data` does not exist or is
        given with "pydoc-topics"; files are invalid; or the corpus does not allow this `min_count`.
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
    """Return the first corpus found (see `find_language_corpus`); `min_count` is not applied to PTB."""
    kept = named_folder(dataset or ptb.NAME, environ)
    if data is None and dataset is not None and dataset not in KNOWN_NAMES and kept is None:
        raise UserError(
            f"there is no dataset {quoted(dataset)}: use one of {', '.join(KNOWN_NAMES)}, a sub-folder of "
            f"${DATA_VARIABLE}, or give the folder of the corpus with --data DIR"
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
    """Read a corpus from a folder or file; a corpus that would be named "ptb" must be the published text."""
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
    """Download PTB to the TFDS cache; return None, or a short reason if the download fails."""
    # Check this first: without a network, TFDS would retry for a long time.
    if not ptb.is_reachable(ptb.UPSTREAM_URL):
        return "its upstream address does not answer"
    try:
        ptb.prepare_ptb(directory)
    except Exception as error:  # No error of TFDS, requests or the file system may stop a first run.
        return f"its download failed: {' '.join(str(error).split())[:200]}"
    return None
