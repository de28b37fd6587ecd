"""Compute and print confusion matrices and macro F1."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int


def confusion_matrix(
    truth: Int[np.ndarray, " examples"], predicted: Int[np.ndarray, " examples"], num_classes: int
) -> Int[np.ndarray, "classes classes"]:
    """Return the number of examples of each true class (rows) predicted as each class (columns).

    Args:
        truth: True class of each example.
        predicted: Predicted class of each example.
        num_classes: Number of classes.
    """
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    return counts


def f1_of_classes(confusion: Int[np.ndarray, "classes classes"]) -> np.ndarray:
    """Return the F1 of each class, in [0, 1]; NaN for a class that is never the true or the predicted one."""
    correct = np.diag(confusion).astype(float)
    both = confusion.sum(axis=0) + confusion.sum(axis=1)
    return np.divide(2 * correct, both, out=np.full(len(correct), np.nan), where=both > 0)


def macro_f1(confusion: Int[np.ndarray, "classes classes"]) -> float:
    """Return the mean F1 over the classes that occur as true or predicted class; 0 without examples."""
    scores = f1_of_classes(confusion)
    return float(np.nanmean(scores)) if np.isfinite(scores).any() else 0.0


def merge_rare(
    confusion: Int[np.ndarray, "classes classes"], classes: Sequence[str], most: int
) -> tuple[Int[np.ndarray, "kept kept"], tuple[str, ...]]:
    """Merge the least frequent true classes into one, and return the new matrix and its class names.

    The merged class comes last. The other classes keep their order.

    Args:
        confusion: Confusion matrix.
        classes: Name of each class.
        most: Number of rows to return. Nothing is merged if there are at most this many classes.
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
    """Format the matrix as lines of text: one row for each true class, with its F1 at the end."""
    scores = f1_of_classes(confusion)
    heading = ["truth \\ predicted", *classes, "F1"]
    rows = [
        [name, *map(str, counts), "" if np.isnan(score) else f"{score:.2%}"]
        for name, counts, score in zip(classes, confusion.tolist(), scores, strict=True)
    ]
    return table_text([heading, *rows])


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Format rows of cells as lines of text; the first column is left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
