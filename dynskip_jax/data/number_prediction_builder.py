"""Define the TFDS builder of number prediction, with a thousand examples per record."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dynskip_jax.data import number_prediction as task
from dynskip_jax.data.local_builder import LocalBuilder, LocalInfo
from dynskip_jax.extras import needs

with needs("experiments"):
    import tensorflow_datasets as tfds

# Writing and reading with one example per record is a hundred times slower.
EXAMPLES_PER_RECORD = 1000


class NumberPredictionConfig(tfds.core.BuilderConfig):
    """The TFDS config that determines the examples.

    Args:
      length: Number of symbols in a row, from 11 to 501.
      seed: Random seed of the examples.
      sizes: Number of examples of "train", "dev" and "test".
    """

    def __init__(self, length: int, seed: int = 0, sizes: Mapping[str, int] = task.DEFAULT_SIZES):
        hops = task.num_hops(length)
        super().__init__(
            name=task.config_name(length, seed, sizes),
            version=task.VERSION,
            description=f"{length} digits, label after {hops} hop{'s' if hops > 1 else ''}, seed {seed}.",
        )
        self.length, self.seed, self.sizes = length, seed, sizes
        # uint8, or uint16 if there are more than 256 symbols.
        self.dtype = np.min_scalar_type(task.num_symbols(length) - 1)


class NumberPrediction(LocalBuilder):
    """TFDS builder of number prediction, with the splits train, dev and test.

    A record has n <= 1,000 examples: digits (n, length) and labels (n,).
    """

    VERSION = tfds.core.Version(task.VERSION)
    BUILDER_CONFIGS = [NumberPredictionConfig(length) for length in task.PAPER_LENGTHS]  # noqa: RUF012

    def _info(self) -> tfds.core.DatasetInfo:
        config = self.builder_config
        return LocalInfo(
            builder=self,
            description="Predict the digit that the last digit points to (Gui et al. 2019).",
            features=tfds.features.FeaturesDict(
                {
                    "digits": tfds.features.Tensor(shape=(None, config.length), dtype=config.dtype),
                    "labels": tfds.features.Tensor(shape=(None,), dtype=np.uint8),
                }
            ),
            disable_shuffling=True,  # The order is already random, and the same on all machines.
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, np.ndarray]]]]:
        del dl_manager
        return {split: self._generate_examples(split) for split in task.SPLITS}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        config = self.builder_config
        digits, labels = task.generate(
            config.length, config.sizes[split], config.seed, task.SPLITS.index(split)
        )
        digits, labels = digits.astype(config.dtype), labels.astype(np.uint8)
        for start in range(0, len(digits), EXAMPLES_PER_RECORD):
            part = slice(start, start + EXAMPLES_PER_RECORD)
            yield start, {"digits": digits[part], "labels": labels[part]}


def make_builder(
    directory: str | os.PathLike[str], length: int, seed: int, sizes: Mapping[str, int]
) -> NumberPrediction:
    """Return the builder of these examples in the TFDS directory `directory`."""
    name = task.config_name(length, seed, sizes)
    predefined = name in NumberPrediction.builder_configs
    # TFDS refuses a second config with the name of a predefined one.
    config = name if predefined else NumberPredictionConfig(length, seed, sizes)
    return NumberPrediction(data_dir=directory, config=config)
