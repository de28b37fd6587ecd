"""Check user-defined transitions: products inside transformations, and their own mixing of states."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from marks import and_slow
from recurrences import assert_same, everything, problem

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.product import product
from dynskip_jax.nn import SkipCell


class Checkpointed(F.LSTM):
    """An LSTM whose products are recomputed in the backward pass."""

    def step(self, params, inputs, state, dense, cell_hook=None):
        def whole(params, inputs, state):
            return F.LSTM.step(self, params, inputs, state, dense)

        return jax.checkpoint(whole)(params, inputs, state)


class Scanned(F.LSTM):
    """An LSTM that takes two steps for each input, in a `lax.scan`."""

    def step(self, params, inputs, state, dense, cell_hook=None):
        def once(state, _):
            return F.LSTM.step(self, params, inputs, state, dense), None

        return jax.lax.scan(once, state, None, length=2)[0]


class Compiled(F.LSTM):
    """An LSTM whose step is jitted separately."""

    def step(self, params, inputs, state, dense, cell_hook=None):
        return jax.jit(lambda state: F.LSTM.step(self, params, inputs, state, dense))(state)


@pytest.mark.parametrize(
    "transition",
    and_slow([Checkpointed(), Scanned(), Compiled()], lambda transition: isinstance(transition, Compiled)),
    ids=lambda t: type(t).__name__,
)
def test_products_inside_transformations_take_the_reference_with_a_warning(double_precision, transition):
    recurrence = F.Recurrence(F.Dynamic(3, 0.5), transition)
    with pytest.warns(UserWarning, match=f"{type(transition).__name__}.step calls dense inside") as caught:
        assert_same(recurrence, *problem(recurrence))
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    params, carry, x, _ = problem(recurrence)
    F.unroll(params, carry, x, recurrence, implementation="reference")


def test_products_of_one_unit_are_not_taken_for_those_inside_transformations():
    """Regression: with hidden size 1, a GRU warned and ran the reference."""
    recurrence = F.Recurrence(F.Dynamic(3, 0.5), F.GRU())

    def run():
        params = recurrence.init(jax.random.key(0), 2, 1)
        carry = F.initial_carry(jax.random.key(1), recurrence, F.zero_state(F.GRU(), (3, 1)))
        return F.unroll(params, carry, jnp.ones((3, 4, 2)), recurrence, implementation="fused")

    jax.eval_shape(run)  # a warning would be an error


class ScaledState(NamedTuple):
    h: jax.Array
    log_scale: jax.Array


class ScaledParams(NamedTuple):
    w_x: jax.Array
    w_h: jax.Array
    decay: jax.Array


@dataclasses.dataclass(frozen=True)
class Scaled(F.Transition):
    """A cell with a scale in the log domain. Scales are mixed and averaged, not their logarithms."""

    state: ClassVar = ScaledState
    recurrent: ClassVar = ("w_h",)
    averages: ClassVar = "own"

    def init(self, key, in_features, hidden, init):
        x_key, h_key = jax.random.split(key)
        w_x = init.draw(init.kernel, x_key, (in_features, 2 * hidden))
        w_h = init.draw(init.kernel, h_key, (hidden, 2 * hidden))
        return ScaledParams(w_x, w_h, init.draw(init.bias, h_key, (hidden,)))

    def project(self, params, x):
        return product(x, params.w_x)

    def step(self, params, inputs, state, dense, cell_hook=lambda h: h):
        new, gate = dense(params.w_h, state.h, inputs, activations=("tanh", "linear"))
        log_scale = jnp.logaddexp(state.log_scale + params.decay[None], gate)
        return ScaledState(cell_hook(new / (1 + jnp.exp(-log_scale))), log_scale)

    def mix_states(self, mix, selected, previous):
        h = mix * selected.h + (1 - mix) * previous.h
        weighted = jnp.log(mix) + selected.log_scale, jnp.log1p(-mix) + previous.log_scale
        return ScaledState(h, jnp.logaddexp(*weighted))

    def average_states(self, weights, states):
        h = jnp.einsum("...k,...kh->...h", weights, states.h)
        return ScaledState(h, jax.nn.logsumexp(states.log_scale, axis=-2, b=weights[..., None]))


class Linear(Scaled):
    mix_states, average_states = F.Transition.mix_states, F.Transition.average_states


@pytest.mark.slow
@pytest.mark.parametrize("skip", [F.Dynamic(3, 0.3), F.Attention(3, 0.3)], ids=["dynamic", "attention"])
def test_states_mix_as_the_transition_says(double_precision, skip):
    """A traced λ and a number, in the fused unroll and in the reference."""
    recurrence = F.Recurrence(skip, Scaled())
    lengths = np.array((7, 2, 5))
    (_, out), _ = assert_same(recurrence, *problem(recurrence), seq_lengths=lengths)
    policy = F.Policy(mix=jax.device_put(0.3))
    (_, traced), _ = assert_same(recurrence, *problem(recurrence), policy=policy, seq_lengths=lengths)
    np.testing.assert_allclose(out.h, traced.h, rtol=1e-12)
    linear = F.Recurrence(skip, Linear())
    assert np.abs(out.h - everything("fused", linear, *problem(linear))[0][1].h).max() > 1e-3


def test_what_a_transition_does_not_declare_is_said():
    with pytest.raises(TypeError, match="set averages = 'own'"):
        type("Wrong", (F.Transition,), {"mix_states": Scaled.mix_states})
    bare = type("Bare", (F.Transition,), {"state": ScaledState})()
    with pytest.raises(UserError, match=r"name them in Bare.recurrent"):
        SkipCell(2, 3, transition=bare, weight_dropout=0.5, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="unknown gate_fn 'sigmoids': use a function or sigmoid, tanh, relu"):
        F.LSTM(gate_fn="sigmoids")
