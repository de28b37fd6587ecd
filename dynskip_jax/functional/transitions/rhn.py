"""Recurrent highway network (Zilly et al. 2017, Eq. 6-9): several highway layers inside a step."""

import dataclasses
from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from dynskip_jax.functional.checks import check_whole
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.gru import GRUState


@register_for_export
class RHNParams(NamedTuple):
    """Weights, with the candidate h and the transform gate t of each layer side by side."""

    w_x: Float[Array, "in two_hidden"]  # W, input to the first layer
    r: tuple[Float[Array, "hidden two_hidden"], ...]  # R of each layer
    b: tuple[Float[Array, " two_hidden"], ...]  # biases of each layer


@dataclasses.dataclass(frozen=True)
class RecurrentHighway(Transition):
    """s_l = h_l ⊙ t_l + s_{l-1} ⊙ (1 - t_l).

    In it, (h_l, t_l) = (tanh, σ)(W x [l = 1] + R_l s_{l-1} + b_l). The carry gate is coupled, c = 1
    - t, as in the paper's experiments. `forget_bias` is subtracted from the bias of t: use 2 or
    more for the paper's initial biases of -2 or lower. `depth` is L, the number of highway layers
    in a step.
    """

    name = "rhn"
    state = GRUState
    recurrent = ("r",)
    number = "depth"
    depth: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("RecurrentHighway.depth", self.depth)

    def init(self, key, in_features, hidden, init) -> RHNParams:
        x_key, r_key, b_key = jax.random.split(key, 3)
        r_keys = jax.random.split(r_key, self.depth)
        b_keys = jax.random.split(b_key, self.depth)
        return RHNParams(
            init.blocks(init.kernel, x_key, in_features, hidden, 2),
            tuple(init.blocks(init.recurrent, k, hidden, hidden, 2) for k in r_keys),
            tuple(init.biases(k, hidden, 2, forget_gate=1, sign=-1.0) for k in b_keys),
        )

    def step(
        self, params: RHNParams, inputs, state: GRUState, dense, cell_hook=identity
    ) -> GRUState:
        s = state.h
        for layer, (r, b) in enumerate(zip(params.r, params.b, strict=True)):
            # Only the first layer sees x.
            addends = (inputs, b) if layer == 0 else (b,)
            h, t = dense(r, s, *addends, activations=("tanh", "sigmoid"))
            s = h * t + s * (1 - t)
        return GRUState(cell_hook(s))
