"""The LSTM of Gui et al. (2019), Eq. 2, and of the untied LSTM's paper, Eq. 1-6."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.product import product
from dynskip_jax.functional.transitions.base import (
    Activation,
    Initializers,
    Transition,
    activated_gates,
    gated_output,
    identity,
)


class LSTMState(NamedTuple):
    """State of an LSTM.

    Attributes:
        h: hidden state, (*batch, hidden).
        c: cell state, (*batch, hidden).
    """

    h: Float[Array, "*batch hidden"]
    c: Float[Array, "*batch hidden"]


class LSTMParams(NamedTuple):
    """Weights of Eq. 2, the gates side by side in the order g, i, f, o; without the output gate g, i, f.

    Attributes:
        w_x: W_x, input to gates, (in, gates * hidden).
        w_h: W_h, state to gates, (hidden, gates * hidden).
        b: bias, (gates * hidden,).
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]


@dataclasses.dataclass(frozen=True, repr=False)
class LSTM(Transition):
    """c = g ⊙ i + c ⊙ f, h = o ⊙ tanh(c), with (g, i, f, o) = (tanh, σ, σ, σ)(W_x x + W_h h + b), Eq. 2.

    Attributes:
        output_gate: False fixes o at 1.
        gate_fn: the function of the gates i, f and o, in place of σ, as in `flax.nnx.LSTMCell`.
        activation_fn: the function of the candidate g and of c, in place of tanh.
    """

    name: ClassVar[str] = "lstm"
    state: ClassVar = LSTMState
    cell_state: ClassVar[str] = "c"
    output_gate: bool = True
    gate_fn: Activation = jax.nn.sigmoid
    activation_fn: Activation = jnp.tanh

    def init(self, key, in_features, hidden, init: Initializers) -> LSTMParams:
        """Draw the weights; see `Transition`."""
        return lstm_params(key, in_features, hidden, self.output_gates(4), init, forget_gate=2)

    def project(self, params: LSTMParams, x):
        """Return W_x x, (*batch, gates * hidden)."""
        return product(x, params.w_x)

    def step(self, params: LSTMParams, inputs, state: LSTMState, dense, cell_hook=identity) -> LSTMState:
        """Take one step of Eq. 2; see `Transition`."""
        functions = (self.activation_fn, *(self.gate_fn,) * 3)[: self.output_gates(4)]
        g, i, f, *o = activated_gates(dense, params.w_h, state.h, inputs, params.b, functions=functions)
        c = cell_hook(g * i + state.c * f)
        return LSTMState(gated_output(o[0] if o else None, c, self.activation_fn), c)


def lstm_params(
    key, in_features: int, hidden: int, gates: int, init: Initializers, forget_gate: int
) -> LSTMParams:
    """Draw W_x, W_h and b of gates side by side; `forget_gate` is the index of the forget gate."""
    x_key, h_key, b_key = jax.random.split(key, 3)
    b = init.draw(init.bias, b_key, (gates * hidden,))
    return LSTMParams(
        init.blocks(init.kernel, x_key, in_features, hidden, gates),
        init.blocks(init.recurrent, h_key, hidden, hidden, gates),
        b.at[forget_gate * hidden : (forget_gate + 1) * hidden].add(init.forget_bias),
    )
