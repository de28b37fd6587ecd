"""Reads of earlier states in the fused unroll's histories, and the transposes of these reads.

A history is one array of the state over time, oldest first, (batch, K + time, hidden). It has the K states
before the first step, and then one state per step. State(t-k) is row t + K - k. The K states before step t
are the rows t to t + K - 1.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from dynskip_jax.functional.time_skips import Choice
from dynskip_jax.functional.transitions import Transition

Histories = tuple[Float[Array, "batch rows hidden"], ...]
Step = Int[Array, "..."] | int


@dataclasses.dataclass(frozen=True)
class StateReader:
    """Reader of State(t-k), or of a weighted mean of earlier states, from histories.

    Attributes:
        transition: Transition of the layer.
        max_skip: K.
        fixed_slot: See `TimeSkip.fixed_slot`.
    """

    transition: Transition
    max_skip: int
    fixed_slot: int | None

    def row(self, t: Step, slot: Int[Array, "*batch"] | int) -> Int[Array, "*batch"] | int:
        """Return the row of State(t-1-slot) in a history."""
        return t + self.max_skip - 1 - slot

    def window(self, history: Float[Array, "batch rows hidden"], t: Step) -> Float[Array, "batch K hidden"]:
        """Return the K states before step t."""
        return lax.dynamic_slice_in_dim(history, t, self.max_skip, axis=1)

    def fetch(self, histories: Histories, t: Step, choice: Choice) -> Any:
        """Return the state that was chosen for step t, or a mean of states; each array (batch, hidden)."""
        if choice.weights is not None and choice.slot is None:
            return self._fetch_average(choice.weights, histories, t)
        rows = self.transition.state(*(self._fetch_row(history, t, choice) for history in histories))
        return rows if choice.weights is None else self.transition.average_states(choice.weights, rows)

    def fetch_all(self, histories: Histories, choices: Choice, time: int) -> Any:
        """Return the states that were chosen for all steps, each array (batch, time, hidden).

        Choices with weights are not supported.
        """

        def fetch(history):
            if self.fixed_slot is not None:
                return lax.slice_in_dim(
                    history, self.row(0, self.fixed_slot), self.row(time, self.fixed_slot), axis=1
                )
            rows = self.row(jnp.arange(time)[None, :], choices.slot)
            return jnp.take_along_axis(history, rows[..., None], axis=1, mode="promise_in_bounds")

        return self.transition.state(*map(fetch, histories))

    def send_back(
        self, adjoints: Histories, histories: Histories, t: Step, choice: Choice, d_fetched: Any
    ) -> tuple[Histories, Float[Array, "batch K"] | None]:
        """Apply the transpose of `fetch`.

        Args:
            adjoints: Gradients with respect to the histories so far.
            histories: Histories that `fetch` read.
            t: Step.
            choice: Choice at step t.
            d_fetched: Gradient with respect to the result of `fetch`.

        Returns:
            The gradients with respect to the histories, with those of this step added; and the gradient with
            respect to the weights of the choice, None for a choice without weights.
        """
        if choice.weights is None:
            pairs = zip(adjoints, d_fetched, strict=True)
            return tuple(self._add_row(adjoint, t, choice, d) for adjoint, d in pairs), None
        if choice.slot is not None:
            rows = self.transition.state(*(self._fetch_row(history, t, choice) for history in histories))
            _, undo = jax.vjp(self.transition.average_states, choice.weights, rows)
            d_weights, d_rows = undo(d_fetched)
            pairs = zip(adjoints, d_rows, strict=True)
            return tuple(self._add_row(adjoint, t, choice, d) for adjoint, d in pairs), d_weights
        windows = self.transition.state(*(self.window(history, t) for history in histories))
        _, undo = jax.vjp(self._average, choice.weights, windows)
        d_weights, d_windows = undo(d_fetched)
        return tuple(add(adjoint, t, d) for adjoint, d in zip(adjoints, d_windows, strict=True)), d_weights

    def _fetch_row(self, history, t: Step, choice: Choice) -> Float[Array, "batch *n hidden"]:
        if self.fixed_slot is not None:
            return at(history, self.row(t, self.fixed_slot))
        # `vmap` keeps a sharded batch on its devices.
        read = jax.vmap(lambda rows, row: rows.at[row].get(mode="promise_in_bounds"))
        return read(history, self.row(t, choice.slot))

    def _add_row(self, adjoint, t: Step, choice: Choice, d: Float[Array, "batch *n hidden"]):
        if self.fixed_slot is not None:
            return add(adjoint, self.row(t, self.fixed_slot), d[:, None])
        is_one = choice.weights is None  # with weights, several slots may be the same
        add_one = jax.vmap(
            lambda rows, row, d: rows.at[row].add(d, mode="promise_in_bounds", unique_indices=is_one)
        )
        return add_one(adjoint, self.row(t, choice.slot), d)

    def _average(self, weights: Float[Array, "batch K"], windows: Any) -> Any:
        """Return the average of K states; states are ordered oldest first, weights newest first."""
        if not self._is_linear:
            slots = jax.tree.map(lambda rows: jnp.flip(rows, axis=1), windows)
            return self.transition.average_states(weights, slots)
        share = jnp.flip(weights, axis=1)[..., None]
        return jax.tree.map(lambda rows: jnp.sum(share * rows, axis=1), windows)

    def _fetch_average(self, weights: Float[Array, "batch K"], histories: Histories, t: Step) -> Any:
        def whole(weights, histories, t):
            windows = self.transition.state(*(self.window(history, t) for history in histories))
            return self._average(weights, windows)

        if not self._is_linear:
            return whole(weights, histories, t)
        return lax.platform_dependent(weights, histories, t, cpu=self._average_in_a_loop, default=whole)

    def _average_in_a_loop(self, weights: Float[Array, "batch K"], histories: Histories, t: Step) -> Any:
        """Average the last K states before step t row by row; for CPUs.

        XLA's CPU backend does not vectorize a sum over a middle axis. A loop keeps the size of the program
        independent of K.
        """
        weights = jnp.flip(weights, axis=1)

        def add_row(i, totals):
            share = lax.dynamic_index_in_dim(weights, i, axis=1)
            return tuple(
                total + share * at(history, t + i) for total, history in zip(totals, histories, strict=True)
            )

        start = tuple(weights[:, :1] * at(history, t) for history in histories)
        return self.transition.state(*lax.fori_loop(1, self.max_skip, add_row, start))

    @property
    def _is_linear(self) -> bool:
        return self.transition.averages == "linear"


def at(array: Array, t: Step, axis: int = 1) -> Array:
    """Return row t of `array` along its time axis, which is axis 1 in most arrays."""
    return lax.dynamic_index_in_dim(array, t, axis=axis, keepdims=False)


def put(array: Array, t: Step, row: Array, axis: int = 1) -> Array:
    """Return `array` with row t along `axis` replaced by `row`."""
    return lax.dynamic_update_index_in_dim(array, row, t, axis=axis)


def add(array: Array, t: Step, rows: Float[Array, "batch n hidden"]) -> Array:
    """Return `array` with `rows` added to its n rows from row t on."""
    old = lax.dynamic_slice_in_dim(array, t, rows.shape[1], axis=1)
    return lax.dynamic_update_slice_in_dim(array, old + rows, t, axis=1)


def last_rows(
    history: Shaped[Array, "batch rows *rest"], seq_lengths: Int[Array, " batch"] | None, K: int
) -> Shaped[Array, "batch K *rest"]:
    """Return the last K rows of each sequence.

    Args:
        history: Rows over time, (batch, K + time, ...).
        seq_lengths: True lengths, (batch,); None if all sequences have `time` steps.
        K: Number of rows before the first step, and of rows to return.
    """
    if seq_lengths is None:
        return history[:, history.shape[1] - K :]
    rows = seq_lengths[:, None] + jnp.arange(K)[None, :]
    return jnp.take_along_axis(history, rows.reshape(*rows.shape, *(1,) * (history.ndim - 2)), axis=1)


def last_rows_adjoint(
    history: Float[Array, "batch rows hidden"],
    seq_lengths: Int[Array, " batch"] | None,
    d_last: Float[Array, "batch K hidden"],
) -> Float[Array, "batch rows hidden"]:
    """Apply the transpose of `last_rows`: return the gradient with respect to `history` for `d_last`."""
    K = d_last.shape[1]
    zeros = jnp.zeros_like(history)
    if seq_lengths is None:
        return lax.dynamic_update_slice_in_dim(zeros, d_last, history.shape[1] - K, axis=1)
    rows = seq_lengths[:, None] + jnp.arange(K)[None, :]
    return jax.vmap(lambda adjoint, rows, d: adjoint.at[rows].add(d, unique_indices=True))(
        zeros, rows, d_last
    )
