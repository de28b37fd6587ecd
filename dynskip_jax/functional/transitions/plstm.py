"""PLSTM, an LSTM with peepholes only into the candidate (Sections 3.2 and 4 of the untied LSTM's paper)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.product import row
from dynskip_jax.functional.transitions.base import Initializers, Transition, gated_output, identity
from dynskip_jax.functional.transitions.lstm import LSTMState, lstm_params


class PLSTMParams(NamedTuple):
    """Weights of Eq. 1-6 and a peephole, with the gates side by side in the order g, i, f, o.

    Attributes:
        w_x: W, input to gates, (in, gates * hidden).
        w_h: U, state to gates, (hidden, gates * hidden).
        b: Bias, (gates * hidden,).
        p_g: Diagonal of P, cell state to candidate, (hidden,).
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    p_g: Float[Array, " hidden"]


@dataclasses.dataclass(frozen=True)
class PLSTM(Transition):
    """An LSTM whose candidate sees the cell state: g = tanh(W x + U h + P c(t-1) + b).

    Attributes:
        output_gate: Whether there is an output gate; False fixes o at 1.
    """

    name: ClassVar[str] = "plstm"
    state: ClassVar = LSTMState
    cell_state: ClassVar[str] = "c"
    recurrent: ClassVar[tuple[str, ...]] = ("w_h",)
    output_gate: bool = True

    def init(self, key, in_features, hidden, init: Initializers) -> PLSTMParams:
        """Draw the weights; see `Transition`."""
        lstm_key, p_key = jax.random.split(key)
        lstm = lstm_params(lstm_key, in_features, hidden, self.output_gates(4), init, forget_gate=2)
        return PLSTMParams(*lstm, init.draw(init.bias, p_key, (hidden,)))

    def step(self, params: PLSTMParams, inputs, state: LSTMState, dense, cell_hook=identity) -> LSTMState:
        """Take one step; see `Transition`."""
        count = self.output_gates(4)
        seen = row(params.p_g, state.c) * state.c
        seen = jnp.pad(seen, [(0, 0)] * (seen.ndim - 1) + [(0, (count - 1) * seen.shape[-1])])
        activations = ("tanh", "sigmoid", "sigmoid", "sigmoid")[:count]
        g, i, f, *o = dense(params.w_h, state.h, inputs, params.b, seen, activations=activations)
        c = cell_hook(i * g + f * state.c)
        return LSTMState(gated_output(o[0] if o else None, c), c)
