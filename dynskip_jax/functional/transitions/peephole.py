"""LSTM with peephole connections (Gers & Schmidhuber 2000; Eq. 7-12 of the untied LSTM's paper)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from dynskip_jax.functional.product import row
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.lstm import LSTMState, lstm_params


@register_for_export
class PeepholeParams(NamedTuple):
    """Weights of Eq. 7-12, gates side by side in the order g (the paper's c̃), i, f, o."""

    w_x: Float[Array, "in gates"]  # W, input to gates
    w_h: Float[Array, "hidden gates"]  # U, state to gates
    b: Float[Array, " gates"]
    # Diagonals of P. The forget gate has its own, although Eq. 8 prints P_i
    p_i: Float[Array, " hidden"]
    p_f: Float[Array, " hidden"]
    p_o: Float[Array, " hidden"]


@dataclasses.dataclass(frozen=True)
class Peephole(Transition):
    """An LSTM whose gates see the cell state: i and f see c(t-1), o sees c(t), Eq. 7-12.

    The peephole matrices are diagonal, as the paper says they often are in practice.
    """

    name = "peephole"
    state = LSTMState
    cell_state = "c"
    recurrent = ("w_h",)

    def init(self, key, in_features, hidden, init) -> PeepholeParams:
        lstm_key, *keys = jax.random.split(key, 4)
        vectors = (init.draw(init.bias, k, (hidden,)) for k in keys)
        return PeepholeParams(*lstm_params(lstm_key, in_features, hidden, 4, init), *vectors)

    def step(
        self, params: PeepholeParams, inputs, state: LSTMState, dense, cell_hook=identity
    ) -> LSTMState:
        g, i, f, o = dense(params.w_h, state.h, inputs, params.b, activations=("linear",) * 4)
        # i and f see c(t-1); o sees c(t).
        i = sigmoid(i + row(params.p_i, state.c) * state.c)
        f = sigmoid(f + row(params.p_f, state.c) * state.c)
        c = cell_hook(i * jnp.tanh(g) + f * state.c)
        o = sigmoid(o + row(params.p_o, c) * c)
        return LSTMState(o * jnp.tanh(c), c)
