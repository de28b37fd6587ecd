"""IndRNN (Li et al. 2018): each unit sees only its own state."""

import dataclasses
from typing import NamedTuple

import jax
from jaxtyping import Array, Float

from dynskip_jax.functional.product import affine, row
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.gru import GRUState


@register_for_export
class IndRNNParams(NamedTuple):
    """Weights of Eq. 2."""

    w_x: Float[Array, "in hidden"]
    u: Float[Array, " hidden"]  # recurrent weight of each unit, initially uniform in [0, 1)
    b: Float[Array, " hidden"]


@dataclasses.dataclass(frozen=True)
class IndRNN(Transition):
    """h = relu(W x + u ⊙ h(t-1) + b), Eq. 2.

    Recurrent dropout and weight dropout change nothing here, because no matrix multiplies the
    state.
    """

    name = "ind_rnn"
    state = GRUState
    recurrent = ()

    def init(self, key, in_features, hidden, init) -> IndRNNParams:
        x_key, u_key, b_key = jax.random.split(key, 3)
        return IndRNNParams(
            init.draw(init.kernel, x_key, (in_features, hidden)),
            init.draw(jax.nn.initializers.uniform(1.0), u_key, (hidden,)),
            init.draw(init.bias, b_key, (hidden,)),
        )

    def project(self, params: IndRNNParams, x):
        return affine(x, params.w_x, params.b)

    def step(
        self, params: IndRNNParams, inputs, state: GRUState, dense, cell_hook=identity
    ) -> GRUState:
        return GRUState(cell_hook(jax.nn.relu(inputs + row(params.u, inputs) * state.h)))
