"""GRU with the reset gate before the product (Cho et al. 2014) or after it (cuDNN, PyTorch)."""

import dataclasses
from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import (
    Activation,
    Transition,
    activated_gates,
    applied,
    identity,
)


@register_for_export
class GRUState(NamedTuple):
    """State of a cell without a cell state."""

    h: Float[Array, "*batch hidden"]


@register_for_export
class GRUParams(NamedTuple):
    """Weights of a GRU, with the gates side by side in the order r, z."""

    w_x: Float[Array, "in gates"]  # W, input to r, z
    w_h: Float[Array, "hidden gates"]  # U, state to r, z
    b: Float[Array, " gates"]
    w_xn: Float[Array, "in hidden"]  # W_n, input to candidate
    w_n: Float[Array, "hidden hidden"]  # U_n, state to candidate
    b_n: Float[Array, " hidden"]
    # Bias that r multiplies; None with the reset before the product
    b_hn: Float[Array, " hidden"] | None = None


@dataclasses.dataclass(frozen=True)
class GRU(Transition):
    """h = (1 - z) ⊙ n + z ⊙ h(t-1), with (r, z) = σ(W x + U h(t-1) + b).

    The candidate is n = tanh(W_n x + U_n (r ⊙ h(t-1)) + b_n), or
    n = tanh(W_n x + b_n + r ⊙ (U_n h(t-1) + b_hn)).

    Attributes:
        reset: Place of r: `before` the product with U_n (Cho et al. 2014) or `after` it.
        gate_fn: Activation of r and z, in place of σ, as in `flax.nnx.GRUCell`.
        activation_fn: Activation of n, in place of tanh.
    """

    name = "gru"
    state = GRUState
    recurrent = ("w_h", "w_n")
    reset: str = "after"
    gate_fn: Activation = "sigmoid"
    activation_fn: Activation = "tanh"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reset not in ("before", "after"):
            raise UserError(f"unknown reset {self.reset!r}: choose 'before' or 'after'")

    def init(self, key, in_features, hidden, init) -> GRUParams:
        keys = jax.random.split(key, 7)
        b_hn = None
        if self.reset == "after":
            b_hn = init.draw(init.bias, keys[6], (hidden,))
        return GRUParams(
            init.blocks(init.kernel, keys[0], in_features, hidden, 2),
            init.blocks(init.recurrent, keys[1], hidden, hidden, 2),
            init.biases(keys[2], hidden, 2, forget_gate=1),
            init.draw(init.kernel, keys[3], (in_features, hidden)),
            init.draw(init.recurrent, keys[4], (hidden, hidden)),
            init.draw(init.bias, keys[5], (hidden,)),
            b_hn,
        )

    def project(self, params: GRUParams, x):
        return product(x, params.w_x), product(x, params.w_xn)

    def step(
        self, params: GRUParams, inputs, state: GRUState, dense, cell_hook=identity
    ) -> GRUState:
        gates, candidate = inputs
        h = state.h
        # With the reset after the product, r multiplies its result, so it is no addend of `dense`.
        r, z = activated_gates(dense, params.w_h, h, gates, params.b, functions=(self.gate_fn,) * 2)
        if self.reset == "before":
            of_n = dict(functions=(self.activation_fn,))
            (n,) = activated_gates(dense, params.w_n, r * h, candidate, params.b_n, **of_n)
        else:
            inside = r * dense(params.w_n, h, params.b_hn)
            n = applied(self.activation_fn, candidate + row(params.b_n, h) + inside)
        return GRUState(cell_hook((1 - z) * n + z * h))
