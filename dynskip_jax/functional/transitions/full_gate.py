"""Full gate recurrence (Greff et al. 2015; Eq. 13-18 of the untied LSTM's paper): gates see all gates."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from dynskip_jax.functional.product import row
from dynskip_jax.functional.transitions.base import Initializers, Transition, gated_output, identity
from dynskip_jax.functional.transitions.lstm import lstm_params


class FullGateState(NamedTuple):
    """State of full gate recurrence.

    Attributes:
        h: Hidden state, (*batch, hidden).
        c: Cell state, (*batch, hidden).
        i: Input gate, (*batch, hidden).
        f: Forget gate, (*batch, hidden).
        o: Output gate, (*batch, hidden); ones if it is fixed at 1.
    """

    h: Float[Array, "*batch hidden"]
    c: Float[Array, "*batch hidden"]
    i: Float[Array, "*batch hidden"]
    f: Float[Array, "*batch hidden"]
    o: Float[Array, "*batch hidden"]


class FullGateParams(NamedTuple):
    """Weights of Eq. 13-18, with the gates side by side in the order g, i, f, o.

    Attributes:
        w_x: W, input to gates, (in, gates * hidden).
        w_h: U, state to gates, (hidden, gates * hidden).
        b: Bias, (gates * hidden,).
        p_i: Diagonal of P_i, cell state to input gate, (hidden,).
        p_f: Diagonal of P_f, cell state to forget gate, (hidden,).
        p_o: Diagonal of P_o, new cell state to output gate, (hidden,); None if that gate is fixed at 1.
        r: Matrices R, from the gates i, f, o of step t-1 to those of step t, (3 * hidden, 3 * hidden);
            (2 * hidden, 2 * hidden) without the output gate.
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    p_i: Float[Array, " hidden"]
    p_f: Float[Array, " hidden"]
    p_o: Float[Array, " hidden"] | None
    r: Float[Array, "gates gates"]


@dataclasses.dataclass(frozen=True)
class FullGateRecurrence(Transition):
    """A peephole LSTM whose gates also see all gates of the previous step, Eq. 13-18.

    Attributes:
        output_gate: Whether there is an output gate; False fixes o at 1, and no gate sees it.
    """

    name: ClassVar[str] = "full_gate"
    state: ClassVar = FullGateState
    cell_state: ClassVar[str] = "c"
    recurrent: ClassVar[tuple[str, ...]] = ("w_h", "r")
    output_gate: bool = True

    def init(self, key, in_features, hidden, init: Initializers) -> FullGateParams:
        """Draw the weights; see `Transition`."""
        lstm_key, r_key, *keys = jax.random.split(key, 5)
        w_x, w_h, b = lstm_params(lstm_key, in_features, hidden, self.output_gates(4), init, forget_gate=2)
        p_i, p_f, p_o = (init.draw(init.bias, k, (hidden,)) for k in keys)
        gates = self.output_gates(3)
        rows = [init.blocks(init.recurrent, k, hidden, hidden, gates) for k in jax.random.split(r_key, gates)]
        return FullGateParams(
            w_x, w_h, b, p_i, p_f, p_o if self.output_gate else None, jnp.concatenate(rows, axis=0)
        )

    def step(
        self, params: FullGateParams, inputs, state: FullGateState, dense, cell_hook=identity
    ) -> FullGateState:
        """Take one step of Eq. 13-18; see `Transition`."""
        count = self.output_gates(4)
        g, i, f, *o = dense(params.w_h, state.h, inputs, params.b, activations=("linear",) * count)
        before = jnp.concatenate([state.i, state.f, state.o][: count - 1], axis=-1)
        r_i, r_f, *r_o = dense(params.r, before, activations=("linear",) * (count - 1))
        i = sigmoid(i + r_i + row(params.p_i, state.c) * state.c)
        f = sigmoid(f + r_f + row(params.p_f, state.c) * state.c)
        c = cell_hook(i * jnp.tanh(g) + f * state.c)
        if not self.output_gate:
            return FullGateState(gated_output(None, c), c, i, f, jnp.ones_like(i))
        o = sigmoid(o[0] + r_o[0] + row(params.p_o, c) * c)
        return FullGateState(gated_output(o, c), c, i, f, o)
