"""minLSTM and minGRU (Feng et al. 2024): gates see only the input; steps run in parallel."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, sigmoid
from jaxtyping import Array, Float

from dynskip_jax.functional.product import affine
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.gru import GRUState


@register_for_export
class MinParams(NamedTuple):
    """Weights of gates and candidate, side by side: f, i, n of a minLSTM, or z, n of a minGRU."""

    w_x: Float[Array, "in gates"]
    b: Float[Array, " gates"]


@dataclasses.dataclass(frozen=True)
class LinearTransition(Transition):
    """A transition that is linear in the state: h(t) = a ⊙ h(t-1) + b, with a and b of x(t).

    Without a time skip, and without a depth skip into the state, all steps can be one parallel scan
    (`parallel_unroll`). Recurrent and weight dropout change nothing here, because no matrix
    multiplies the state.
    """

    state = GRUState
    recurrent = ()

    def project(self, params: MinParams, x):
        return affine(x, params.w_x, params.b)

    def prepared(self, inputs: Array) -> tuple[Array, Array]:
        """Return a and b, each (*batch, hidden)."""
        raise NotImplementedError

    def step(self, params, inputs, state: GRUState, dense, cell_hook=identity) -> GRUState:
        a, b = inputs
        return GRUState(cell_hook(a * state.h + b))


@dataclasses.dataclass(frozen=True)
class MinGRU(LinearTransition):
    """minGRU, Section 3.1: h = (1 - z) ⊙ h(t-1) + z ⊙ n.

    z = σ(W_z x + b_z) and n = W_n x + b_n. `forget_bias` is subtracted from the bias of z.
    """

    name = "min_gru"

    def init(self, key, in_features, hidden, init) -> MinParams:
        x_key, b_key = jax.random.split(key)
        b = init.biases(b_key, hidden, 2, forget_gate=0, sign=-1.0)
        return MinParams(init.blocks(init.kernel, x_key, in_features, hidden, 2), b)

    def prepared(self, inputs):
        z, n = jnp.split(inputs, 2, axis=-1)
        return sigmoid(-z), sigmoid(z) * n


@dataclasses.dataclass(frozen=True)
class MinLSTM(LinearTransition):
    """minLSTM, Section 3.2: h = (f ⊙ h(t-1) + i ⊙ n) / (f + i).

    The gates are f = σ(W_f x + b_f) and i = σ(W_i x + b_i), and the candidate is n = W_n x + b_n.
    """

    name = "min_lstm"

    def init(self, key, in_features, hidden, init) -> MinParams:
        x_key, b_key = jax.random.split(key)
        b = init.biases(b_key, hidden, 3, forget_gate=0)
        return MinParams(init.blocks(init.kernel, x_key, in_features, hidden, 3), b)

    def prepared(self, inputs):
        # f / (f + i) = σ(log f - log i), which no small gate divides by 0.
        f, i, n = jnp.split(inputs, 3, axis=-1)
        log_ratio = log_sigmoid(f) - log_sigmoid(i)
        return sigmoid(log_ratio), sigmoid(-log_ratio) * n
