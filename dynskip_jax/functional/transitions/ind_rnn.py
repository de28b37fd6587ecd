"""IndRNN (Li et al. 2018): each unit sees only its own state."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.transitions.base import Activation, Initializers, Transition, applied, identity
from dynskip_jax.functional.transitions.gru import GRUState


class IndRNNParams(NamedTuple):
    """Weights of Eq. 2.

    Attributes:
        w_x: W, input to units, (in, hidden).
        u: Recurrent weights, one for each unit, (hidden,).
        b: Bias, (hidden,).
    """

    w_x: Float[Array, "in hidden"]
    u: Float[Array, " hidden"]
    b: Float[Array, " hidden"]


@dataclasses.dataclass(frozen=True)
class IndRNN(Transition):
    """h = σ(W x + u ⊙ h(t-1) + b), Eq. 2, where σ is a rectifier.

    Recurrent dropout and weight dropout change nothing here, because no matrix multiplies the state.

    Attributes:
        activation_fn: Activation σ.
        max_weight: Upper bound of the initial u, which is drawn uniformly from [0, max_weight). Section 3.2
            bounds u by γ^(1/T) for sequences of T steps, so that no state grows by more than γ.
    """

    name: ClassVar[str] = "ind_rnn"
    state: ClassVar = GRUState
    recurrent: ClassVar[tuple[str, ...]] = ()
    activation_fn: Activation = "relu"
    max_weight: float = 1.0

    def __post_init__(self) -> None:
        """Check the option."""
        super().__post_init__()
        if not self.max_weight > 0:
            raise UserError(f"an IndRNN needs a max_weight above 0, got {self.max_weight}")

    def init(self, key, in_features, hidden, init: Initializers) -> IndRNNParams:
        """Draw the weights; see `Transition`."""
        x_key, u_key, b_key = jax.random.split(key, 3)
        return IndRNNParams(
            init.draw(init.kernel, x_key, (in_features, hidden)),
            init.draw(jax.nn.initializers.uniform(self.max_weight), u_key, (hidden,)),
            init.draw(init.bias, b_key, (hidden,)),
        )

    def project(self, params: IndRNNParams, x):
        """Return W x + b, (*batch, hidden)."""
        z = product(x, params.w_x)
        return z + row(params.b, z)

    def step(self, params: IndRNNParams, inputs, state: GRUState, dense, cell_hook=identity) -> GRUState:
        """Take one step of Eq. 2; see `Transition`."""
        return GRUState(cell_hook(applied(self.activation_fn, inputs + row(params.u, inputs) * state.h)))
