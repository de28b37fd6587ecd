"""Untied LSTM (ULSTM), Eq. 19-20 of its paper: a retrieve gate z reads the cell state for the candidate."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.product import product
from dynskip_jax.functional.transitions.base import Initializers, Transition, gated_output, identity
from dynskip_jax.functional.transitions.lstm import LSTMState, lstm_params


class ULSTMParams(NamedTuple):
    """Weights of Eq. 1-3, 5, 6, 19 and 20, with the gates side by side in the order i, f, z, o.

    Attributes:
        w_x: W, input to gates, (in, gates * hidden).
        w_h: U, state to gates, (hidden, gates * hidden).
        b: Bias of the gates, (gates * hidden,).
        w_xn: W_n, input to candidate, (in, hidden).
        w_n: U_n, z ⊙ tanh(c(t-1)) to candidate, (hidden, hidden).
        b_n: Bias of the candidate, (hidden,).
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    w_xn: Float[Array, "in hidden"]
    w_n: Float[Array, "hidden hidden"]
    b_n: Float[Array, " hidden"]


class ULSTMInputs(NamedTuple):
    """Projected inputs of a ULSTM.

    Attributes:
        gates: W x for i, f, z and o, (*batch, gates * hidden).
        candidate: W_n x, (*batch, hidden).
    """

    gates: Float[Array, "*batch gates"]
    candidate: Float[Array, "*batch hidden"]


@dataclasses.dataclass(frozen=True)
class ULSTM(Transition):
    """c̃ = tanh(W_n x + U_n (z ⊙ tanh(c(t-1))) + b_n): z takes the place of the previous output gate.

    Attributes:
        output_gate: Whether there is an output gate; False fixes o at 1.
    """

    name: ClassVar[str] = "ulstm"
    state: ClassVar = LSTMState
    cell_state: ClassVar[str] = "c"
    recurrent: ClassVar[tuple[str, ...]] = ("w_h", "w_n")
    output_gate: bool = True

    def init(self, key, in_features, hidden, init: Initializers) -> ULSTMParams:
        """Draw the weights; see `Transition`."""
        gates_key, x_key, n_key, b_key = jax.random.split(key, 4)
        gates = lstm_params(gates_key, in_features, hidden, self.output_gates(4), init, forget_gate=1)
        return ULSTMParams(
            *gates,
            init.draw(init.kernel, x_key, (in_features, hidden)),
            init.draw(init.recurrent, n_key, (hidden, hidden)),
            init.draw(init.bias, b_key, (hidden,)),
        )

    def project(self, params: ULSTMParams, x) -> ULSTMInputs:
        """Return W x and W_n x; see `ULSTMInputs`."""
        return ULSTMInputs(product(x, params.w_x), product(x, params.w_xn))

    def step(
        self, params: ULSTMParams, inputs: ULSTMInputs, state: LSTMState, dense, cell_hook=identity
    ) -> LSTMState:
        """Take one step of Eq. 1-3, 5, 6, 19 and 20; see `Transition`."""
        sigmoids = ("sigmoid",) * self.output_gates(4)
        i, f, z, *o = dense(params.w_h, state.h, inputs.gates, params.b, activations=sigmoids)
        retrieved = z * jnp.tanh(state.c)
        n = dense(params.w_n, retrieved, inputs.candidate, params.b_n, activations=("tanh",))
        c = cell_hook(i * n + f * state.c)
        return LSTMState(gated_output(o[0] if o else None, c), c)
