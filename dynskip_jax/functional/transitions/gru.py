"""GRU with the reset gate before the product (Cho et al. 2014) or after it (cuDNN, Flax, PyTorch)."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.transitions.base import (
    Activation,
    Initializers,
    Transition,
    activated_gates,
    applied,
    identity,
)


class GRUState(NamedTuple):
    """State of a GRU.

    Attributes:
        h: Hidden state, (*batch, hidden).
    """

    h: Float[Array, "*batch hidden"]


class GRUParams(NamedTuple):
    """Weights of a GRU, with the gates side by side in the order r, z.

    Attributes:
        w_x: W, input to r, z, (in, 2 * hidden).
        w_h: U, state to r, z, (hidden, 2 * hidden).
        b: Bias of r, z, (2 * hidden,).
        w_xn: W_n, input to candidate, (in, hidden).
        w_n: U_n, state to candidate, (hidden, hidden).
        b_n: Bias of the candidate, (hidden,).
        b_hn: Bias that r multiplies, (hidden,), with the reset after the product; None with it before.
    """

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    w_xn: Float[Array, "in hidden"]
    w_n: Float[Array, "hidden hidden"]
    b_n: Float[Array, " hidden"]
    b_hn: Float[Array, " hidden"] | None = None


class GRUInputs(NamedTuple):
    """Projected inputs of a GRU.

    Attributes:
        gates: W x for r and z, (*batch, 2 * hidden).
        candidate: W_n x, (*batch, hidden).
    """

    gates: Float[Array, "*batch gates"]
    candidate: Float[Array, "*batch hidden"]


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

    name: ClassVar[str] = "gru"
    state: ClassVar = GRUState
    recurrent: ClassVar[tuple[str, ...]] = ("w_h", "w_n")
    reset: str = "after"
    gate_fn: Activation = "sigmoid"
    activation_fn: Activation = "tanh"

    def __post_init__(self) -> None:
        """Check the option."""
        super().__post_init__()
        if self.reset not in ("before", "after"):
            raise UserError(f"unknown reset {self.reset!r}: choose 'before' or 'after'")

    def init(self, key, in_features, hidden, init: Initializers) -> GRUParams:
        """Draw the weights; see `Transition`. `forget_bias` is added to the bias of z."""
        keys = jax.random.split(key, 7)
        b = init.draw(init.bias, keys[2], (2 * hidden,))
        return GRUParams(
            init.blocks(init.kernel, keys[0], in_features, hidden, 2),
            init.blocks(init.recurrent, keys[1], hidden, hidden, 2),
            b.at[hidden:].add(init.forget_bias),
            init.draw(init.kernel, keys[3], (in_features, hidden)),
            init.draw(init.recurrent, keys[4], (hidden, hidden)),
            init.draw(init.bias, keys[5], (hidden,)),
            init.draw(init.bias, keys[6], (hidden,)) if self.reset == "after" else None,
        )

    def project(self, params: GRUParams, x) -> GRUInputs:
        """Return W x and W_n x; see `GRUInputs`."""
        return GRUInputs(product(x, params.w_x), product(x, params.w_xn))

    def step(
        self, params: GRUParams, inputs: GRUInputs, state: GRUState, dense, cell_hook=identity
    ) -> GRUState:
        """Take one step; see `Transition`."""
        h = state.h
        r, z = activated_gates(
            dense, params.w_h, h, inputs.gates, params.b, functions=(self.gate_fn, self.gate_fn)
        )
        if self.reset == "before":
            (n,) = activated_gates(
                dense, params.w_n, r * h, inputs.candidate, params.b_n, functions=(self.activation_fn,)
            )
        else:
            inside = dense(params.w_n, h, params.b_hn)
            n = applied(self.activation_fn, inputs.candidate + row(params.b_n, h) + r * inside)
        return GRUState(cell_hook((1 - z) * n + z * h))
