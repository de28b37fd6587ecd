"""States over time: what a step reads of the last K, and where gradients of these reads are added.

A history is one array of the state over time, oldest first, (K + time, batch, hidden): the K states
before the first step, then one state per step. State(t-k) is row t + K - k, and slot s,
State(t-1-s), is row t + K - 1 - s. The windows of neighbouring steps overlap, so comparing them
with a query, or taking their mean, allocates no array of size (batch, time, K, hidden).
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

from dynskip_jax.functional.engine.sharding import (
    explicit_spec,
    match_batch,
    vary_along,
    varying_axes,
    zeros_like_batch,
)
from dynskip_jax.functional.transitions.base import Transition

_BLOCK = 64  # smallest number of steps per block in `Window.compare`


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("rows", "alive", "initial"),
    meta_fields=("max_skip", "has_time"),
)
@dataclasses.dataclass(frozen=True)
class Window:
    """The last K states before one step, or before each of several steps.

    Attributes:
        rows: States, oldest first. For one step: h(t-K), …, h(t-1), (*batch, K, hidden). For
            several steps: the K states before the first one, then those of all steps except the
            last, (batch, K + time - 1, hidden).
        max_skip: K.
        has_time: Whether there are several steps. Results then have a time axis after the batch.
        alive: Number of slots that belong to the present sequence of a packed row, (*steps,). The
            other slots contain `initial`. None if no row is packed.
        initial: State in the other slots, (*batch, hidden).
    """

    rows: Float[Array, "*batch rows hidden"]
    max_skip: int
    has_time: bool = False
    alive: Int[Array, "*steps"] | None = None
    initial: Float[Array, "*batch hidden"] | None = None

    @classmethod
    def of_slots(cls, slots: Float[Array, "*batch K hidden"]) -> "Window":
        """Return the window of the slots of a carry, which are newest first."""
        return cls(jnp.flip(slots, axis=-2), slots.shape[-2])

    @property
    def dtype(self) -> Any:
        """Dtype of the states."""
        return self.rows.dtype

    @property
    def previous(self) -> Float[Array, "*steps hidden"]:
        """Newest state, h(t-1)."""
        if self.has_time:
            newest = self.rows[:, self.max_skip - 1 :]
        else:
            newest = self.rows[..., -1, :]
        if self.alive is None:
            return newest
        return jnp.where((self.alive > 0)[..., None], newest, self._initial_of_steps)

    @property
    def slots(self) -> Float[Array, "*steps K hidden"]:
        """All K states, newest first."""
        if self.has_time:
            time = self.rows.shape[1] - self.max_skip + 1
            slots = self.rows[:, jnp.arange(time)[:, None] + jnp.arange(self.max_skip)[None, ::-1]]
        else:
            slots = jnp.flip(self.rows, axis=-2)
        if self.alive is None:
            return slots
        return jnp.where(self._is_alive[..., None], slots, self._initial_of_steps[..., None, :])

    @property
    def _initial_of_steps(self) -> Float[Array, "*steps_or_1 hidden"]:
        return self.initial[:, None] if self.has_time else self.initial

    @property
    def _is_alive(self) -> Bool[Array, "*steps K"]:
        return self._lives(np.arange(self.max_skip))

    def _lives(self, slots: np.ndarray | Int[Array, "*steps n"]) -> Bool[Array, "*steps n"]:
        """Return whether slots belong to the present sequence; the slots may be (n,)."""
        missing = self.alive.ndim + 1 - slots.ndim
        return slots.reshape((1,) * missing + slots.shape) < self.alive[..., None]

    @property
    def mean(self) -> Float[Array, "*steps hidden"]:
        """Mean of the K states."""
        if self.alive is not None:
            return self.slots.mean(-2)
        if self.has_time:
            return _window_sums(self.rows, self.max_skip) / self.max_skip
        return self.rows.mean(-2)

    def compare(self, query: Float[Array, "*steps hidden"]) -> Float[Array, "*steps K"]:
        """Return q · h(t-k) for k = 1..K, newest state first; `query` contains q of each step."""
        products = self._compare_rows(query)
        if self.alive is None:
            return products
        return jnp.where(self._is_alive, products, self._compare_initial(query))

    def _compare_initial(self, query: Float[Array, "*steps hidden"]) -> Float[Array, "*steps one"]:
        """Return the product of each query with the initial state: cheaper than to fill it in."""
        return jnp.sum(query * self._initial_of_steps, axis=-1, keepdims=True)

    def _compare_rows(self, query: Float[Array, "*steps hidden"]) -> Float[Array, "*steps K"]:
        """Return the product of each query with the K rows before its step, newest first."""
        if not self.has_time:
            return jnp.flip(jnp.einsum("...h,...kh->...k", query, self.rows), axis=-1)
        batch, time, hidden = query.shape
        K = self.max_skip
        block = max(K, _BLOCK)
        if not isinstance(time, int) or time <= 2 * block:
            return _band(query, self.rows, K)
        # Compare in blocks of steps, each with the rows of its block and of the next one. Memory
        # then grows linearly with time, not quadratically.
        count = -(-time // block)
        query = jnp.pad(query, ((0, 0), (0, count * block - time), (0, 0)))
        rows = jnp.pad(self.rows, ((0, 0), (0, (count + 1) * block - self.rows.shape[1]), (0, 0)))
        rows = rows.reshape(batch, count + 1, block, hidden)
        rows = jnp.concatenate([rows[:, :-1], rows[:, 1:]], axis=2)[:, :, : K + block - 1]
        of_blocks = (batch * count, -1, hidden)
        products = _band(query.reshape(of_blocks), rows.reshape(of_blocks), K)
        return products.reshape(batch, count * block, K)[:, :time]

    def compare_at(
        self, query: Float[Array, "*steps hidden"], slots: np.ndarray | Int[Array, "*steps n"]
    ) -> Float[Array, "*steps n"]:
        """Return q · State(t-1-slot) for n of the K slots, the same at all steps if (n,)."""
        products = self._compare_rows_at(query, slots)
        if self.alive is None:
            return products
        return jnp.where(self._lives(slots), products, self._compare_initial(query))

    def _compare_rows_at(
        self, query: Float[Array, "*steps hidden"], slots: np.ndarray | Int[Array, "*steps n"]
    ) -> Float[Array, "*steps n"]:
        newest = self.max_skip - 1
        if not self.has_time:
            rows = jnp.broadcast_to(newest - slots, (*query.shape[:-1], slots.shape[-1]))
            return jnp.einsum(
                "...h,...nh->...n", query, jnp.take_along_axis(self.rows, rows[..., None], -2)
            )
        if slots.ndim > 1:
            return jnp.take_along_axis(self._compare_rows(query), slots, axis=-1)
        starts = [newest - int(slot) for slot in slots]
        compared = (self.rows[:, start : start + query.shape[1]] for start in starts)
        return jnp.stack([jnp.sum(query * rows, axis=-1) for rows in compared], axis=-1)

    def observe(self, kind: str) -> Any:
        """Return the observation of a time skip, of a kind of `TimeSkip.observed`.

        It is one state, (*steps, hidden); for `slots` all states, (*steps, K, hidden); for `stored`
        the window.
        """
        if kind == "stored":
            return self
        return getattr(self, kind)


def _window_sums(
    rows: Float[Array, "batch rows hidden"], K: int
) -> Float[Array, "batch time hidden"]:
    """Return the sums of K neighbouring rows, from sums of 1, 2, 4, … rows, exact as pairwise."""
    time = rows.shape[1] - K + 1
    start = 0
    total = None
    size = 1
    # `rows` are sums of `size` rows. Those sizes that are binary digits of K add up to the window.
    while True:
        if K & size:
            part = rows[:, start : start + time]
            total = part if total is None else total + part
            start += size
        if 2 * size > K:
            return total
        rows = rows[:, :-size] + rows[:, size:]
        size *= 2


def _band(
    query: Float[Array, "batch time hidden"], rows: Float[Array, "batch rows hidden"], K: int
) -> Float[Array, "batch time K"]:
    """Return the product of each query with each of the K rows before its step, newest first."""
    batch, time = query.shape[:2]
    if batch == 0 or time == 0:
        return jnp.zeros((batch, time, K), query.dtype)
    # Multiply every query with every row. The K products to keep for step t start at column t.
    # Reshaping to rows that are one longer shifts row t left by t columns, so the products are
    # sliced without a gather.
    products = jnp.einsum("bth,brh->btr", query, rows)
    flat = jnp.pad(products.reshape(batch, -1), ((0, 0), (0, time)))
    return jnp.flip(flat.reshape(batch, time, -1)[..., :K], axis=-1)


def oldest_first(
    slots: Float[Array, "batch K hidden"], first: Bool[Array, " batch"] | None = None
) -> Float[Array, "batch K hidden"]:
    """Return the slots of a carry, newest first, as the K states before the steps after the first
    one.

    Where `first` is True, the state that enters the first step is forgotten after it
    (`TimeSkip.forgets_carried`): the oldest state replaces it.
    """
    if first is not None and slots.shape[1] > 1:
        newest = jnp.where(first[:, None, None], slots[:, -1:], slots[:, :1])
        slots = jnp.concatenate([newest, slots[:, 1:]], axis=1)
    return jnp.flip(slots, axis=1)


def observed_in(
    history: Float[Array, "batch rows hidden"],
    kind: str,
    max_skip: int,
    time: int,
    alive: Int[Array, "batch time"] | None = None,
    initial: Float[Array, "batch hidden"] | None = None,
) -> Any:
    """Return the observations of `time` steps, of a kind of `TimeSkip.observed`, with time after
    the batch.

    `history` has the K states before the first step, then those of the steps, oldest first. See
    `Window` for `alive` and `initial`.
    """
    rows = history[:, : max_skip - 1 + time]
    return Window(rows, max_skip, has_time=True, alive=alive, initial=initial).observe(kind)


def followed_in(
    earlier: Float[Array, "batch K_less_one in"],
    x: Float[Array, "batch time in"],
    alive: Int[Array, "batch time"] | None = None,
) -> Window:
    """Return the inputs x(t-k+1) that followed State(t-k), for each step t.

    `earlier` has the inputs before the first step, newest first (`SkipCarry.inputs`). Where `alive`
    slots belong to the present sequence, one more slot contains its initial state, which its first
    input followed. Nothing followed the others: zeros.
    """
    rows = jnp.concatenate([jnp.flip(earlier, axis=1), x], axis=1)
    return followed_window(rows, earlier.shape[1] + 1, alive, has_time=True)


def followed_window(
    rows: Float[Array, "batch rows in"],
    max_skip: int,
    alive: Int[Array, "*steps"] | None,
    has_time: bool = False,
) -> Window:
    """Return the inputs that followed the last K states; see `followed_in` for `alive`."""
    if alive is None:
        return Window(rows, max_skip, has_time)
    return Window(rows, max_skip, has_time, alive + 1, jnp.zeros_like(rows[:, 0]))


# Reads of a history at one step, and their transposes. On a CPU, XLA copies an array that is
# written while an earlier version is still read. So each addition also returns the row State(t-1),
# which the next iteration needs.


def at(array: Array, row: Int[Array, ""] | int) -> Array:
    """Return one row of an array."""
    return lax.dynamic_index_in_dim(array, row, axis=0, keepdims=False)


def write(array: Array, row: Int[Array, ""] | int, value: Array) -> Array:
    """Return the array with one row replaced."""
    return lax.dynamic_update_index_in_dim(array, value, row, axis=0)


def overwrite(
    buffers: Sequence[Array], rows: Sequence[Array], t: Int[Array, ""], ahead: int
) -> tuple[Any, Any]:
    """Write row t of each buffer; then read the rows that the next iteration needs, at t + `ahead`.

    XLA copies a whole array if a loop writes to it and still reads the old version.
    """
    buffers = [write(buffer, t, row) for buffer, row in zip(buffers, rows, strict=True)]
    return buffers, [at(buffer, t + ahead) for buffer in buffers]


def read_window(history: Float[Array, "rows batch hidden"], t: Int[Array, ""], K: int) -> Array:
    """Return the K states before step t, oldest first, (K, batch, hidden)."""
    return lax.dynamic_slice_in_dim(history, t, K, axis=0)


def add_window(
    history: Float[Array, "rows batch hidden"], t: Int[Array, ""], d: Float[Array, "K batch hidden"]
) -> tuple[Array, Array]:
    """Add `d` to the K states before step t; return the history and its row State(t-1)."""
    window = read_window(history, t, d.shape[0]) + d
    history = lax.dynamic_update_slice_in_dim(history, window, t, axis=0)

    def of_history(history, window, t):
        return at(history, t + d.shape[0] - 1)

    def of_window(history, window, t):
        return window[-1]

    # TPU: the sum is at hand, so its last row costs nothing (BENCHMARKS.md has XLA's estimates). A
    # CPU would copy the history if the sum were still read after it has been written.
    newest = lax.platform_dependent(history, window, t, tpu=of_window, default=of_history)
    return history, newest


# Rows that differ between examples are read and added to in three ways:
#
# * `compare` looks at all K slots. It is for a TPU and K up to _COMPARED: a TPU's gathers and
#   scatters take one row after the other.
# * `index` is a gather or scatter of (row, example) pairs. It is for a TPU and more slots. XLA
#   estimates a tenth of the time of the third way, but JAX cannot infer its explicit sharding.
# * `gather` and `scatter` have the batch as an axis of the operation, so that a sharded batch stays
#   on its devices. They are for CPUs and GPUs, and for every batch with explicit sharding.
#
# The tenth is an estimate of XLA's compiler for TPUs. None of the three has been timed on one.
_COMPARED = 32
_IN_BOUNDS = lax.GatherScatterMode.PROMISE_IN_BOUNDS


def _way_of_tpu(
    history: Array, K: int, has_one_slot: bool, compare: Any, index: Any, batched: Any
) -> Any:
    """Return which of the three ways a TPU takes; every platform traces it."""
    if has_one_slot and K <= _COMPARED:
        return compare
    if explicit_spec(history) is not None:
        return batched
    return index


def read_slots(
    history: Float[Array, "rows batch hidden"],
    t: Int[Array, ""],
    K: int,
    slot: Int[Array, "batch *n"],
) -> Float[Array, "batch *n hidden"]:
    """Return State(t-1-slot), for one slot of each example or for n."""

    def compare(history, t, slot):
        is_slot_KBH = _is_slot(slot, K, history.shape[1:])
        return jnp.sum(jnp.where(is_slot_KBH, read_window(history, t, K), 0), axis=0)

    def index(history, t, slot):
        row = t + K - 1 - slot
        return history.at[row, _examples(row)].get(mode="promise_in_bounds")

    def gather(history, t, slot):
        row = t + K - 1 - slot
        places = dict(collapsed_slice_dims=(0,), start_index_map=(0,), offset_dims=(row.ndim,))
        batching = dict(operand_batching_dims=(1,), start_indices_batching_dims=(0,))
        numbers = lax.GatherDimensionNumbers(**places, **batching)
        return lax.gather(
            history, row[..., None], numbers, (1, 1, history.shape[2]), mode=_IN_BOUNDS
        )

    on_tpu = _way_of_tpu(history, K, slot.ndim == 1, compare, index, gather)
    return lax.platform_dependent(history, t, slot, tpu=on_tpu, default=gather)


def add_slots(
    history: Float[Array, "rows batch hidden"],
    t: Int[Array, ""],
    K: int,
    slot: Int[Array, "batch *n"],
    d: Array,
) -> tuple[Array, Array]:
    """Add `d` to State(t-1-slot), see `read_slots`; return the history and its row State(t-1)."""
    unique = slot.ndim == 1  # several slots of an example may be the same

    def compare(history, t, slot, d):
        # Reading the row out of the new window would be an operation of its own.
        row = at(history, t + K - 1) + jnp.where(slot[:, None] == 0, d, 0)
        history, _ = add_window(history, t, jnp.where(_is_slot(slot, K, d.shape), d[None], 0))
        return history, row

    def index(history, t, slot, d):
        row = t + K - 1 - slot
        places = history.at[row, _examples(row)]
        history = places.add(d, mode="promise_in_bounds", unique_indices=unique)
        return history, at(history, t + K - 1)

    def scatter(history, t, slot, d):
        row = t + K - 1 - slot
        places = dict(
            inserted_window_dims=(0,),
            scatter_dims_to_operand_dims=(0,),
            update_window_dims=(row.ndim,),
        )
        batching = dict(operand_batching_dims=(1,), scatter_indices_batching_dims=(0,))
        numbers = lax.ScatterDimensionNumbers(**places, **batching)
        options = dict(unique_indices=unique, mode=_IN_BOUNDS)
        history = lax.scatter_add(history, row[..., None], d, numbers, **options)
        return history, at(history, t + K - 1)

    on_tpu = _way_of_tpu(history, K, unique, compare, index, scatter)
    return lax.platform_dependent(history, t, slot, d, tpu=on_tpu, default=scatter)


def read_slots_of_all(
    history: Float[Array, "rows batch hidden"], K: int, slot: Int[Array, "time batch"]
) -> Float[Array, "time batch hidden"]:
    """Return State(t-1-slot) of all steps t at once."""
    time = slot.shape[0]

    def compare(history, slot):
        starts = ((K - 1 - s, slot == s) for s in range(K))
        return sum(jnp.where(is_it[..., None], history[i : i + time], 0) for i, is_it in starts)

    def gather(history, slot):
        rows = jnp.arange(time, dtype=slot.dtype)[:, None] + K - 1 - slot
        return jnp.take_along_axis(history, rows[..., None], axis=0, mode="promise_in_bounds")

    # TPU: see the three ways above. There is no `index`: this gather is not in the loop.
    on_tpu = compare if K <= _COMPARED else gather
    return lax.platform_dependent(history, slot, tpu=on_tpu, default=gather)


def _is_slot(
    slot: Int[Array, " batch"], K: int, shape: tuple[int, int]
) -> Bool[Array, "K batch hidden"]:
    """Return which state of a window, oldest first, each example chose."""
    # A constant: a TPU would count in every step.
    slots_K = np.arange(K - 1, -1, -1, dtype=slot.dtype)
    slots_KBH = lax.broadcast_in_dim(slots_K, (K, *shape), (0,))
    return slots_KBH == lax.broadcast_in_dim(slot, (K, *shape), (1,))


def _examples(row: Int[Array, "batch *n"]) -> Int[Array, "batch *ones"]:
    return jnp.arange(row.shape[0]).reshape(-1, *(1,) * (row.ndim - 1))


def average(
    weights: Float[Array, "batch K"], history: Float[Array, "rows batch hidden"], t: Int[Array, ""]
) -> Float[Array, "batch hidden"]:
    """Return the sum of the K states before step t, times their weights, newest first."""
    share = _shares(weights)

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


def _shares(weights: Float[Array, "batch K"]) -> Float[Array, "K batch one"]:
    """Return weights, newest first, in the order of a window."""
    return jnp.flip(weights, axis=1).T[..., None]


def living(
    window: Float[Array, "K *lead hidden"], alive: Int[Array, "*lead"] | None, initial: Any
) -> Array:
    """Return a window, oldest first, with `initial` in the slots before the present sequence."""
    if alive is None:
        return window
    slots = jnp.arange(window.shape[0])[::-1].reshape(-1, *(1,) * (window.ndim - 1))
    return jnp.where(slots < alive[None, ..., None], window, initial[None])


class Read(NamedTuple):
    """How the states of a choice are read from histories.

    The methods take `alive`, the number of slots that belong to the present sequence of a packed
    row, (batch,); None if no row is packed.
    """

    transition: Transition  # transition of the layer
    K: int  # number of slots
    # The slot of the state that enters, a number or (batch,); slots of several states, (batch, n);
    # or None
    slot: Any
    weights: Any  # weights of these states, or of all K; None for one state

    @property
    def means(self) -> bool:
        """Whether a linear mean of all K states is read."""
        return self.slot is None and self.transition.averages == "linear"

    def fetch(self, histories: Any, t: Int[Array, ""], alive: Any) -> Any:
        """Read one state, some states, the window of K states, or its mean, of each array."""
        if self.means:
            weights = self._living_weights(alive)

        def read(history: Array) -> Array:
            if self.means:
                return average(weights, history, t)
            if self.slot is None:
                return read_window(history, t, self.K)
            if jnp.ndim(self.slot) == 0:
                return at(history, t + self.K - 1 - self.slot)
            return read_slots(history, t, self.K, self.slot)

        return jax.tree.map(read, histories)

    def again(self, histories: Any, t: Int[Array, ""], alive: Any, reads: Any) -> Any:
        """Return `reads`, the result of `fetch`, with the derivative of a mean in the weights."""
        if not self.means:
            return reads

        @jax.custom_vjp
        def mean(weights, reads):
            return reads

        def forward(_, reads):
            return reads, None

        def backward(_, d):
            return average_adjoint(histories, t, d, self.K), d

        mean.defvjp(forward, backward)
        return mean(match_batch(self._living_weights(alive), jax.tree.leaves(reads)[0]), reads)

    def send_back(self, adjoints: Any, t: Int[Array, ""], alive: Any, d: Any) -> tuple[Any, Any]:
        """Add `d`, the gradient of `fetch`; return the histories, and their rows State(t-1)."""

        def add(history, d):
            if self.means:
                return add_window(history, t, _shares(self._living_weights(alive)) * d[None])
            if self.slot is None:
                return add_window(history, t, d)
            if jnp.ndim(self.slot) == 0:
                history, _ = add_window(history, t + self.K - 1 - self.slot, d[None])
                return history, at(history, t + self.K - 1)
            return add_slots(history, t, self.K, self.slot, d)

        pairs = map(add, adjoints, d)
        return tuple(self.transition.state(*part) for part in zip(*pairs, strict=True))

    def fetch_all(self, histories: Any, time: int) -> Any:
        """Read the state of all steps at once, (time, batch, hidden) each."""

        def read(history: Array) -> Array:
            if jnp.ndim(self.slot) == 0:
                start = self.K - 1 - self.slot
                return history[start : start + time]
            return read_slots_of_all(history, self.K, self.slot)

        return jax.tree.map(read, histories)

    def combine(self, fetched: Any, alive: Any, initial: Any) -> Any:
        """Return the chosen state, or the average of states, from the result of `fetch`."""
        if self.means:
            if initial is None:
                return fetched
            rest = jnp.sum(self.weights - self._living_weights(alive), axis=1, keepdims=True)
            return jax.tree.map(lambda mean, initial: mean + rest * initial, fetched, initial)
        if self.slot is None:
            if initial is not None:
                fetched = jax.tree.map(lambda window, i: living(window, alive, i), fetched, initial)
            fetched = jax.tree.map(lambda window: jnp.moveaxis(jnp.flip(window, 0), 0, 1), fetched)
        elif initial is not None:
            if self.weights is not None:
                # There are several slots: (batch, n).
                alive = alive[:, None]
                initial = jax.tree.map(lambda i: i[:, None], initial)
            is_living = (self.slot < alive)[..., None]
            fetched = jax.tree.map(lambda rows, i: jnp.where(is_living, rows, i), fetched, initial)
        return (
            fetched
            if self.weights is None
            else self.transition.average_states(self.weights, fetched)
        )

    def _living_weights(self, alive: Any) -> Float[Array, "batch K"]:
        if alive is None:
            return self.weights
        return jnp.where(jnp.arange(self.K)[None] < alive[:, None], self.weights, 0)


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
    rows = jnp.arange(K)[:, None] + seq_lengths[None, :]
    return jnp.take_along_axis(
        history, rows.reshape(*rows.shape, *(1,) * (history.ndim - 2)), axis=0
    )
