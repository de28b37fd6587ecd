"""Skip RNN (Campos et al. 2018): a binary gate updates or copies the state at each step."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.product import row
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.time_skips.base import Choice, ReadingSkip


@register_for_export
class UpdateParams(NamedTuple):
    """Weights W_p and b_p of the update gate, Eq. 4."""

    w: Float[Array, " hidden"]
    b: Float[Array, " one"]


@dataclasses.dataclass(frozen=True)
class SkipRNN(ReadingSkip):
    """Skip RNN: s(t) = u S(s(t-1), x(t)) + (1 - u) s(t-1) with u = round(ũ), Eq. 1-5.

    ũ grows by Δũ = σ(W_p s + b_p) at each step. When ũ passes ½, the state is updated and ũ
    restarts from 0. The first token is always read. The rounding has the derivative of the identity
    (straight-through). ũ is accumulated as in the authors' code, whose derivative with respect to u
    differs from Eq. 5 where min(Δũ, 1 - ũ) is 1 - ũ.

    `Decision.update` is u and carries a gradient: add `cost * decision.update.sum()` to the loss
    for a cost per update (Eq. 8). The loss has no score-function term. `update_bias` is the initial
    value of b_p; the authors use 1.
    """

    update_bias: float = 1.0

    def observation_arrays(self, transition) -> tuple[str, ...]:
        """Return the name of the cell state, as in the authors' code: c of an LSTM, h of a GRU."""
        return (transition.cell_state,)

    def mode_of(self, mode) -> str:
        return "straight_through"

    def init(self, key, in_features, hidden, units, init) -> UpdateParams:
        w = init.draw(init.kernel, key, (hidden, 1))[:, 0]
        return UpdateParams(w, jnp.full((1,), self.update_bias, init.dtype))

    def init_skip_state(self, batch, dtype) -> Float[Array, "*batch"]:
        """Return ũ before the first step: zeros."""
        return jnp.zeros(batch, dtype)

    def choose(self, params: UpdateParams, inputs, observation, skip_state, mode):
        # Δũ = σ(W_p s + b_p), Eq. 4. A sum of products is faster than a matrix with one column.
        delta = jax.nn.sigmoid(
            jnp.sum(row(params.w, observation) * observation, axis=-1) + params.b[0]
        )
        # The first token is always read.
        delta = jnp.where(inputs.step == 0, 1, delta)
        pending = skip_state + jnp.minimum(delta, 1 - skip_state)
        # u = round(ũ), with the derivative of the identity.
        update = pending + jax.lax.stop_gradient((pending > 0.5).astype(pending.dtype) - pending)
        return Choice(update=update), (1 - update) * pending
