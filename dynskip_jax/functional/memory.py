"""The last K states before a step, or their inputs, as a memory that a query is compared with.

The memories of neighbouring steps overlap. All steps together have one array of rows, so comparing
them with queries, or taking their mean, allocates no array of size (batch, time, K, hidden).
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

_BLOCK = 64  # smallest number of steps per block in `Memory.compare`


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("rows", "alive", "initial", "order"),
    meta_fields=("max_skip", "has_time"),
)
@dataclasses.dataclass(frozen=True)
class Memory:
    """The last K states before one step, or before each of several steps.

    All results have the newest state first, as the slots of a carry.

    Attributes:
        rows: States, oldest first. For one step: h(t-K), …, h(t-1), (*batch, K, hidden). For
            several steps: the K states before the first one, then those of all steps except the
            last, (batch, K + time - 1, hidden).
        has_time: Whether there are several steps. Results then have a time axis after the batch.
        alive: Number of slots that belong to the present sequence of a packed row, (*steps,). The
            other slots contain `initial`. None if no row is packed.
        initial: State in the other slots, (*batch, hidden).
        order: Row of each slot of one step, newest first, (*batch, K), for rows that are written
            round; None if the rows are oldest first.
    """

    rows: Float[Array, "*batch rows hidden"]
    max_skip: int
    has_time: bool = False
    alive: Int[Array, "*steps"] | None = None
    initial: Float[Array, "*batch hidden"] | None = None
    order: Int[Array, "*batch K"] | None = None

    @property
    def dtype(self) -> Any:
        """Dtype of the states."""
        return self.rows.dtype

    @property
    def previous(self) -> Float[Array, "*steps hidden"]:
        """Newest state, h(t-1)."""
        if self.has_time:
            newest = self.rows[:, self.max_skip - 1 :]
        elif self.order is None:
            newest = self.rows[..., -1, :]
        else:
            newest = self._at(np.zeros(1, np.int32))[..., 0, :]
        if self.alive is None:
            return newest
        return jnp.where((self.alive > 0)[..., None], newest, self._initial_of_steps)

    @property
    def slots(self) -> Float[Array, "*steps K hidden"]:
        """All K states, newest first."""
        # Of step t, slot s is row t + K - 1 - s.
        if self.has_time:
            time = self.rows.shape[1] - self.max_skip + 1
            slots = self.rows[:, jnp.arange(time)[:, None] + jnp.arange(self.max_skip)[None, ::-1]]
        elif self.order is None:
            slots = jnp.flip(self.rows, axis=-2)
        else:
            slots = self._at(np.arange(self.max_skip))
        if self.alive is None:
            return slots
        return jnp.where(self._is_alive[..., None], slots, self._initial_of_steps[..., None, :])

    @property
    def _initial_of_steps(self) -> Float[Array, "*steps_or_1 hidden"]:
        """Return the initial state, with an axis for time where there is one."""
        if self.has_time:
            return self.initial[:, None]
        return self.initial

    @property
    def _is_alive(self) -> Bool[Array, "*steps K"]:
        """Return whether each slot belongs to the present sequence."""
        return self._lives(np.arange(self.max_skip))

    def _lives(self, slots: np.ndarray | Int[Array, "*steps n"]) -> Bool[Array, "*steps n"]:
        """Return whether slots belong to the present sequence; the slots may be (n,)."""
        missing = self.alive.ndim + 1 - slots.ndim
        return slots.reshape((1,) * missing + slots.shape) < self.alive[..., None]

    def _at(self, slots: np.ndarray | Int[Array, "*batch n"]) -> Float[Array, "*batch n hidden"]:
        """Return the states of one step in n slots, the same for all examples if (n,)."""
        slots = jnp.broadcast_to(slots, (*self.rows.shape[:-2], slots.shape[-1]))
        if self.order is None:
            rows = self.max_skip - 1 - slots
        else:
            rows = jnp.take_along_axis(self.order, slots, axis=-1)
        return jnp.take_along_axis(self.rows, rows[..., None], axis=-2)

    @property
    def mean(self) -> Float[Array, "*steps hidden"]:
        """Mean of the K states."""
        # Slots of earlier sequences are the initial state, so neighbours share no sums.
        if self.alive is not None or self.order is not None:
            return self.slots.mean(-2)
        if self.has_time:
            return _sums_of_neighbours(self.rows, self.max_skip) / self.max_skip
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
            products = jnp.einsum("...h,...kh->...k", query, self.rows)
            if self.order is None:
                return jnp.flip(products, axis=-1)
            return jnp.take_along_axis(products, self.order, axis=-1)
        batch, time, hidden = query.shape
        K = self.max_skip
        block = max(K, _BLOCK)
        if not isinstance(time, int) or time <= 2 * block:
            return _band(query, self.rows, K)
        # Compare in blocks of steps, each with the rows of its block and of the next one. The size
        # of the products then grows linearly with time, not quadratically.
        count = -(-time // block)
        missing_steps = count * block - time
        missing_rows = (count + 1) * block - self.rows.shape[1]
        query = jnp.pad(query, ((0, 0), (0, missing_steps), (0, 0)))
        rows = jnp.pad(self.rows, ((0, 0), (0, missing_rows), (0, 0)))
        # Each row of blocks has the rows of its own block, then those of the next one.
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
        """Return the product of each query with the rows of n slots before its step."""
        newest = self.max_skip - 1
        if not self.has_time:
            return jnp.einsum("...h,...nh->...n", query, self._at(slots))
        # Slots that differ between steps are taken out of all K products.
        if slots.ndim > 1:
            return jnp.take_along_axis(self._compare_rows(query), slots, axis=-1)
        # The same slots at all steps are n slices of the rows, one row later at each step.
        starts = [newest - int(slot) for slot in slots]
        compared = (self.rows[:, start : start + query.shape[1]] for start in starts)
        return jnp.stack([jnp.sum(query * rows, axis=-1) for rows in compared], axis=-1)

    def as_observation(self, kind: str) -> Any:
        """Return what a time skip with this `observation_kind` observes.

        It is one state, (*steps, hidden); for `slots` all states, (*steps, K, hidden); for `memory`
        the memory itself.
        """
        if kind == "memory":
            return self
        return getattr(self, kind)


def _sums_of_neighbours(
    rows: Float[Array, "batch rows hidden"], K: int
) -> Float[Array, "batch time hidden"]:
    """Return the sums of K neighbouring rows, from sums of 1, 2, 4, … rows, exact as pairwise."""
    time = rows.shape[1] - K + 1
    start = 0
    total = None
    size = 1
    # `rows` are sums of `size` rows. Those sizes that are binary digits of K add up to K rows.
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


def observations_in(
    history: Float[Array, "batch rows hidden"],
    kind: str,
    max_skip: int,
    time: int,
    alive: Int[Array, "batch time"] | None = None,
    initial: Float[Array, "batch hidden"] | None = None,
) -> Any:
    """Return the observations of `time` steps, with time after the batch.

    `kind` is a `TimeSkip.observation_kind`. `history` has the K states before the first step, then
    those of the steps, oldest first. See `Memory` for `alive` and `initial`.
    """
    rows = history[:, : max_skip - 1 + time]
    return Memory(rows, max_skip, has_time=True, alive=alive, initial=initial).as_observation(kind)


def followed_in(
    earlier: Float[Array, "batch K_less_one in"],
    x: Float[Array, "batch time in"],
    alive: Int[Array, "batch time"] | None = None,
) -> Memory:
    """Return the inputs x(t-k+1) that followed State(t-k), for each step t.

    `earlier` has the inputs before the first step, newest first (`SkipCarry.inputs`). Where `alive`
    slots belong to the present sequence, one more slot contains its initial state, which its first
    input followed. Nothing followed the others: zeros.
    """
    rows = jnp.concatenate([jnp.flip(earlier, axis=1), x], axis=1)
    return followed_memory(rows, earlier.shape[1] + 1, alive, has_time=True)


def followed_memory(
    rows: Float[Array, "batch rows in"],
    max_skip: int,
    alive: Int[Array, "*steps"] | None,
    has_time: bool = False,
) -> Memory:
    """Return the inputs that followed the last K states; see `followed_in` for `alive`."""
    if alive is None:
        return Memory(rows, max_skip, has_time)
    return Memory(rows, max_skip, has_time, alive + 1, jnp.zeros_like(rows[:, 0]))
