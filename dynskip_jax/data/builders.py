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
_EXAMPLES_PER_RECORD = 1000
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
        del dl_manager
        return {split: self._generate_examples(records) for split, records in self.records().items()}

    def _generate_examples(self, records: Iterable[dict[str, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
        yield from enumerate(records)


class Ptb(_Builder):
    """Penn Treebank, lower case, numbers as N, rare words as <unk> (Mikolov et al. 2010)."""

    VERSION = tfds.core.Version(corpora.PTB_VERSION)
    features = {"text": tfds.features.Text()}  # noqa: RUF012

    @override
    def records(self) -> Records:
        lines = corpora.read_ptb_lines(self.folder)
        return {split: ({"text": line} for line in of_split) for split, of_split in lines.items()}


class Imdb(_Builder):
    """Movie reviews, positive (1) or negative (0) (Maas et al. 2011)."""

    VERSION = tfds.core.Version(corpora.IMDB_VERSION)
    features = {"text": tfds.features.Text(), "label": tfds.features.Scalar(dtype=np.int32)}  # noqa: RUF012

    @override
    def records(self) -> Records:
        reviews = corpora.read_imdb(self.folder)
        return {
            split: ({"text": review.text, "label": int(review.label)} for review in of_split)
            for split, of_split in reviews.items()
        }


class NumberPredictionConfig(tfds.core.BuilderConfig):
    """Length, seed and sizes of number prediction."""

    def __init__(self, length: int, seed: int = 0, sizes: Mapping[str, int] = task.DEFAULT_SIZES):
        name = task.config_name(length, seed, sizes)
        super().__init__(name=name, version=task.VERSION)
        self.length, self.seed, self.sizes = length, seed, sizes
        # uint8, or uint16 if there are more than 256 symbols.
        self.dtype = np.min_scalar_type(task.num_symbols(length) - 1)


class NumberPrediction(_Builder):
    """Predict the digit that the last digit points to (Gui et al. 2019); 1,000 examples per record."""

    VERSION = tfds.core.Version(task.VERSION)
    BUILDER_CONFIGS = [NumberPredictionConfig(length) for length in task.PAPER_LENGTHS]  # noqa: RUF012

    @property
    def features(self) -> Mapping[str, Any]:
        """Digits (n, length) and labels (n,) of n <= 1,000 examples."""
        digits = tfds.features.Tensor(
            shape=(None, self.builder_config.length), dtype=self.builder_config.dtype
        )
        return {"digits": digits, "labels": tfds.features.Tensor(shape=(None,), dtype=np.uint8)}

    @override
    def records(self) -> Records:
        config = self.builder_config
        splits = task.generate_splits(config.length, config.seed, config.sizes)
        return {split: self._parts(*of_split) for split, of_split in splits.items()}

    def _parts(self, digits: np.ndarray, labels: np.ndarray) -> Iterator[dict[str, Any]]:
        digits, labels = digits.astype(self.builder_config.dtype), labels.astype(np.uint8)
        for start in range(0, len(digits), _EXAMPLES_PER_RECORD):
            part = slice(start, start + _EXAMPLES_PER_RECORD)
            yield {"digits": digits[part], "labels": labels[part]}


def number_prediction(
    directory: PathLike, length: int, seed: int, sizes: Mapping[str, int]
) -> NumberPrediction:
    """Return the builder of these examples in the TFDS directory `directory`."""
    config: Any = task.config_name(length, seed, sizes)
    if config not in NumberPrediction.builder_configs:  # TFDS refuses a second config with a known name
        config = NumberPredictionConfig(length, seed, sizes)
    return NumberPrediction(data_dir=directory, config=config)


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
        for split, examples in records.items():
            # ArrayRecord reads some truncated files without an error, as records without content.
            if any(value is None for example in examples for value in example.values()):
                raise ValueError(f"its {split} split has empty records")
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
