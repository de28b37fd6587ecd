"""LSTM with peephole connections (Gers & Schmidhuber 2000; Eq. 7-12 of the untied LSTM's paper)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from dynskip_jax.functional.product import row
from dynskip_jax.functional.transitions.base import Initializers, Transition, gated_output, identity
from dynskip_jax.functional.transitions.lstm import LSTMState, lstm_params


class PeepholeParams(NamedTuple):
    """Weights of Eq. 7-12, with the gates side by side in the order g, i, f, o (g is c̃ in the paper).

    Attributes:
        w_x: W, input to gates, (in, gates * hidden).
        w_h: U, state to gates, (hidden, gates * hidden).
        b: Bias, (gates * hidden,).
        p_i: Diagonal of P_i, cell state to input gate, (hidden,). The forget gate has a separate P_f,
            although Eq. 8 prints P_i.
        p_f: Diagonal of P_f, cell state to forget gate, (hidden,).
        p_o: Diagonal of P_o, new cell state to output gate, (hidden,); None if that gate is fixed at 1.
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    p_i: Float[Array, " hidden"]
    p_f: Float[Array, " hidden"]
    p_o: Float[Array, " hidden"] | None = None


@dataclasses.dataclass(frozen=True)
class Peephole(Transition):
    """An LSTM whose gates see the cell state: i and f see c(t-1), o sees c(t), Eq. 7-12.

    The peephole matrices are diagonal, as the paper says they often are in practice.

    Attributes:
        output_gate: Whether there is an output gate; False fixes o at 1.
    """

    name: ClassVar[str] = "peephole"
    state: ClassVar = LSTMState
    cell_state: ClassVar[str] = "c"
    recurrent: ClassVar[tuple[str, ...]] = ("w_h",)
    output_gate: bool = True

    def init(self, key, in_features, hidden, init: Initializers) -> PeepholeParams:
        """Draw the weights; see `Transition`."""
        lstm_key, *keys = jax.random.split(key, 4)
        w_x, w_h, b = lstm_params(lstm_key, in_features, hidden, self.output_gates(4), init, forget_gate=2)
        p_i, p_f, p_o = (init.draw(init.bias, k, (hidden,)) for k in keys)
        return PeepholeParams(w_x, w_h, b, p_i, p_f, p_o if self.output_gate else None)

    def step(self, params: PeepholeParams, inputs, state: LSTMState, dense, cell_hook=identity) -> LSTMState:
        """Take one step of Eq. 7-12; see `Transition`."""
        linear = ("linear",) * self.output_gates(4)
        g, i, f, *o = dense(params.w_h, state.h, inputs, params.b, activations=linear)
        i = sigmoid(i + row(params.p_i, state.c) * state.c)
        f = sigmoid(f + row(params.p_f, state.c) * state.c)
        c = cell_hook(i * jnp.tanh(g) + f * state.c)
        o = sigmoid(o[0] + row(params.p_o, c) * c) if o else None
        return LSTMState(gated_output(o, c), c)
