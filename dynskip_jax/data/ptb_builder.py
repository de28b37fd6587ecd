"""Define the TFDS builder of the Penn Treebank corpus, with one record per line of text."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from dynskip_jax.data import ptb
from dynskip_jax.data.local_builder import LocalBuilder, LocalInfo
from dynskip_jax.data.text import SPLITS
from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs

with needs("experiments"):
    import tensorflow_datasets as tfds


class Ptb(LocalBuilder):
    """TFDS builder of Mikolov's Penn Treebank text, with the splits train, valid and test.

    Each record has one feature, "text": one line in UTF-8.

    Args:
      folder: Folder with the three text files, as for `dynskip_jax.data.ptb.read_ptb`; None downloads the
        upstream archive.
      kwargs: Keyword arguments of `LocalBuilder`.
    """

    VERSION = tfds.core.Version(ptb.VERSION)
    RELEASE_NOTES = {ptb.VERSION: "Text as published, one record per line."}  # noqa: RUF012

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, **kwargs: Any):
        self.folder = folder
        super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        return LocalInfo(
            builder=self,
            description="Penn Treebank, lower case, numbers as N, rare words as <unk>.",
            features=tfds.features.FeaturesDict({"text": tfds.features.Text()}),
            homepage=ptb.UPSTREAM_URL,
            disable_shuffling=True,  # A language model reads the lines in order.
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        if self.folder is not None:
            lines = ptb.read_published_lines(self.folder)
        else:
            if not ptb.is_reachable(ptb.UPSTREAM_URL):
                raise UserError(
                    f"{ptb.UPSTREAM_URL} does not answer: put ptb.train.txt, ptb.valid.txt and ptb.test.txt "
                    f"into a folder and name it"
                )
            archive = dl_manager.download(ptb.UPSTREAM_URL)
            with tempfile.TemporaryDirectory() as folder:
                lines = ptb.read_published_lines(ptb.extract_ptb(archive, folder))
        return {split: self._generate_examples(lines[split]) for split in SPLITS}

    def _generate_examples(self, lines: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
        for number, line in enumerate(lines):
            yield number, {"text": line}
