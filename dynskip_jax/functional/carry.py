"""The carry of a recurrent layer: its last K states, which are written round.

A step writes one row and moves no other, so it costs what it reads, however large K is. Each
example has a position of its own: `nnx.RNN` selects carries of different steps over the batch.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.functional.memory import Memory
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.serialization import register_for_export


@register_for_export
class SkipCarry(NamedTuple):
    """State that one step passes to the next. The batch axes are the leading axes of every leaf.

    `slots` has the last K states in order, and `state` the newest one; `with_slots` replaces them.

    Attributes:
        ring: The last K states: the transition's state, each array (*batch, K, hidden). The row
            before `position` is State(t-1), the one before that State(t-2), and row K - 1 comes
            before row 0.
        position: Row that the next state is written to, (*batch,).
        filled: Number of rows that belong to this sequence, 1 to K, (*batch,). The oldest of them
            stands for all older states: a sequence that has just begun has filled one row, with
            its initial state.
        step: Number of steps since the carry was made or restarted, (*batch,).
        key: One PRNG key for each example, (*batch,). Step t draws with `fold_in(key, t)`, so the
            noise of an example depends only on its key and its step. None where nothing is sampled.
        skip_state: State of the time skip, in addition to the stored states.
        recurrent_mask: Recurrent dropout mask, (*batch, hidden): a factor on the state that enters
            the gates, the same at all steps (Gal & Ghahramani 2016). None without recurrent
            dropout.
        inputs: The input that followed each state of the ring, in the same row, (*batch, K, in);
            see `recent_inputs`. None unless the time skip observes them
            (`TimeSkip.observes_inputs`).
    """

    ring: Any
    position: Int[Array, "*batch"]
    filled: Int[Array, "*batch"]
    step: Int[Array, "*batch"]
    key: Key[Array, "*batch"] | None
    skip_state: Any = ()
    recurrent_mask: Float[Array, "*batch hidden"] | None = None
    inputs: Float[Array, "*batch K in"] | None = None

    @property
    def dtype(self) -> Any:
        """Dtype of the states."""
        return self.ring[0].dtype

    @property
    def max_skip(self) -> int:
        """Number K of states."""
        return self.ring[0].shape[-2]

    @property
    def state(self) -> Any:
        """Newest state, State(t-1), each array (*batch, hidden)."""
        return self.states_at(jnp.zeros_like(self.position))

    @property
    def slots(self) -> Any:
        """The last K states, newest first, each array (*batch, K, hidden): a copy."""
        return self.states_at(self._all_slots)

    @property
    def recent_inputs(self) -> Float[Array, "*batch K_less_one in"] | None:
        """The last K - 1 inputs, newest first, zeros before the first one: a copy."""
        if self.inputs is None:
            return None
        # The input that follows State(t-1), in slot 0, is yet to come.
        return self.followed.slots[..., 1:, :]

    def with_slots(
        self, slots: Any, recent_inputs: Float[Array, "*batch K_less_one in"] | None = None
    ) -> "SkipCarry":
        """Return the carry with other `slots` and `recent_inputs`; None keeps the latter."""
        if recent_inputs is None:
            recent_inputs = self.recent_inputs
        inputs = None
        if recent_inputs is not None:
            inputs = jnp.flip(recent_inputs, axis=-2)
            inputs = jnp.concatenate([inputs, jnp.zeros_like(self.inputs[..., :1, :])], axis=-2)
        return self._replace(
            ring=jax.tree.map(lambda array: jnp.flip(array, axis=-2), slots),
            position=jnp.zeros_like(self.position),
            filled=jnp.full_like(self.filled, self.max_skip),
            inputs=inputs,
        )

    # What a step reads.

    def rows_of(self, slot: Int[Array, "*batch_and_n"]) -> Int[Array, "*batch_and_n"]:
        """Return the rows of State(t-1-slot), for one slot of each example or for n."""
        missing = (1,) * (slot.ndim - self.position.ndim)
        position = self.position.reshape(self.position.shape + missing)
        filled = self.filled.reshape(position.shape)
        row = position - 1 - jnp.minimum(slot, filled - 1)
        return jnp.where(row < 0, row + self.max_skip, row)

    @property
    def _all_slots(self) -> Int[Array, "*batch K"]:
        slots = jnp.arange(self.max_skip, dtype=self.position.dtype)
        one_row = (1,) * self.position.ndim + slots.shape
        return jnp.zeros_like(self.position)[..., None] + slots.reshape(one_row)

    def states_at(self, slot: Int[Array, "*batch_and_n"]) -> Any:
        """Return State(t-1-slot), for one slot of each example or for n."""
        rows = self.rows_of(slot)
        return jax.tree.map(lambda ring: read_rows(ring, rows), self.ring)

    def memory_of(self, ring: Float[Array, "*batch K features"], **options: Any) -> Memory:
        """Return a memory of the last K states, of which `ring` has what is observed."""
        return Memory(ring, self.max_skip, order=self.rows_of(self._all_slots), **options)

    @property
    def followed(self) -> Memory:
        """The inputs that followed the last K states: zeros where nothing did."""
        nothing = jnp.zeros_like(self.inputs[..., 0, :])
        return self.memory_of(self.inputs, alive=self.filled, initial=nothing)

    def weights_of_rows(self, weights: Float[Array, "*batch K"]) -> Float[Array, "*batch K"]:
        """Return the weights of K states, newest first, in the order of the ring."""
        # The oldest row that is filled has the weights of all older states, too.
        slots = self._all_slots
        oldest = self.filled[..., None] - 1
        of_oldest = jnp.sum(jnp.where(slots >= oldest, weights, 0), axis=-1, keepdims=True)
        weights = jnp.where(slots < oldest, weights, jnp.where(slots == oldest, of_oldest, 0))
        # Row r has slot position - 1 - r, counted round.
        slot = self.position[..., None] - 1 - slots
        slot = jnp.where(slot < 0, slot + self.max_skip, slot)
        return jnp.take_along_axis(weights, slot, axis=-1, mode="promise_in_bounds")

    # What a step writes.

    def with_newest(self, state: Any) -> "SkipCarry":
        """Return the carry with `state` in place of State(t-1)."""
        row = self.rows_of(jnp.zeros_like(self.position))
        return self._replace(
            ring=jax.tree.map(lambda ring, array: write_rows(ring, row, array), self.ring, state)
        )

    def with_input(
        self, inputs: Float[Array, "*batch K in"], x: Float[Array, "*batch in"]
    ) -> "SkipCarry":
        """Return the carry with `inputs`, to which x(t) is added: it follows State(t-1)."""
        row = self.rows_of(jnp.zeros_like(self.position))
        return self._replace(inputs=write_rows(inputs, row, x))

    def pushed(
        self, state: Any, *, newest: Any = None, valid: Bool[Array, "*batch"] | None = None
    ) -> "SkipCarry":
        """Return the carry with `state` as the newest one; the oldest one leaves it.

        `newest` replaces State(t-1). Where `valid` is False, the ring stays as it is.
        """
        rows = self.position
        if newest is not None and self.max_skip > 1:
            # Both rows at once: before the second of two writes XLA would copy the ring.
            rows = jnp.stack([self.rows_of(jnp.zeros_like(rows)), rows], axis=-1)
            state = jax.tree.map(lambda *pair: jnp.stack(pair, axis=-2), newest, state)

        def write(ring: Array, values: Array) -> Array:
            if valid is not None:
                values = where_each(valid, values, read_rows(ring, rows))
            return write_rows(ring, rows, values)

        after = self.position + 1
        return self._replace(
            ring=jax.tree.map(write, self.ring, state),
            position=jnp.where(after == self.max_skip, 0, after),
            filled=jnp.minimum(self.filled + 1, self.max_skip),
        )


def where_carry(chosen: Bool[Array, "*batch"], new: SkipCarry, old: SkipCarry) -> SkipCarry:
    """Return `new` where `chosen`, otherwise `old`, with the rows of `new`: they stay in place."""
    rows = dict(ring=new.ring, inputs=new.inputs)
    none = dict.fromkeys(rows)
    return where_each(chosen, new._replace(**none), old._replace(**none))._replace(**rows)


def read_rows(ring: Array, row: Int[Array, "*batch_and_n"]) -> Array:
    """Return a row of each example, (*batch, features), or n rows, (*batch, n, features)."""
    if ring.shape[-2] == 1 and row.ndim == ring.ndim - 2:
        return ring[..., 0, :]

    def read(ring, row):
        return ring.at[row].get(mode="promise_in_bounds")

    return _over_batch(read, ring)(ring, row)


def write_rows(ring: Array, row: Int[Array, "*batch_and_n"], value: Array) -> Array:
    """Return the ring with a row of each example replaced, or n different rows."""
    if ring.shape[-2] == 1:
        return value.reshape(ring.shape).astype(ring.dtype)

    def write(ring, row, value):
        return ring.at[row].set(value, mode="promise_in_bounds", unique_indices=True)

    return _over_batch(write, ring)(ring, row, value.astype(ring.dtype))


def _over_batch(function: Callable[..., Array], ring: Array) -> Callable[..., Array]:
    """Map a function over the batch axes of a ring: a sharded batch stays on its devices."""
    for _ in ring.shape[:-2]:
        function = jax.vmap(function)
    return function
