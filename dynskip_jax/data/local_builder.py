"""Define the base classes of this package's TFDS builders, whose data sets are made on the user's machine."""

import os
from typing import Any

from dynskip_jax.extras import needs

with needs("experiments"):
    import tensorflow_datasets as tfds


class LocalInfo(tfds.core.DatasetInfo):
    """Information about a data set that is not on TFDS's server."""

    def initialize_from_bucket(self) -> None:
        """Do nothing: TFDS's version queries a server and leaves a temporary folder behind."""


class LocalBuilder(tfds.core.GeneratorBasedBuilder):
    """A TFDS builder that does not use TFDS's checksums: its subclasses verify their own input.

    Args:
        data_dir: The TFDS directory; None uses that of TFDS.
        file_format: File format of the records.
        kwargs: Arguments of `tfds.core.GeneratorBasedBuilder`.
    """

    # TFDS's look-up of checksums needs importlib_resources, which it does not declare
    # (tensorflow/datasets#11212).
    url_infos = None

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        file_format: str = "array_record",
        **kwargs: Any,
    ):
        super().__init__(data_dir=data_dir, file_format=file_format, **kwargs)
