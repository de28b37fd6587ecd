"""Check user-defined transitions: products inside transformations, and their own mixing of states."""

import dataclasses
import warnings
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from marks import and_slow
from recurrences import BATCH, TIME, assert_same, problem

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
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        params, carry, x, _ = problem(recurrence)
        F.unroll(params, carry, x, recurrence, implementation="reference")


@pytest.mark.parametrize("transition", [F.GRU(), F.LSTM()], ids=lambda transition: transition.name)
def test_products_of_one_unit_are_not_taken_for_those_inside_transformations(transition):
    """Regression: with hidden size 1, a GRU warned and ran the reference."""
    recurrence = F.Recurrence(F.Dynamic(3, 0.5), transition)

    def run():
        params = recurrence.init(jax.random.key(0), 2, 1)
        carry = F.initial_carry(jax.random.key(1), recurrence, F.zero_state(transition, (3, 1)))
        return F.unroll(params, carry, jnp.ones((3, 4, 2)), recurrence, implementation="fused")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jax.eval_shape(run)


class ScaledState(NamedTuple):
    """Output h, and the logarithm of a positive scale."""

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


def numpy_loop(params, carry, x, K, mix, weigh):
    """Return h of all steps; `weigh(t)` returns the weights of the K states, newest first, at step t."""
    h = [np.asarray(carry.slots.h)[:, k] for k in reversed(range(K))]
    log_scale = [np.asarray(carry.slots.log_scale)[:, k] for k in reversed(range(K))]
    for t in range(TIME):
        weights = weigh(t)  # (batch, K), newest first
        old_h = sum(weights[:, k, None] * h[-1 - k] for k in range(K))
        old_scale = sum(weights[:, k, None] * np.exp(log_scale[-1 - k]) for k in range(K))
        entering = mix * old_h + (1 - mix) * h[-1]
        scale = mix * old_scale + (1 - mix) * np.exp(log_scale[-1])
        sums = x[:, t] @ params.w_x + entering @ params.w_h
        new, gate = np.split(np.asarray(sums), 2, axis=1)
        scale = scale * np.exp(params.decay) + np.exp(gate)
        h.append(np.tanh(new) / (1 + 1 / scale))
        log_scale.append(np.log(scale))
    return np.stack(h[K:], axis=1)


SKIPS = {
    "fixed": F.Fixed(3, 0.3),
    "dynamic": F.Dynamic(3, 0.3),
    "dynamic carried": F.Dynamic(3, 0.3, first_step="carried"),
    "mean": F.Mean(3, 0.3),
    "attention": F.Attention(3, 0.3),
}


@pytest.mark.parametrize("name", ["fixed", "dynamic", "mean"])
def test_states_mix_as_the_transition_says(double_precision, name):
    recurrence = F.Recurrence(SKIPS[name], Scaled())
    params, carry, x, _ = problem(recurrence)
    _, out = F.unroll(params, carry, x, recurrence)
    action = np.asarray(out.decision.action)
    weigh = {"mean": lambda t: np.full((BATCH, 3), 1 / 3)}.get(name, lambda t: np.eye(3)[action[:, t] - 1])
    expected = numpy_loop(params.transition, carry, np.asarray(x), 3, 0.3, weigh)
    np.testing.assert_allclose(out.h, expected, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", and_slow(list(SKIPS), {"dynamic", "attention"}.__contains__))
@pytest.mark.parametrize(
    "traced", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["number", "traced"]
)
def test_gradients_of_mixed_states_equal_those_of_the_reference(double_precision, name, traced):
    recurrence = F.Recurrence(SKIPS[name], Scaled())
    policy = F.Policy(mix=jax.device_put(0.4)) if traced else None
    assert_same(recurrence, *problem(recurrence), policy=policy, seq_lengths=np.array((7, 2, 5)))


def test_what_a_transition_does_not_declare_is_said():
    with pytest.raises(TypeError, match="set averages = 'own'"):
        type("Wrong", (F.Transition,), {"mix_states": Scaled.mix_states})
    bare = type("Bare", (F.Transition,), {"state": ScaledState})()
    with pytest.raises(UserError, match=r"name them in Bare.recurrent"):
        SkipCell(2, 3, transition=bare, weight_dropout=0.5, rngs=nnx.Rngs(0))
    with pytest.raises(UserError, match="unknown gate_fn 'sigmoids': use a function or sigmoid, tanh, relu"):
        F.LSTM(gate_fn="sigmoids")
