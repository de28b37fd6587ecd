"""The LSTM transition of Gui et al. (2019), Eq. 2: one step from (input, state) to a new state."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


class LSTMParams(NamedTuple):
    """Weights of Eq. 2, the four gates side by side in the paper's order g, i, f, o.

    Attributes:
        w_x: W_x, input to gates, (in, 4 * hidden).
        w_h: W_h, state to gates, (hidden, 4 * hidden).
        b: bias, (4 * hidden,).
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]


def project_gates(params: LSTMParams, x: Float[Array, "*batch in"]) -> Float[Array, "*batch gates"]:
    """Returns W_x x + b, the part of Eq. 2 that needs no state, so that all steps can share one product."""
    gates = x @ params.w_x
    return gates + params.b.reshape((1,) * (gates.ndim - 1) + (-1,))


def lstm_transition(
    params: LSTMParams,
    gates_x: Float[Array, "*batch gates"],
    h: Float[Array, "*batch hidden"],
    c: Float[Array, "*batch hidden"],
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"]]:
    """One LSTM step, Eq. 2.

    Args:
        params: the weights.
        gates_x: `project_gates(params, x)`, (*batch, 4 * hidden).
        h: the hidden state that enters, h̃(t-1) in the paper, (*batch, hidden).
        c: the cell state that enters, c̃(t-1) in the paper, (*batch, hidden).

    Returns:
        The new hidden state h(t) and cell state c(t), each (*batch, hidden).
    """
    g, i, f, o = jnp.split(gates_x + h @ params.w_h, 4, axis=-1)
    c = jnp.tanh(g) * jax.nn.sigmoid(i) + c * jax.nn.sigmoid(f)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h, c
