"""Confusion matrices: how often each class is predicted where another one is right, and macro F1."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


def confusion_matrix(
    truth: Int[np.ndarray, " examples"], predicted: Int[np.ndarray, " examples"], num_classes: int
) -> Int[np.ndarray, "classes classes"]:
    """Return how many examples of each class (rows) are predicted as each class (columns)."""
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    return counts


def f1_of_classes(confusion: Int[np.ndarray, "classes classes"]) -> np.ndarray:
    """Return the F1 of each class, from 0 to 1; NaN of a class that is never right and never predicted."""
    correct = np.diag(confusion).astype(float)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    return np.divide(2 * correct, both, out=np.full(len(correct), np.nan), where=both > 0)


def macro_f1(confusion: Int[np.ndarray, "classes classes"]) -> float:
    """Return the mean F1 over the classes that are right or predicted somewhere; 0 without any example."""
    scores = f1_of_classes(confusion)
    return float(np.nanmean(scores)) if np.isfinite(scores).any() else 0.0


def merge_rare(
    confusion: Int[np.ndarray, "classes classes"], classes: Sequence[str], most: int
) -> tuple[Int[np.ndarray, "kept kept"], tuple[str, ...]]:
    """Return the matrix and names of the most frequent true classes, the other classes merged into one.

    Args:
        confusion: the matrix.
        classes: the name of each row.
        most: the number of rows to return. With as many classes or fewer, nothing changes.
    """
    if len(classes) <= most:
        return confusion, tuple(classes)
    frequent = np.argsort(-confusion.sum(axis=1), kind="stable")[: most - 1]
    group = np.full(len(classes), most - 1)
    group[np.sort(frequent)] = np.arange(most - 1)
    merged = np.zeros((most, most), np.int64)
    np.add.at(merged, (group[:, None], group[None, :]), confusion)
    return merged, (*(classes[i] for i in np.sort(frequent)), f"{len(classes) - most + 1} others")


def confusion_text(confusion: Int[np.ndarray, "classes classes"], classes: Sequence[str]) -> str:
    """Return the matrix as lines of text: a row for each true class, with its F1 at the end."""
    scores = f1_of_classes(confusion)
    heading = ["truth \\ predicted", *classes, "F1"]
    rows = [
        [name, *map(str, counts), "" if np.isnan(score) else f"{score:.2%}"]
        for name, counts, score in zip(classes, confusion.tolist(), scores, strict=True)
    ]
    return table_text([heading, *rows])


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Return rows of cells as lines of text, the first column aligned left and the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
