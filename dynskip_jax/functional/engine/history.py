"""States over time: how rows of them are read at a step, and how gradients are added to rows.

A history is one array of the state over time, oldest first, (K + time, batch, hidden): the K states
before the first step, then one state per step. State(t-k) is row t + K - k, and slot s,
State(t-1-s), is row t + K - 1 - s.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from dynskip_jax.functional.sharding import vary_along, varying_axes, zeros_like_batch


def oldest_first(
    slots: Float[Array, "batch K hidden"], first: Bool[Array, " batch"] | None = None
) -> Float[Array, "batch K hidden"]:
    """Return the slots of a carry, newest first, in the order of a history.

    Where `first` is True, the state that enters the first step is forgotten after it
    (`TimeSkip.forgets_carried`): the oldest state replaces it.
    """
    if first is not None and slots.shape[1] > 1:
        newest = jnp.where(first[:, None, None], slots[:, -1:], slots[:, :1])
        slots = jnp.concatenate([newest, slots[:, 1:]], axis=1)
    return jnp.flip(slots, axis=1)


# Reads of a history at one step, and their transposes. On a CPU, XLA copies an array that is
# written while an earlier version is still read. So a step writes first and then reads the new
# version: `write_first` in the forward loop; in the backward loop each addition also returns the
# row State(t-1), which the next iteration needs.


def at(array: Array, row: Int[Array, ""] | int) -> Array:
    """Return one row of an array."""
    return lax.dynamic_index_in_dim(array, row, axis=0, keepdims=False)


def write(array: Array, row: Int[Array, ""] | int, value: Array) -> Array:
    """Return the array with one row replaced."""
    return lax.dynamic_update_index_in_dim(array, value, row, axis=0)


def write_first(array: Array, row: Int[Array, ""] | int, value: Array) -> Array:
    """Return the array with one row replaced and zeros in the next; later reads do not copy it.

    XLA computes a write of one row again inside its readers, which thus read the old version. It
    does not do that for two rows, an update with as many axes larger than 1 as the array.
    """
    two_rows = jnp.pad(value[None], [(0, 1), *[(0, 0)] * value.ndim])
    return lax.dynamic_update_slice_in_dim(array, two_rows, row, axis=0)


def overwrite(
    arrays: Sequence[Array], rows: Mapping[int, Array], t: Int[Array, ""], ahead: int
) -> tuple[list[Array], list[Array]]:
    """Replace row t of the arrays that `rows` names; return all arrays, and their rows t + `ahead`.

    The next iteration needs these rows. On a CPU they are read here for two reasons: XLA copies an
    array that a loop writes while its old version is read, and a kernel that also reads a row by
    its index computes activations without vector instructions.
    """
    arrays = list(arrays)
    for i, row in rows.items():
        arrays[i] = write(arrays[i], t, row)
    return arrays, [at(array, t + ahead) for array in arrays]


def read_window(history: Float[Array, "rows batch hidden"], t: Int[Array, ""], K: int) -> Array:
    """Return the K states before step t, oldest first, (K, batch, hidden)."""
    return lax.dynamic_slice_in_dim(history, t, K, axis=0)


def add_window(
    history: Float[Array, "rows batch hidden"], t: Int[Array, ""], d: Float[Array, "K batch hidden"]
) -> tuple[Array, Array]:
    """Add `d` to the K states before step t; return the history and its row State(t-1)."""
    window = read_window(history, t, d.shape[0]) + d
    history = lax.dynamic_update_slice_in_dim(history, window, t, axis=0)
    # XLA would copy the history if the sum were still read after it has been written.
    return history, at(history, t + d.shape[0] - 1)


# Rows that differ between examples are gathered and scattered with the batch as an axis of the
# operation, so that a sharded batch stays on its devices.
_IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def read_slots(
    history: Float[Array, "rows batch hidden"],
    t: Int[Array, ""],
    K: int,
    slot: Int[Array, "batch *n"],
) -> Float[Array, "batch *n hidden"]:
    """Return State(t-1-slot), for one slot of each example or for n."""
    row = t + K - 1 - slot
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(row.ndim,),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        operand_batching_dims=(1,),
        start_indices_batching_dims=(0,),
    )
    return lax.gather(history, row[..., None], numbers, (1, 1, history.shape[2]), mode=_IN_BOUNDS)


def add_slots(
    history: Float[Array, "rows batch hidden"],
    t: Int[Array, ""],
    K: int,
    slot: Int[Array, "batch *n"],
    d: Array,
) -> tuple[Array, Array]:
    """Add `d` to State(t-1-slot), see `read_slots`; return the history and its row State(t-1)."""
    row = t + K - 1 - slot
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(row.ndim,),
        inserted_window_dims=(0,),
        scatter_dims_to_operand_dims=(0,),
        operand_batching_dims=(1,),
        scatter_indices_batching_dims=(0,),
    )
    # Several slots of an example may be the same.
    options = dict(unique_indices=slot.ndim == 1, mode=_IN_BOUNDS)
    history = lax.scatter_add(history, row[..., None], d, numbers, **options)
    return history, at(history, t + K - 1)


def read_slots_of_all(
    history: Float[Array, "rows batch hidden"], K: int, slot: Int[Array, "time batch"]
) -> Float[Array, "time batch hidden"]:
    """Return State(t-1-slot) of all steps t at once."""
    time = slot.shape[0]
    rows = jnp.arange(time, dtype=slot.dtype)[:, None] + K - 1 - slot
    return jnp.take_along_axis(history, rows[..., None], axis=0, mode="promise_in_bounds")


def average(
    weights: Float[Array, "batch K"], history: Float[Array, "rows batch hidden"], t: Int[Array, ""]
) -> Float[Array, "batch hidden"]:
    """Return the sum of the K states before step t, times their weights, newest first."""
    share = shares(weights)

    # Row t of a history is the oldest state of the window before step t.
    def at_once(share, history, t):
        return jnp.sum(share * read_window(history, t, share.shape[0]), axis=0)

    def one_by_one(share, history, t):
        def add(i, total):
            return total + at(share, i) * at(history, t + i)

        return lax.fori_loop(1, share.shape[0], add, share[0] * at(history, t))

    # CPU: XLA would write the K products to memory. A GPU would launch a kernel for each state of a
    # loop over K.
    return lax.platform_dependent(share, history, t, cpu=one_by_one, default=at_once)


def average_adjoint(histories: Any, t: Int[Array, ""], d: Any, K: int) -> Float[Array, "batch K"]:
    """Return the gradient of the weights of `average`, summed over the arrays of the state."""
    pairs = list(zip(histories, d, strict=True))

    def at_once(pairs, t):
        return sum(jnp.sum(read_window(a, t, K) * d[None], axis=-1) for a, d in pairs)

    def one_by_one(pairs, t):
        def compare(i, out):
            return write(out, i, sum(jnp.sum(at(a, t + i) * d, axis=-1) for a, d in pairs))

        d = pairs[0][1]
        zeros = zeros_like_batch(d, (d.shape[0], K), d.dtype).T
        return lax.fori_loop(0, K, compare, vary_along(zeros, varying_axes(pairs)))

    # CPU: see `average`.
    d_weights_KB = lax.platform_dependent(pairs, t, cpu=one_by_one, default=at_once)
    return jnp.flip(d_weights_KB, axis=0).T


def shares(weights: Float[Array, "batch K"]) -> Float[Array, "K batch one"]:
    """Return weights, newest first, in the order of a window, with an axis for features."""
    return jnp.flip(weights, axis=1).T[..., None]


def living(
    window: Float[Array, "K *lead hidden"], alive: Int[Array, "*lead"] | None, initial: Any
) -> Array:
    """Return a window, oldest first, with `initial` in the slots before the present sequence."""
    if alive is None:
        return window
    slots = jnp.arange(window.shape[0])[::-1].reshape(-1, *(1,) * (window.ndim - 1))
    return jnp.where(slots < alive[None, ..., None], window, initial[None])


def lengths_of(valid: Bool[Array, "time batch"] | None, dtype: Any) -> Int[Array, " batch"] | None:
    """Return the number of valid steps of each sequence; None if all are."""
    if valid is None:
        return None
    return valid.sum(axis=0, dtype=dtype)


def last_rows(
    history: Shaped[Array, "rows batch *rest"], seq_lengths: Int[Array, " batch"] | None, K: int
) -> Shaped[Array, "K batch *rest"]:
    """Return the last K rows of each sequence, of which a full row has all."""
    if seq_lengths is None:
        return history[history.shape[0] - K :]
    # A sequence of n steps ends with row K - 1 + n, so its last K rows begin at n.
    rows = jnp.arange(K)[:, None] + seq_lengths[None, :]
    return jnp.take_along_axis(
        history, rows.reshape(*rows.shape, *(1,) * (history.ndim - 2)), axis=0
    )
