"""Prepare data sets with TFDS, and read prepared ones, quietly and without TensorFlow."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dynskip_jax.errors import UserError, needs

with needs("experiments"):
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download.checksums import UrlInfo


Record = Mapping[str, Any]


class _Info(tfds.core.DatasetInfo):
    """Information about a data set that is not on TFDS's server."""

    def initialize_from_bucket(self) -> None:
        """Do nothing: TFDS's version queries a server and leaves a temporary folder behind."""


class _Builder(tfds.core.GeneratorBasedBuilder):
    """A TFDS builder that keeps the order of an archive, and the file format that needs no TF."""

    # TFDS's look-up of checksums needs importlib_resources, which it does not declare
    # (tensorflow/datasets#11212).
    url_infos = None

    def __init__(self, upstream: Any):
        self.name = upstream.name
        self.VERSION = tfds.core.Version(upstream.version)
        self._upstream = upstream
        if upstream.sha256 is not None:
            archive = Path(upstream.url).name
            self.url_infos = {upstream.url: UrlInfo(upstream.size, upstream.sha256, archive)}
        config = None
        if upstream.config:
            config = tfds.core.BuilderConfig(name=upstream.config, version=self.VERSION)
        super().__init__(data_dir=upstream.root, config=config, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        features = {}
        for name, kind in self._upstream.features.items():
            if kind is str:
                features[name] = tfds.features.Text()
            else:
                features[name] = tfds.features.ClassLabel(names=kind)
        features = tfds.features.FeaturesDict(features)
        return _Info(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, Record]]]:
        splits = self._upstream.records(Path(dl_manager.download(self._upstream.url)))
        return {split: self._generate_examples(records) for split, records in splits.items()}

    def _generate_examples(self, records: Iterable[Record]) -> Iterator[tuple[int, Record]]:
        yield from enumerate(records)


def prepare(upstream: Any) -> None:
    """Download the archive of an `Upstream`, and keep its records in the folder of TFDS."""
    with tempfile.TemporaryDirectory() as downloads, _quietly():
        _Builder(upstream).download_and_prepare(download_dir=downloads)


def read_prepared(folder: Path, splits: Sequence[str]) -> dict[str, list[Record]]:
    """Return the records of splits from a folder that TFDS has prepared."""
    try:
        with _quietly():
            builder = tfds.builder_from_directory(folder)
            found = {}
            for split in splits:
                source = builder.as_data_source(split)
                found[split] = source.__getitems__(range(len(source)))
        # ArrayRecord reads some truncated files without an error, as records without content.
        for records in found.values():
            if not records or any(None in record.values() for record in records):
                raise ValueError("it has empty records, or none")
    # TFDS, protobuf and ArrayRecord raise different errors for damaged files; the remedy is always
    # the same.
    except Exception as error:
        problem = f"the prepared dataset in {folder} cannot be read ({in_one_line(error)})"
        raise UserError(f"{problem}: delete that folder and run again") from error
    return found


def in_one_line(error: Exception) -> str:
    """Return the message of an error of TFDS, without line ends."""
    return " ".join(str(error).split())[:200] or type(error).__name__


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress what is printed, and log messages up to warnings; let exceptions pass."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
