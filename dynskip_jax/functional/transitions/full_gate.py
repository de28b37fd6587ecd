"""Full gate recurrence (Greff et al. 2015; untied LSTM's paper, Eq. 13-18): gates see all gates."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from dynskip_jax.functional.product import row
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Transition, identity
from dynskip_jax.functional.transitions.peephole import Peephole


@register_for_export
class FullGateState(NamedTuple):
    """Hidden state, cell state, and input, forget and output gate."""

    h: Float[Array, "*batch hidden"]
    c: Float[Array, "*batch hidden"]
    i: Float[Array, "*batch hidden"]
    f: Float[Array, "*batch hidden"]
    o: Float[Array, "*batch hidden"]


@register_for_export
class FullGateParams(NamedTuple):
    """Weights of Eq. 13-18: those of the peephole LSTM, and R."""

    w_x: Float[Array, "in gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    p_i: Float[Array, " hidden"]
    p_f: Float[Array, " hidden"]
    p_o: Float[Array, " hidden"]
    # R, from the gates i, f, o of step t-1 to those of step t
    r: Float[Array, "three_hidden three_hidden"]


@dataclasses.dataclass(frozen=True)
class FullGateRecurrence(Transition):
    """A peephole LSTM whose gates also see all gates of the previous step, Eq. 13-18."""

    name = "full_gate"
    state = FullGateState
    cell_state = "c"
    recurrent = ("w_h", "r")

    def init(self, key, in_features, hidden, init) -> FullGateParams:
        key, *r_keys = jax.random.split(key, 4)
        rows = [init.blocks(init.recurrent, k, hidden, hidden, 3) for k in r_keys]
        peephole = Peephole().init(key, in_features, hidden, init)
        return FullGateParams(*peephole, jnp.concatenate(rows, axis=0))

    def step(
        self, params: FullGateParams, inputs, state: FullGateState, dense, cell_hook=identity
    ) -> FullGateState:
        g, i, f, o = dense(params.w_h, state.h, inputs, params.b, activations=("linear",) * 4)
        before = jnp.concatenate([state.i, state.f, state.o], axis=-1)
        # R multiplies all gates of the step before, and adds to each gate of this one.
        r_i, r_f, r_o = dense(params.r, before, activations=("linear",) * 3)
        i = sigmoid(i + r_i + row(params.p_i, state.c) * state.c)
        f = sigmoid(f + r_f + row(params.p_f, state.c) * state.c)
        c = cell_hook(i * jnp.tanh(g) + f * state.c)
        o = sigmoid(o + r_o + row(params.p_o, c) * c)
        return FullGateState(o * jnp.tanh(c), c, i, f, o)
