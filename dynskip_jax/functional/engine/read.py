"""How the states of a choice are read from histories, and how their gradients are sent back.

Every choice is one of five reads: a fixed slot, a chosen slot, some slots with weights, all K
states with weights, or a linear mean of all K, which is computed while they are read.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.engine import history as hist
from dynskip_jax.functional.sharding import match_batch
from dynskip_jax.functional.transitions.base import Transition


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
    def is_mean(self) -> bool:
        """Whether a linear mean of all K states is read."""
        return self.slot is None and self.transition.averages == "linear"

    def fetch(self, histories: Any, t: Int[Array, ""], alive: Any) -> Any:
        """Read one state, some states, the window of K states, or its mean, of each array."""
        if self.is_mean:
            weights = self._living_weights(alive)

        def read(history: Array) -> Array:
            if self.is_mean:
                return hist.average(weights, history, t)
            if self.slot is None:
                return hist.read_window(history, t, self.K)
            if jnp.ndim(self.slot) == 0:
                return hist.at(history, t + self.K - 1 - self.slot)
            return hist.read_slots(history, t, self.K, self.slot)

        return jax.tree.map(read, histories)

    def again(self, histories: Any, t: Int[Array, ""], alive: Any, reads: Any) -> Any:
        """Return `reads`, the result of `fetch`, with the derivative of a mean in the weights."""
        if not self.is_mean:
            return reads

        @jax.custom_vjp
        def mean(weights, reads):
            return reads

        def forward(_, reads):
            return reads, None

        def backward(_, d):
            return hist.average_adjoint(histories, t, d, self.K), d

        # The window is not kept for each step: the gradient of the weights reads it again.
        mean.defvjp(forward, backward)
        return mean(match_batch(self._living_weights(alive), jax.tree.leaves(reads)[0]), reads)

    def send_back(self, adjoints: Any, t: Int[Array, ""], alive: Any, d: Any) -> tuple[Any, Any]:
        """Add `d`, the gradient of `fetch`; return the histories, and their rows State(t-1)."""

        def add(history, d):
            if self.is_mean:
                share = hist.shares(self._living_weights(alive))
                return hist.add_window(history, t, share * d[None])
            if self.slot is None:
                return hist.add_window(history, t, d)
            if jnp.ndim(self.slot) == 0:
                history, _ = hist.add_window(history, t + self.K - 1 - self.slot, d[None])
                return history, hist.at(history, t + self.K - 1)
            return hist.add_slots(history, t, self.K, self.slot, d)

        # One pair of a history and its row State(t-1) for each array of the state.
        pairs = map(add, adjoints, d)
        return tuple(self.transition.state(*part) for part in zip(*pairs, strict=True))

    def fetch_all(self, histories: Any, time: int) -> Any:
        """Read the state of all steps at once, (time, batch, hidden) each."""

        def read(history: Array) -> Array:
            if jnp.ndim(self.slot) == 0:
                start = self.K - 1 - self.slot
                return history[start : start + time]
            return hist.read_slots_of_all(history, self.K, self.slot)

        return jax.tree.map(read, histories)

    def combine(self, fetched: Any, alive: Any, initial: Any) -> Any:
        """Return the chosen state, or the average of states, from the result of `fetch`."""
        # The mean of the living slots is read; the initial state has the rest of the weights.
        if self.is_mean:
            if initial is None:
                return fetched
            rest = jnp.sum(self.weights - self._living_weights(alive), axis=1, keepdims=True)
            return jax.tree.map(lambda mean, initial: mean + rest * initial, fetched, initial)

        if initial is not None:
            fetched = self._with_initial(fetched, alive, initial)
        # A window is (K, batch, hidden), oldest first; averages take (batch, K, hidden), newest
        # first.
        if self.slot is None:
            fetched = jax.tree.map(lambda window: jnp.moveaxis(jnp.flip(window, 0), 0, 1), fetched)
        if self.weights is None:
            return fetched
        return self.transition.average_states(self.weights, fetched)

    def _with_initial(self, fetched: Any, alive: Any, initial: Any) -> Any:
        """Return what was read, with the initial state in slots before the present sequence."""
        if self.slot is None:
            return jax.tree.map(
                lambda window, row: hist.living(window, alive, row), fetched, initial
            )
        # Several slots are (batch, n).
        if self.weights is not None:
            alive = alive[:, None]
            initial = jax.tree.map(lambda row: row[:, None], initial)
        is_living = (self.slot < alive)[..., None]
        return jax.tree.map(lambda rows, row: jnp.where(is_living, rows, row), fetched, initial)

    def _living_weights(self, alive: Any) -> Float[Array, "batch K"]:
        """Return the weights, 0 for slots that do not belong to the present sequence."""
        if alive is None:
            return self.weights
        return jnp.where(jnp.arange(self.K)[None] < alive[:, None], self.weights, 0)
