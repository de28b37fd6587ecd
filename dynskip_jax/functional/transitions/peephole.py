"""The LSTM with peephole connections, untied LSTM's paper, Eq. 7-12 (Gers & Schmidhuber 2000)."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
from jax.nn import sigmoid
from jaxtyping import Array, Float

from dynskip_jax.functional.product import activate, product, row
from dynskip_jax.functional.transitions.base import Dense, Initializers, Transition, gated_output, identity
from dynskip_jax.functional.transitions.lstm import LSTMState, lstm_params


class PeepholeParams(NamedTuple):
    """Weights of Eq. 7-12, the gates side by side in the order g, i, f, o (g is c̃ there).

    Attributes:
        w_x: input to gates, (in, gates * hidden).
        w_h: U, state to gates, (hidden, gates * hidden).
        b: bias, (gates * hidden,).
        p_i: P_i, cell state to input gate: its diagonal, (hidden,), or (hidden, hidden). The forget gate has
            its own: Eq. 8 prints P_i, as if they shared one.
        p_f: P_f, cell state to forget gate.
        p_o: P_o, new cell state to output gate; None where that gate is fixed at 1.
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    p_i: Float[Array, "..."]
    p_f: Float[Array, "..."]
    p_o: Float[Array, "..."] | None = None


@dataclasses.dataclass(frozen=True)
class Peephole(Transition):
    """An LSTM whose gates see the cell state: i and f the one before, o the new one.

    Attributes:
        output_gate: False fixes o at 1.
        full: the peepholes are full matrices; by default each gate sees its own cell alone.
    """

    name: ClassVar[str] = "peephole"
    state: ClassVar = LSTMState
    cell_state: ClassVar[str] = "c"
    output_gate: bool = True
    full: bool = False

    def init(self, key, in_features, hidden, init: Initializers) -> PeepholeParams:
        """Draws the weights; see `Transition`."""
        lstm_key, *keys = jax.random.split(key, 4)
        w_x, w_h, b = lstm_params(lstm_key, in_features, hidden, self.output_gates(4), init, forget_gate=2)
        p_i, p_f, p_o = (peephole_params(k, hidden, init, self.full) for k in keys)
        return PeepholeParams(w_x, w_h, b, p_i, p_f, p_o if self.output_gate else None)

    def project(self, params: PeepholeParams, x):
        """W x, (*batch, gates * hidden)."""
        return product(x, params.w_x)

    def step(self, params: PeepholeParams, inputs, state: LSTMState, dense, cell_hook=identity) -> LSTMState:
        """One step of Eq. 7-12; see `Transition`."""
        linear = ("linear",) * self.output_gates(4)
        g, i, f, *o = dense(params.w_h, state.h, inputs, params.b, activations=linear)
        i = sigmoid(i + peephole(params.p_i, state.c, dense, self.full))
        f = sigmoid(f + peephole(params.p_f, state.c, dense, self.full))
        c = cell_hook(i * activate(g, ("tanh",)) + f * state.c)
        o = sigmoid(o[0] + peephole(params.p_o, c, dense, self.full)) if o else None
        return LSTMState(gated_output(o, c), c)


def peephole_params(key, hidden: int, init: Initializers, full: bool) -> Float[Array, "..."]:
    """Draws P: a diagonal as biases are drawn, or a matrix as the recurrent ones are."""
    return init.draw(init.recurrent, key, (hidden, hidden)) if full else init.draw(init.bias, key, (hidden,))


def peephole(
    p: Any, c: Float[Array, "*batch hidden"], dense: Dense, full: bool
) -> Float[Array, "*batch hidden"]:
    """P c."""
    return dense(p, c) if full else row(p, c) * c
