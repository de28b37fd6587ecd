"""What the TFDS builders of this package share: their datasets are made on this machine."""

import os
from typing import Any

from dynskip_jax.extras import needs

with needs("experiments"):
    import tensorflow_datasets as tfds


class LocalInfo(tfds.core.DatasetInfo):
    """Information that no server has."""

    def initialize_from_bucket(self) -> None:
        """Do nothing: TFDS would make a temporary folder, ask its server, and leave the folder behind."""


class LocalBuilder(tfds.core.GeneratorBasedBuilder):
    """A builder that verifies its own input.

    Args:
        data_dir: the TFDS directory; None takes TFDS's own.
        file_format: of the records.
        kwargs: of `tfds.core.GeneratorBasedBuilder`.
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
