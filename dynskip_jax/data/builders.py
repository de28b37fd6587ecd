"""Keep records as TFDS data sets, and read them, without noise and without TensorFlow."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dynskip_jax.data.files import NotAvailable, is_prepared
from dynskip_jax.errors import UserError, needs

with needs("experiments"):
    import tensorflow_datasets as tfds

Records = Mapping[str, Iterable[Mapping[str, Any]]]  # of each split
Features = Mapping[str, type]  # str is a text


class _Info(tfds.core.DatasetInfo):
    """Information about a data set that is not on TFDS's server."""

    def initialize_from_bucket(self) -> None:
        """Do nothing: TFDS's version queries a server and leaves a temporary folder behind."""


class Builder(tfds.core.GeneratorBasedBuilder):
    """A TFDS builder of the records that a function returns, in their order."""

    # TFDS's look-up of checksums needs importlib_resources, which it does not declare
    # (tensorflow/datasets#11212).
    url_infos = None

    def __init__(
        self,
        directory: Path,
        name: str,
        version: str,
        features: Features,
        records: Callable[[], Records],
    ):
        self.name, self.VERSION = name, tfds.core.Version(version)
        self._features, self._records = features, records
        super().__init__(data_dir=directory, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            name: tfds.features.Text() if dtype is str else tfds.features.Scalar(dtype=dtype)
            for name, dtype in self._features.items()
        }
        return _Info(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Any]]]:
        return {
            split: self._generate_examples(records) for split, records in self._records().items()
        }

    def _generate_examples(self, records: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        yield from enumerate(records)


def kept_records(
    directory: Path, name: str, version: str, features: Features, records: Callable[[], Records]
) -> dict[str, list[dict[str, Any]]]:
    """Return the records of each split of a data set of TFDS, which `records` makes if it is not
    there.
    """
    folder, arguments = directory / name / version, (directory, name, version, features, records)
    if not is_prepared(folder):
        try:
            with tempfile.TemporaryDirectory() as downloads, _quietly():
                Builder(*arguments).download_and_prepare(download_dir=downloads)
        except Exception as error:
            if not is_prepared(folder):  # no other process has prepared it in the meantime
                raise NotAvailable(
                    f"its download failed: {' '.join(str(error).split())[:200]}"
                ) from error
    try:
        with _quietly():
            sources = Builder(*arguments).as_data_source()
            read = {
                split: source.__getitems__([*range(len(source))])
                for split, source in sources.items()
            }
        # ArrayRecord reads some truncated files without an error, as records without content.
        if not read or any(
            value is None for own in read.values() for one in own for value in one.values()
        ):
            raise ValueError("it has empty records, or no splits")
    # TFDS, protobuf and ArrayRecord raise different errors for damaged files; the remedy is always
    # the same.
    except Exception as error:
        line = " ".join(str(error).split())[:200] or type(error).__name__
        problem = f"the prepared dataset in {folder} is damaged ({line}): delete that folder and run again"
        raise UserError(problem) from error
    return read


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress printed output, progress bars, and log messages up to warnings; let exceptions
    pass.
    """
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
