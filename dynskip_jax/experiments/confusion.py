"""Show which classes or tags a trained model confuses: a picture in the run folder, and a logged table."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from dynskip_jax.analysis import plots
from dynskip_jax.analysis import statistics as matrices
from dynskip_jax.spec import ModelSpec

logger = logging.getLogger(__name__)

_MOST_CLASSES = 20  # rows of the matrix; rarer classes are merged into one


def show_confusion(
    matrix: Int[np.ndarray, "classes classes"],
    classes: Sequence[str],
    folder: Path,
    spec: ModelSpec,
    member: int,
    *,
    split: str,
    what: str = "classes",
) -> None:
    """Draw and log a confusion matrix of one of the models that were trained together.

    Args:
        matrix: Number of examples (or words) of the row's class that are predicted as the column's class.
        classes: Name of each row's class.
        folder: Folder in which `confusion.png` is written.
        spec: The model's specification.
        member: Index of the model among those trained together, which determines its seed.
        split: Name of the split that was predicted.
        what: Word for the rows in the title.
    """
    matrix, classes = matrices.merge_rare(matrix, classes, _MOST_CLASSES)
    seed = spec.all_seeds[member]
    title = f"{spec.name}: predicted {what} on {split}, seed {seed}"
    plots.confusion(matrix, classes, folder / "confusion.png", title)
    logger.info("%s: confusion on %s, seed %d", spec.name, split, seed)
    log_lines(matrices.confusion_text(matrix, classes))


def log_lines(text: str) -> None:
    """Log each line of a table."""
    for line in text.splitlines():  # a record is one line
        logger.info("%s", line)
