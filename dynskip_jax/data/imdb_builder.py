"""Define the TFDS builder of the Large Movie Review Dataset, with one record per review."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dynskip_jax.data import imdb
from dynskip_jax.data.local_builder import LocalBuilder, LocalInfo
from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs

with needs("experiments"):
    import tensorflow_datasets as tfds


class Imdb(LocalBuilder):
    """The labelled reviews: splits train and test, features "text" (UTF-8) and "label" (1 is positive).

    Args:
      folder: Folder with the reviews (see `dynskip_jax.data.imdb.read_imdb`); None uses the upstream archive.
      kwargs: Arguments of `LocalBuilder`.
    """

    VERSION = tfds.core.Version(imdb.VERSION)
    RELEASE_NOTES = {imdb.VERSION: "Labelled reviews as published."}  # noqa: RUF012

    def __init__(self, *, folder: str | os.PathLike[str] | None = None, **kwargs: Any):
        self.folder = folder
        super().__init__(**kwargs)

    def _info(self) -> tfds.core.DatasetInfo:
        return LocalInfo(
            builder=self,
            description="Movie reviews, positive (1) or negative (0) (Maas et al. 2011).",
            features=tfds.features.FeaturesDict(
                {"text": tfds.features.Text(), "label": tfds.features.Scalar(dtype=np.int32)}
            ),
            homepage=imdb.UPSTREAM_URL,
            disable_shuffling=True,  # Training shuffles; the choice of dev depends on the order.
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        if self.folder is not None:
            reviews = imdb.read_imdb(self.folder)
        else:
            if not imdb.is_reachable(imdb.UPSTREAM_URL):
                raise UserError(f"{imdb.UPSTREAM_URL} does not answer: name a folder that has the reviews")
            archive = dl_manager.download(imdb.UPSTREAM_URL)
            with tempfile.TemporaryDirectory() as folder:
                reviews = imdb.read_imdb(imdb.unpack_imdb(archive, folder))
        return {split: self._generate_examples(reviews[split]) for split in imdb.SPLITS}

    def _generate_examples(self, reviews: Sequence[imdb.Review]) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, review in enumerate(reviews):
            yield number, {"text": review.text, "label": review.label}
