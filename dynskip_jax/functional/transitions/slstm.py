"""sLSTM of xLSTM (Beck et al. 2024, Eq. 8-17): an LSTM with exponential gates and a normaliser."""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.lstm import LSTMParams, lstm_params


@register_for_export
class SLSTMState(NamedTuple):
    """State of an sLSTM. The paper's c(t) is c n exp(m), and its n(t) is n exp(m).

    Before the first step n is 0, and negative values are treated as 0. The stabiliser m changes no
    output, so gradients treat it as a constant.
    """

    h: Float[Array, "*batch hidden"]
    c: Float[Array, "*batch hidden"]  # cell state divided by the normaliser
    n: Float[Array, "*batch hidden"]  # normaliser divided by exp(m)
    m: Float[Array, "*batch hidden"]  # stabiliser


@dataclasses.dataclass(frozen=True)
class SLSTM(Transition):
    """sLSTM (Eq. 8-14), with f = σ(·) and i = exp(·).

        c = f ⊙ c(t-1) + i ⊙ g,    n = f ⊙ n(t-1) + i,    h = o ⊙ c / n

    There is one head: the matrix of h(t-1) is not block-diagonal. A time skip mixes and averages
    the paper's c(t) and n(t), which do not depend on the stabilisers.
    """

    name = "slstm"
    state = SLSTMState
    cell_state = "c"
    averages = "own"
    recurrent = ("w_h",)

    def init(self, key, in_features, hidden, init) -> LSTMParams:
        return lstm_params(key, in_features, hidden, 4, init)

    def step(
        self, params: LSTMParams, inputs, state: SLSTMState, dense, cell_hook=identity
    ) -> SLSTMState:
        activations = ("tanh", "linear", "linear", "sigmoid")
        g, log_i, f, o = dense(params.w_h, state.h, inputs, params.b, activations=activations)
        n = jnp.where(state.n >= 0, state.n, 0)
        log_kept = jax.nn.log_sigmoid(f) + state.m
        # Eq. 15. If n is 0, there is no old cell state to keep, and the input gate sets the
        # stabiliser.
        m = jax.lax.stop_gradient(jnp.where(n > 0, jnp.maximum(log_kept, log_i), log_i))
        # Eq. 16, 17.
        i = jnp.exp(log_i - m)
        kept = _bounded_exp(log_kept - m) * n
        n = kept + i
        c = cell_hook((kept * state.c + i * g) / n)
        return SLSTMState(o * c, c, n, m)

    def average_states(self, weights, states: SLSTMState) -> SLSTMState:
        # The stabiliser makes the largest term 1, so `total` is never small.
        weights = weights[..., None]
        n = jnp.where(states.n >= 0, states.n, 0)
        is_in = (weights > 0) & (n > 0)
        # Before the first step every n is 0. The average of such states has their stabiliser and
        # their cell state, too, through which n has its derivative in the next step.
        is_start = ~jnp.any(is_in, axis=-2, keepdims=True)
        log_terms = states.m + _log(weights) + _log(n)
        lowest = jnp.finfo(n.dtype).min / 2
        m = jnp.where(is_in | (is_start & (weights > 0)), log_terms, lowest)
        m = jax.lax.stop_gradient(jnp.max(m, axis=-2, keepdims=True))
        # A term that is 0 has its derivative in the weight and in n, too.
        scaled_weights = weights * _bounded_exp(states.m - m)
        terms = jnp.where(is_in, jnp.exp(jnp.where(is_in, log_terms - m, 0)), scaled_weights * n)
        shares = jnp.where(is_start, scaled_weights, terms)
        total = jnp.sum(shares, axis=-2)
        c = jnp.sum(shares * states.c, axis=-2) / jnp.where(total > 0, total, 1)
        return SLSTMState(
            jnp.sum(weights * states.h, axis=-2), c, jnp.sum(terms, axis=-2), m[..., 0, :]
        )


def _log(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.log(jnp.where(x > 0, x, 1))


def _bounded_exp(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return exp(x), at most the root of the largest number: 0 times it stays 0."""
    return jnp.exp(jnp.minimum(x, math.log(jnp.finfo(x.dtype).max) / 2))
