"""Define the TFDS builders, and prepare and read their data sets without noise and without TensorFlow."""

import contextlib
import io
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from dynskip_jax.data import corpora
from dynskip_jax.data import number_prediction as task
from dynskip_jax.data.files import PathLike
from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs

with needs("experiments"):
    import tensorflow_datasets as tfds

# Writing and reading number prediction with one example per record is a hundred times slower.
_PER_RECORD = 1000
Records = Mapping[str, Iterable[dict[str, Any]]]


class _Info(tfds.core.DatasetInfo):
    """Information about a data set that is not on TFDS's server."""

    def initialize_from_bucket(self) -> None:
        """Do nothing: TFDS's version queries a server and leaves a temporary folder behind."""


class _Builder(tfds.core.GeneratorBasedBuilder):
    """A builder of records in their order, from the corpus in `folder`; None downloads it."""

    # TFDS's look-up of checksums needs importlib_resources, which it does not declare
    # (tensorflow/datasets#11212).
    url_infos = None
    features: Mapping[str, Any]

    def __init__(self, *, folder: PathLike | None = None, data_dir: PathLike | None = None, **kwargs: Any):
        self.folder = folder
        super().__init__(data_dir=data_dir, file_format="array_record", **kwargs)

    def records(self) -> Records:
        """Return the records of each split."""
        raise NotImplementedError

    def _info(self) -> tfds.core.DatasetInfo:
        features = tfds.features.FeaturesDict(self.features)
        return _Info(builder=self, description=self.__doc__, features=features, disable_shuffling=True)

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {split: self._generate_examples(records) for split, records in self.records().items()}

    def _generate_examples(self, records: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(records)


class Ptb(_Builder):
    """Penn Treebank, lower case, numbers as N, rare words as <unk> (Mikolov et al. 2010)."""

    VERSION = tfds.core.Version(corpora.PTB_VERSION)
    features = {"text": tfds.features.Text()}  # noqa: RUF012

    @override
    def records(self) -> Records:
        return {
            split: ({"text": line} for line in lines)
            for split, lines in corpora.read_ptb(self.folder).items()
        }


class Imdb(_Builder):
    """Movie reviews, positive (1) or negative (0) (Maas et al. 2011)."""

    VERSION = tfds.core.Version(corpora.IMDB_VERSION)
    features = {"text": tfds.features.Text(), "label": tfds.features.Scalar(dtype=np.int32)}  # noqa: RUF012

    @override
    def records(self) -> Records:
        return {
            split: ({"text": review.text, "label": int(review.label)} for review in reviews)
            for split, reviews in corpora.read_imdb(self.folder).items()
        }


class NumberPrediction(_Builder):
    """Predict the digit that the last digit points to (Gui et al. 2019); 1,000 examples per record."""

    VERSION = tfds.core.Version(task.VERSION)

    def __init__(self, length: int, sizes: Mapping[str, int], data_dir: PathLike):
        self.arguments = length, 0, sizes
        digits = tfds.features.Tensor(shape=(None, length), dtype=np.int32)
        self.features = {"digits": digits, "labels": tfds.features.Tensor(shape=(None,), dtype=np.int32)}
        config = tfds.core.BuilderConfig(name=task.config_name(length, sizes), version=task.VERSION)
        super().__init__(data_dir=data_dir, config=config)

    @override
    def records(self) -> Records:
        splits = task.generate_splits(*self.arguments)
        return {split: self._parts(digits, labels) for split, (digits, labels) in splits.items()}

    def _parts(self, digits: np.ndarray, labels: np.ndarray) -> Iterator[dict[str, Any]]:
        for start in range(0, len(digits), _PER_RECORD):
            part = slice(start, start + _PER_RECORD)
            yield {"digits": digits[part], "labels": labels[part]}


def prepare(builder: _Builder) -> None:
    """Write a data set to its TFDS directory, without output."""
    with tempfile.TemporaryDirectory() as downloads, _quietly():
        builder.download_and_prepare(download_dir=downloads)


def read_splits(make_builder: Callable[[], _Builder], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return all records of all splits of the prepared data set in `folder`, in order."""
    try:
        with _quietly():
            sources = make_builder().as_data_source()
            records = {split: source.__getitems__([*range(len(source))]) for split, source in sources.items()}
        if not records:
            raise ValueError("it has no splits")
        # ArrayRecord reads some truncated files without an error, as records without content.
        if any(value is None for own in records.values() for example in own for value in example.values()):
            raise ValueError("it has empty records")
    # TFDS, protobuf and ArrayRecord raise different errors for damaged files; the remedy is always the same.
    except Exception as error:
        raise damaged(folder, error) from error
    return records


def damaged(folder: Path, reason: object) -> UserError:
    """Return the error for a prepared data set that is damaged."""
    line = " ".join(str(reason).split())[:200] or type(reason).__name__
    return UserError(
        f"the prepared dataset in {folder} is damaged ({line}): delete that folder and run again"
    )


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress printed output, progress bars, and log messages up to warnings; let exceptions pass."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
