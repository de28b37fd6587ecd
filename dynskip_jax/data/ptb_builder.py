"""The TFDS builder of the Penn Treebank corpus, one record per line of text."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

from dynskip_jax.data import ptb
from dynskip_jax.data.text import SPLITS, find_split_files, make_corpus, read_lines
from dynskip_jax.errors import UserError


class Ptb(tfds.core.GeneratorBasedBuilder):
    """Mikolov's Penn Treebank text: splits train, valid and test, feature "text" (one line, UTF-8).

    Args:
      folder: holds the three text files (`dynskip_jax.data.ptb.read_ptb` says which); None takes the
        upstream archive.
      data_dir: the TFDS directory; None takes TFDS's own.
      kwargs: of `tfds.core.GeneratorBasedBuilder`.
    """

    VERSION = tfds.core.Version(ptb.VERSION)
    # The counts are checked instead; TFDS's look-up of checksums needs importlib_resources, which it does not
    # declare (tensorflow/datasets#11212).
    url_infos = None
    RELEASE_NOTES = {ptb.VERSION: "Text as published, one record per line."}  # noqa: RUF012

    def __init__(
        self,
        *,
        folder: str | os.PathLike[str] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        file_format: str = "array_record",
        **kwargs: Any,
    ):
        self.folder = folder
        super().__init__(data_dir=data_dir, file_format=file_format, **kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Penn Treebank, lower case, numbers as N, rare words as <unk>.",
            features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
            homepage=ptb.UPSTREAM_URL,
            disable_shuffling=True,  # A language model reads the lines in their order.
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        if self.folder is not None:
            lines = read_ptb_lines(self.folder)
        else:
            if not ptb.is_reachable(ptb.UPSTREAM_URL):
                raise UserError(
                    f"{ptb.UPSTREAM_URL} does not answer: put ptb.train.txt, ptb.valid.txt and ptb.test.txt "
                    f"into a folder and name it"
                )
            archive = dl_manager.download(ptb.UPSTREAM_URL)
            with tempfile.TemporaryDirectory() as folder:
                lines = read_ptb_lines(ptb.extract_ptb(archive, folder))
        return {split: self._generate_examples(lines[split]) for split in SPLITS}

    def _generate_examples(self, lines: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
        for number, line in enumerate(lines):
            yield number, {"text": line}


def read_ptb_lines(folder: str | os.PathLike[str]) -> dict[str, list[str]]:
    """The lines of the three splits, once their counts agree with the published ones.

    Raises:
      UserError: as `dynskip_jax.data.ptb.read_ptb`.
    """
    prefix = ptb.PREFIX if ptb.has_ptb_files(folder) else None
    paths: dict[str, Path] = find_split_files(folder, prefix=prefix)
    lines = {split: read_lines(path) for split, path in paths.items()}
    ptb.check_counts(make_corpus(ptb.NAME, lines, str(folder)).sizes, str(folder))
    return lines
