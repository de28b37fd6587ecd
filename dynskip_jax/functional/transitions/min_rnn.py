"""minLSTM and minGRU (Feng et al. 2024): gates see only the input, so that steps can run in parallel."""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, sigmoid
from jaxtyping import Array, Float
from typing_extensions import override

from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.transitions.base import Activation, Initializers, Transition, applied, identity
from dynskip_jax.functional.transitions.gru import GRUState


class MinParams(NamedTuple):
    """Weights of the gates and the candidate, side by side.

    Attributes:
        w_x: Input to f, i and the candidate of a minLSTM, or to z and the candidate of a minGRU,
            (in, gates * hidden).
        b: Bias, (gates * hidden,).
    """

    w_x: Float[Array, "in gates"]
    b: Float[Array, " gates"]


@dataclasses.dataclass(frozen=True)
class LinearTransition(Transition):
    """A transition that is linear in the state: h(t) = a ⊙ h(t-1) + b, where a and b depend only on x(t).

    Without a time skip, and without a depth skip into the state, all steps can be one parallel scan
    (`parallel_unroll`). Recurrent and weight dropout change nothing here, because no matrix multiplies the
    state.
    """

    state: ClassVar = GRUState
    recurrent: ClassVar[tuple[str, ...]] = ()

    @override
    def project(self, params: MinParams, x):
        z = product(x, params.w_x)
        return z + row(params.b, z)

    def coefficients(self, inputs: Any) -> tuple[Array, Array]:
        """Return a and b, each (*batch, hidden), from the result of `project`."""
        raise NotImplementedError

    def step(self, params, inputs, state: GRUState, dense, cell_hook=identity) -> GRUState:
        """Take one step; see `Transition`."""
        a, b = self.coefficients(inputs)
        return GRUState(cell_hook(a * state.h + b))


def positive(x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
    """Return g(x) of the paper's log-space variant: x + ½ where x ≥ 0, σ(x) elsewhere."""
    return jnp.where(x >= 0, x + 0.5, sigmoid(x))


@dataclasses.dataclass(frozen=True)
class MinGRU(LinearTransition):
    """minGRU, Section 3.1: h = (1 - z) ⊙ h(t-1) + z ⊙ n.

    The gate is z = σ(W_z x + b_z), and the candidate is n = W_n x + b_n.

    Attributes:
        activation_fn: Activation of n; `positive` in the paper's log-space variant.
    """

    name: ClassVar[str] = "min_gru"
    activation_fn: Activation = identity

    def init(self, key, in_features, hidden, init: Initializers) -> MinParams:
        """Draw the weights; see `Transition`. `forget_bias` is subtracted from the bias of z."""
        x_key, b_key = jax.random.split(key)
        b = init.draw(init.bias, b_key, (2 * hidden,)).at[:hidden].add(-init.forget_bias)
        return MinParams(init.blocks(init.kernel, x_key, in_features, hidden, 2), b)

    @override
    def coefficients(self, inputs):
        z, n = jnp.split(inputs, 2, axis=-1)
        return sigmoid(-z), sigmoid(z) * applied(self.activation_fn, n)


@dataclasses.dataclass(frozen=True)
class MinLSTM(LinearTransition):
    """minLSTM, Section 3.2: h = (f ⊙ h(t-1) + i ⊙ n) / (f + i).

    The gates are f = σ(W_f x + b_f) and i = σ(W_i x + b_i), and the candidate is n = W_n x + b_n.

    Attributes:
        activation_fn: Activation of n; `positive` in the paper's log-space variant.
    """

    name: ClassVar[str] = "min_lstm"
    activation_fn: Activation = identity

    def init(self, key, in_features, hidden, init: Initializers) -> MinParams:
        """Draw the weights, with the gates in the order f, i, n; see `Transition`."""
        x_key, b_key = jax.random.split(key)
        b = init.draw(init.bias, b_key, (3 * hidden,)).at[:hidden].add(init.forget_bias)
        return MinParams(init.blocks(init.kernel, x_key, in_features, hidden, 3), b)

    @override
    def coefficients(self, inputs):
        f, i, n = jnp.split(inputs, 3, axis=-1)
        log_ratio = log_sigmoid(f) - log_sigmoid(i)
        return sigmoid(log_ratio), sigmoid(-log_ratio) * applied(self.activation_fn, n)
