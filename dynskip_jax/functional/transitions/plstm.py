"""PLSTM: peepholes only into the candidate (untied LSTM's paper, Sections 3.2 and 4)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.product import row
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.lstm import LSTMState, lstm_params, output


@register_for_export
class PLSTMParams(NamedTuple):
    """Weights of Eq. 1-6 and a peephole, with the gates side by side in the order g, i, f, o."""

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    p_g: Float[Array, " hidden"]  # diagonal of P, cell state to candidate


@dataclasses.dataclass(frozen=True)
class PLSTM(Transition):
    """An LSTM whose candidate sees the cell state: g = tanh(W x + U h + P c(t-1) + b).

    `output_gate` says whether there is an output gate; False fixes o at 1.
    """

    name = "plstm"
    state = LSTMState
    cell_state = "c"
    recurrent = ("w_h",)
    output_gate: bool = True

    def init(self, key, in_features, hidden, init) -> PLSTMParams:
        lstm_key, p_key = jax.random.split(key)
        lstm = lstm_params(lstm_key, in_features, hidden, 3 + self.output_gate, init)
        return PLSTMParams(*lstm, init.draw(init.bias, p_key, (hidden,)))

    def step(
        self, params: PLSTMParams, inputs, state: LSTMState, dense, cell_hook=identity
    ) -> LSTMState:
        # What the cell state adds: P c(t-1) to the candidate, and zeros to the gates.
        seen = row(params.p_g, state.c) * state.c
        seen = jnp.concatenate([seen, *[jnp.zeros_like(seen)] * (2 + self.output_gate)], axis=-1)
        activations = ("tanh", "sigmoid", "sigmoid", *["sigmoid"] * self.output_gate)
        g, i, f, *o = dense(params.w_h, state.h, inputs, params.b, seen, activations=activations)
        c = cell_hook(i * g + f * state.c)
        return LSTMState(output(o, c), c)
