"""LSTM (Gui et al. 2019, Eq. 2; Eq. 1-6 of the untied LSTM's paper)."""

import dataclasses
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Float, Key

from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import (
    Activation,
    Transition,
    activated_gates,
    applied,
    identity,
)


@register_for_export
class LSTMState(NamedTuple):
    """Hidden state and cell state of an LSTM."""

    h: Float[Array, "*batch hidden"]
    c: Float[Array, "*batch hidden"]


@register_for_export
class LSTMParams(NamedTuple):
    """Weights of Eq. 2, gates side by side in the order g, i, f, o.

    Without an output gate there is no o.
    """

    w_x: Float[Array, "in gates"]  # input to gates
    w_h: Float[Array, "hidden gates"]  # state to gates
    b: Float[Array, " gates"]


@dataclasses.dataclass(frozen=True)
class LSTM(Transition):
    """c = g ⊙ i + c ⊙ f, h = o ⊙ tanh(c), Eq. 2.

    The gates are (g, i, f, o) = (tanh, σ, σ, σ)(W_x x + W_h h + b).

    Attributes:
        output_gate: Whether there is an output gate; False fixes o at 1.
        gate_fn: Activation of the gates i, f and o, in place of σ, as in `flax.nnx.LSTMCell`.
        activation_fn: Activation of the candidate g and of c, in place of tanh.
    """

    name = "lstm"
    state = LSTMState
    cell_state = "c"
    recurrent = ("w_h",)
    output_gate: bool = True
    gate_fn: Activation = "sigmoid"
    activation_fn: Activation = "tanh"

    def init(self, key, in_features, hidden, init) -> LSTMParams:
        return lstm_params(key, in_features, hidden, 3 + self.output_gate, init)

    def step(
        self, params: LSTMParams, inputs, state: LSTMState, dense, cell_hook=identity
    ) -> LSTMState:
        # g, i, f, and o if there is an output gate.
        functions = [self.activation_fn] + [self.gate_fn] * (2 + self.output_gate)
        g, i, f, *o = activated_gates(
            dense, params.w_h, state.h, inputs, params.b, functions=functions
        )
        c = cell_hook(g * i + state.c * f)
        return LSTMState(output(o, c, self.activation_fn), c)


def output(
    o: list[Float[Array, "*batch hidden"]],
    c: Float[Array, "*batch hidden"],
    function: Activation = "tanh",
) -> Float[Array, "*batch hidden"]:
    """Return h = o ⊙ f(c), or f(c) if `o` is empty: an output gate fixed at 1."""
    h = applied(function, c)
    if o:
        h = o[0] * h
    return h


def lstm_params(
    key: Key[Array, ""],
    in_features: int,
    hidden: int,
    gates: int,
    init: Any,
    *,
    forget_gate: int = 2,
    width: int | None = None,
) -> LSTMParams:
    """Draw the weights of `gates` gates of size `width` (default: `hidden`), side by side."""
    if width is None:
        width = hidden
    x_key, h_key, b_key = jax.random.split(key, 3)
    return LSTMParams(
        init.blocks(init.kernel, x_key, in_features, width, gates),
        init.blocks(init.recurrent, h_key, hidden, width, gates),
        init.biases(b_key, width, gates, forget_gate),
    )
