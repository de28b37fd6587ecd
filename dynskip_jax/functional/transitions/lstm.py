"""LSTM (Gui et al. 2019, Eq. 2; Eq. 1-6 of the untied LSTM's paper)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
from jaxtyping import Array, Float

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
        h: Hidden state, (*batch, hidden).
        c: Cell state, (*batch, hidden).
    """

    h: Float[Array, "*batch hidden"]
    c: Float[Array, "*batch hidden"]


class LSTMParams(NamedTuple):
    """Weights of Eq. 2, with the gates side by side in the order g, i, f, o, or g, i, f without output gate.

    Attributes:
        w_x: W_x, input to gates, (in, gates * hidden).
        w_h: W_h, state to gates, (hidden, gates * hidden).
        b: Bias, (gates * hidden,).
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]


@dataclasses.dataclass(frozen=True)
class LSTM(Transition):
    """c = g ⊙ i + c ⊙ f, h = o ⊙ tanh(c), with (g, i, f, o) = (tanh, σ, σ, σ)(W_x x + W_h h + b), Eq. 2.

    Attributes:
        output_gate: Whether there is an output gate; False fixes o at 1.
        gate_fn: Activation of the gates i, f and o, in place of σ, as in `flax.nnx.LSTMCell`.
        activation_fn: Activation of the candidate g and of c, in place of tanh.
    """

    name: ClassVar[str] = "lstm"
    state: ClassVar = LSTMState
    cell_state: ClassVar[str] = "c"
    recurrent: ClassVar[tuple[str, ...]] = ("w_h",)
    output_gate: bool = True
    gate_fn: Activation = "sigmoid"
    activation_fn: Activation = "tanh"

    def init(self, key, in_features, hidden, init: Initializers) -> LSTMParams:
        """Draw the weights; see `Transition`."""
        return lstm_params(key, in_features, hidden, self.output_gates(4), init, forget_gate=2)

    def step(self, params: LSTMParams, inputs, state: LSTMState, dense, cell_hook=identity) -> LSTMState:
        """Take one step of Eq. 2; see `Transition`."""
        functions = (self.activation_fn, *(self.gate_fn,) * 3)[: self.output_gates(4)]
        g, i, f, *o = activated_gates(dense, params.w_h, state.h, inputs, params.b, functions=functions)
        c = cell_hook(g * i + state.c * f)
        return LSTMState(gated_output(o[0] if o else None, c, self.activation_fn), c)


def lstm_params(
    key, in_features: int, hidden: int, gates: int, init: Initializers, forget_gate: int
) -> LSTMParams:
    """Draw W_x, W_h and b of an LSTM, with the gates side by side.

    Args:
        key: PRNG key.
        in_features: Size of x(t).
        hidden: Size of the state.
        gates: Number of gates, including the candidate.
        init: Initializers of the parameters; `forget_bias` is added to the bias of the forget gate.
        forget_gate: Index of the forget gate.
    """
    x_key, h_key, b_key = jax.random.split(key, 3)
    b = init.draw(init.bias, b_key, (gates * hidden,))
    return LSTMParams(
        init.blocks(init.kernel, x_key, in_features, hidden, gates),
        init.blocks(init.recurrent, h_key, hidden, hidden, gates),
        b.at[forget_gate * hidden : (forget_gate + 1) * hidden].add(init.forget_bias),
    )
