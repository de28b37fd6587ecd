"""Operations on the rows of a batch: count or repeat them, and find the rows and steps that count."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch
from dynskip_jax.errors import UserError

PyTree = Any


def num_rows(batch: Batch) -> int:
    """Return the number of rows in a batch."""
    return jax.tree.leaves(batch.inputs)[0].shape[0]


def repeat_rows(tree: PyTree, times: int) -> PyTree:
    """Return the tree with every row repeated `times` times; the copies of a row are adjacent."""
    return tree if times == 1 else jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), tree)


def valid_steps(batch: Batch, time: int) -> Bool[Array, "rows time"] | None:
    """Return which steps are inside their sequence and not masked by a mask of steps; None if all are.

    A mask of rows, (rows,), is ignored here: rows that only fill a batch get weight 0 in the loss.
    """
    valid = None if batch.seq_lengths is None else F.length_mask(batch.seq_lengths, time)
    if batch.mask is None or batch.mask.ndim == 1:
        return valid
    return batch.mask if valid is None else valid & batch.mask


def where_counted(batch: Batch, time: int) -> tuple[Bool[Array, " rows"], Bool[Array, "rows time"]]:
    """Return which rows and which steps count."""
    shape = num_rows(batch), time
    valid, mask = valid_steps(batch, time), batch.mask
    steps = jnp.ones(shape, bool) if valid is None else valid
    if mask is None:
        return jnp.ones(shape[:1], bool), steps
    if mask.ndim == 2:
        return mask.any(axis=1), steps
    return mask, steps & mask[:, None]


def of_another_row(
    values: Shaped[Array, "rows time *rest"], batch: Batch, counted: Bool[Array, " rows"]
) -> Shaped[Array, "rows time *rest"]:
    """Return for each row the values of the next counted row; the last one gets those of the first.

    A row that is shorter than the batch is repeated.

    Args:
        values: Value of each step.
        batch: Batch with the length of each row.
        counted: Whether each row counts.

    Raises:
        UserError: If there is only one row.
    """
    if len(values) < 2:
        raise UserError(f"choices of another row need at least 2 rows, got {len(values)}")
    order = jnp.argsort(~counted, stable=True)  # counted rows first
    place = (jnp.argsort(order) + 1) % jnp.maximum(counted.sum(), 1)
    other, steps = order[place], jnp.arange(values.shape[1])[None]
    if batch.seq_lengths is not None:
        steps = steps % jnp.maximum(jnp.asarray(batch.seq_lengths)[other], 1)[:, None]
    return values[other[:, None], steps]
