"""The rows of a batch: how many there are, copies of each, and which of them and of their steps count."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Shaped

from dynskip_jax import functional as F
from dynskip_jax.data.batching import Batch
from dynskip_jax.errors import UserError

PyTree = Any


def num_rows(batch: Batch) -> int:
    """Returns how many rows a batch has."""
    return jax.tree.leaves(batch.inputs)[0].shape[0]


def repeat_rows(tree: PyTree, times: int) -> PyTree:
    """Returns every row `times` times, its copies one after the other."""
    return tree if times == 1 else jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), tree)


def valid_steps(batch: Batch, time: int) -> Bool[Array, "rows time"] | None:
    """Returns which steps are before the end of their sequence and not masked one by one; None where all are.

    Rows that only fill a batch are left to the weights of rows.
    """
    valid = None if batch.seq_lengths is None else F.length_mask(batch.seq_lengths, time)
    if batch.mask is None or batch.mask.ndim == 1:
        return valid
    return batch.mask if valid is None else valid & batch.mask


def where_counted(batch: Batch, time: int) -> tuple[Bool[Array, " rows"], Bool[Array, "rows time"]]:
    """Returns the rows and the steps that count."""
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
    """Returns what the next row that counts, or the first one, has at each step; a shorter row over and over.

    Args:
        values: of each step.
        batch: says how long each row is.
        counted: which rows count.

    Raises:
        UserError: there is one row.
    """
    if len(values) < 2:
        raise UserError(f"choices of another row need at least 2 rows, got {len(values)}")
    order = jnp.argsort(~counted, stable=True)  # those that count come first
    place = (jnp.argsort(order) + 1) % jnp.maximum(counted.sum(), 1)
    other, steps = order[place], jnp.arange(values.shape[1])[None]
    if batch.seq_lengths is not None:
        steps = steps % jnp.maximum(jnp.asarray(batch.seq_lengths)[other], 1)[:, None]
    return values[other[:, None], steps]
