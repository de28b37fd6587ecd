"""The rows of a batch: their number, copies of them, and which of them and of their steps count."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch


def num_rows(batch: Batch) -> int:
    """Return the number of rows in a batch."""
    return jax.tree.leaves(batch.inputs)[0].shape[0]


def repeat_rows(tree: PyTree, times: int) -> PyTree:
    """Return the tree with every row repeated `times` times; the copies of a row are adjacent."""
    if times == 1:
        return tree
    return jax.tree.map(lambda leaf: jnp.repeat(leaf, times, axis=0), tree)


def where_counted(batch: Batch, time: int) -> tuple[Bool[Array, " rows"], Bool[Array, "rows time"]]:
    """Return which rows and steps count: those inside a sequence that no mask excludes."""
    if batch.seq_lengths is None:
        steps = jnp.ones((num_rows(batch), time), bool)
    else:
        steps = F.length_mask(batch.seq_lengths, time)
    mask = batch.mask
    if mask is None:
        return jnp.ones(len(steps), bool), steps
    if mask.ndim == 1:
        return mask, steps & mask[:, None]
    return mask.any(axis=1), steps & mask
