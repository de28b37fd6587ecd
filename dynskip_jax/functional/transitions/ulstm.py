"""Untied LSTM (ULSTM), Eq. 19-20 of its paper: a gate reads the cell state for the candidate."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.product import product
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.lstm import LSTMState, lstm_params, output


@register_for_export
class ULSTMParams(NamedTuple):
    """Weights of Eq. 1-3, 5, 6, 19 and 20, with the gates side by side in the order i, f, z, o."""

    w_x: Float[Array, "in gates"]  # W, input to gates
    w_h: Float[Array, "hidden gates"]  # U, state to gates
    b: Float[Array, " gates"]
    w_xn: Float[Array, "in hidden"]  # W_n, input to candidate
    w_n: Float[Array, "hidden hidden"]  # U_n, z ⊙ tanh(c(t-1)) to candidate
    b_n: Float[Array, " hidden"]


@dataclasses.dataclass(frozen=True)
class ULSTM(Transition):
    """c̃ = tanh(W_n x + U_n (z ⊙ tanh(c(t-1))) + b_n), with a retrieve gate z.

    z takes the place of the previous output gate. `output_gate` says whether there is an output
    gate; False fixes o at 1.
    """

    name = "ulstm"
    state = LSTMState
    cell_state = "c"
    recurrent = ("w_h", "w_n")
    output_gate: bool = True

    def init(self, key, in_features, hidden, init) -> ULSTMParams:
        gates_key, x_key, n_key, b_key = jax.random.split(key, 4)
        return ULSTMParams(
            *lstm_params(gates_key, in_features, hidden, 3 + self.output_gate, init, forget_gate=1),
            init.draw(init.kernel, x_key, (in_features, hidden)),
            init.draw(init.recurrent, n_key, (hidden, hidden)),
            init.draw(init.bias, b_key, (hidden,)),
        )

    def project(self, params: ULSTMParams, x):
        return product(x, params.w_x), product(x, params.w_xn)

    def step(
        self, params: ULSTMParams, inputs, state: LSTMState, dense, cell_hook=identity
    ) -> LSTMState:
        gates, candidate = inputs
        sigmoids = ("sigmoid",) * (3 + self.output_gate)
        # z reads c(t-1) for the candidate n.
        i, f, z, *o = dense(params.w_h, state.h, gates, params.b, activations=sigmoids)
        n = dense(params.w_n, z * jnp.tanh(state.c), candidate, params.b_n, activations=("tanh",))
        c = cell_hook(i * n + f * state.c)
        return LSTMState(output(o, c), c)
