"""Recurrent highway network (Zilly et al. 2017, Eq. 6-9): several highway layers inside a step."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.transitions.base import Initializers, Transition, identity
from dynskip_jax.functional.transitions.gru import GRUState


class RHNParams(NamedTuple):
    """Weights, with the candidate h and the transform gate t of each layer side by side.

    Attributes:
        w_x: W_H, W_T, input to the first layer, (in, 2 * hidden).
        r: R_H, R_T of each layer, (hidden, 2 * hidden) each.
        b: Biases of each layer, (2 * hidden,) each.
    """

    w_x: Float[Array, "in two_hidden"]
    r: tuple[Float[Array, "hidden two_hidden"], ...]
    b: tuple[Float[Array, " two_hidden"], ...]


@dataclasses.dataclass(frozen=True)
class RecurrentHighway(Transition):
    """s_l = h_l ⊙ t_l + s_{l-1} ⊙ (1 - t_l), with (h_l, t_l) = (tanh, σ)(W x [l = 1] + R_l s_{l-1} + b_l).

    The carry gate is coupled, c = 1 - t, as in the paper's experiments. `forget_bias` is subtracted from the
    bias of t: use 2 or more for the paper's initial biases of -2 or lower.

    Attributes:
        depth: Number L of highway layers in a step.
    """

    name: ClassVar[str] = "rhn"
    state: ClassVar = GRUState
    recurrent: ClassVar[tuple[str, ...]] = ("r",)
    number: ClassVar[str] = "depth"
    depth: int = 3

    def __post_init__(self) -> None:
        """Check the option."""
        if self.depth < 1:
            raise UserError(f"a recurrent highway network needs a depth of at least 1, got {self.depth}")

    def init(self, key, in_features, hidden, init: Initializers) -> RHNParams:
        """Draw the weights; see `Transition`."""
        x_key, r_key, b_key = jax.random.split(key, 3)
        biases = (init.draw(init.bias, k, (2 * hidden,)) for k in jax.random.split(b_key, self.depth))
        return RHNParams(
            init.blocks(init.kernel, x_key, in_features, hidden, 2),
            tuple(
                init.blocks(init.recurrent, k, hidden, hidden, 2) for k in jax.random.split(r_key, self.depth)
            ),
            tuple(b.at[hidden:].add(-init.forget_bias) for b in biases),
        )

    def step(self, params: RHNParams, inputs, state: GRUState, dense, cell_hook=identity) -> GRUState:
        """Take one step; see `Transition`."""
        s = state.h
        for layer, (r, b) in enumerate(zip(params.r, params.b, strict=True)):
            addends = (inputs, b) if layer == 0 else (b,)
            h, t = dense(r, s, *addends, activations=("tanh", "sigmoid"))
            s = h * t + s * (1 - t)
        return GRUState(cell_hook(s))
