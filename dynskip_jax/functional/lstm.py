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


def product(x: Float[Array, "*batch in"], w: Float[Array, "in out"]) -> Float[Array, "*batch out"]:
    """Returns x w, multiplied in the weights' dtype, and summed and returned in the wider one of both.

    With bfloat16 weights a float32 state stays float32, and so do the sums. The same holds of the gradients'
    products, for which such a mixed product has a derivative of its own (reverse mode only).
    """
    # As one matrix: of a product over several axes XLA would turn the gradient round, a copy of it all.
    rows = x.reshape(-1, x.shape[-1])
    if jnp.promote_types(x.dtype, w.dtype) == w.dtype:
        y = jnp.matmul(rows.astype(w.dtype), w)
    else:
        y = _narrow_product(rows, w)
    return y.reshape(*x.shape[:-1], w.shape[-1])


@jax.custom_vjp
def _narrow_product(x: Float[Array, "rows in"], w: Float[Array, "in out"]) -> Float[Array, "rows out"]:
    """x w for w of a narrower dtype. JAX's derivative would multiply by the wide gradient, in its dtype."""
    return jnp.matmul(x.astype(w.dtype), w, preferred_element_type=x.dtype)


def _narrow_product_forward(x, w):
    narrow = x.astype(w.dtype)
    return jnp.matmul(narrow, w, preferred_element_type=x.dtype), (narrow, w)


def _narrow_product_backward(residuals, d):
    x, w = residuals
    narrow = d.astype(w.dtype)
    dx = jax.lax.dot_general(narrow, w, (((1,), (1,)), ((), ())), preferred_element_type=d.dtype)
    dw = jax.lax.dot_general(x, narrow, (((0,), (0,)), ((), ())), preferred_element_type=d.dtype)
    return dx, dw.astype(w.dtype)


_narrow_product.defvjp(_narrow_product_forward, _narrow_product_backward)


def project_gates(params: LSTMParams, x: Float[Array, "*batch in"]) -> Float[Array, "*batch gates"]:
    """Returns W_x x, the part of Eq. 2 that needs no state, so that all steps can share one product."""
    return product(x, params.w_x)


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
    b = params.b.reshape((1,) * (gates_x.ndim - 1) + (-1,))
    g, i, f, o = jnp.split(gates_x + product(h, params.w_h) + b, 4, axis=-1)
    c = jnp.tanh(g) * jax.nn.sigmoid(i) + c * jax.nn.sigmoid(f)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return h, c
