"""Check rewards of single steps in layers that read backwards or stand below a bidirectional layer."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.functional import DecisionTrace
from dynskip_jax.nn import SkipLSTM
from dynskip_jax.rl import AgentObjective, ScheduledValues

LENGTHS = np.array([4, 2, 1])
VALID = np.arange(4) < LENGTHS[:, None]


def trace(seed, **facts):
    rng = np.random.default_rng(seed)
    log_prob = jnp.asarray(np.where(VALID, -rng.exponential(1.0, (3, 4)), 0), jnp.float32)
    entropy = jnp.asarray(np.where(VALID, rng.uniform(0, 1.6, (3, 4)), 0), jnp.float32)
    return DecisionTrace(jnp.ones((3, 4), jnp.int32), log_prob, entropy, valid=jnp.asarray(VALID), **facts)


def loss_of(objective, decisions, rewards):
    scheduled = ScheduledValues(F.Policy("sample"), objective.entropy_coef)
    return objective.loss(scheduled, jnp.zeros(3), decisions, rewards=rewards)


def backward(decision):
    return dataclasses.replace(decision, reverse=True)


def own_steps_reversed(array):
    """Reverse each row within its own length, by a loop."""
    out = np.array(array)
    for row, length in zip(out, LENGTHS, strict=True):
        row[:length] = row[:length][::-1].copy()
    return jnp.asarray(out)


@pytest.mark.parametrize("entropy", ["sampled", "exact"])
@pytest.mark.parametrize("discount", [1.0, 0.5])
def test_reading_backwards_is_reading_the_reversed_sequence(discount, entropy):
    objective = AgentObjective(discount=discount, entropy=entropy, entropy_coef=0.3)
    rewards = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4)), jnp.float32)
    decision = trace(0)
    turned = jax.tree.map(own_steps_reversed, decision)

    @jax.jit
    def losses(decision, turned, rewards, rewards_turned):
        return (
            loss_of(objective, decision, rewards),
            loss_of(objective, backward(decision), rewards),
            loss_of(objective, turned, rewards_turned),
            loss_of(objective, [decision, backward(decision)], rewards),
        )

    plain, back, forth, both = map(float, losses(decision, turned, rewards, own_steps_reversed(rewards)))
    np.testing.assert_allclose(back, forth, rtol=1e-5)
    assert abs(plain - back) > 1e-3
    # The loss of both directions is the sum.
    np.testing.assert_allclose(both, plain + back, rtol=1e-5)


def test_an_action_of_a_backward_layer_is_paid_by_the_steps_before_it():
    objective = AgentObjective(entropy_coef=0.0)
    log_prob = jnp.asarray([[-1.0, -2.0, -4.0]])
    decision = DecisionTrace(jnp.ones((1, 3), jnp.int32), log_prob, jnp.zeros((1, 3)))
    rewards = jnp.asarray([[1.0, 10.0, 100.0]])
    scheduled = ScheduledValues(F.Policy("sample"), 0.0)

    @partial(jax.jit, static_argnums=0)
    def of(reverse):
        turned = dataclasses.replace(decision, reverse=reverse)
        return objective.loss(scheduled, jnp.zeros(1), turned, rewards=rewards)

    assert float(of(False)) == 1 * 111 + 2 * 110 + 4 * 100
    assert float(of(True)) == 1 * 1 + 2 * 11 + 4 * 111


def test_a_reward_of_the_whole_row_has_no_direction():
    objective = AgentObjective(entropy_coef=0.2)
    rewards = jnp.asarray([1.0, -2.0, 0.5])
    of = lambda: [loss_of(objective, trace(0, reverse=back), rewards) for back in (False, True)]
    one, two = jax.jit(of)()
    np.testing.assert_allclose(one, two, rtol=1e-6)


def test_an_action_below_a_layer_that_reads_the_other_way_is_paid_by_all_steps():
    objective = AgentObjective(entropy_coef=0.0, discount=0.5)
    log_prob = jnp.asarray([[-1.0, -2.0, -4.0, -8.0]])
    decision = DecisionTrace(jnp.ones((1, 4), jnp.int32), log_prob, jnp.zeros((1, 4)), noncausal=True)
    rewards, valid = jnp.asarray([[1.0, 10.0, 100.0, 1e6]]), jnp.asarray([[True, True, True, False]])
    scheduled = ScheduledValues(F.Policy("sample"), 0.0)
    # By hand: each reward is halved for every step between it and the action.
    expected = 1 * (1 + 5 + 25) + 2 * (0.5 + 10 + 50) + 4 * (0.25 + 5 + 100)
    for back in (False, True):
        turned = dataclasses.replace(decision, valid=valid, reverse=back)
        loss = partial(objective.loss, scheduled, jnp.zeros(1), turned)
        found = jax.jit(partial(loss, rewards=rewards))()
        np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("num_layers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_the_expected_gradient_of_a_bidirectional_stack_is_that_of_the_expected_loss(num_layers):
    """The expectation enumerates all choices of both directions; the agents are in the lowest layer."""
    time, K = 3, 2
    choices = jnp.array(list(itertools.product(range(1, K + 1), repeat=2 * time))).reshape(-1, 2, 1, time)
    objective = AgentObjective(entropy_coef=0.0)
    scheduled = objective.schedule(1).at(0)
    with jax.enable_x64(True):
        skips = [F.Dynamic(K), F.Previous()][:num_layers]
        how = dict(skip=skips, bidirectional=True, param_dtype=jnp.float64)
        stack = nnx.eval_shape(lambda: SkipLSTM(2, 3, **how, rngs=nnx.Rngs(3)))
        graphdef, params, others = nnx.split(stack, nnx.Param, ...)
        assert not jax.tree.leaves(others)
        rng = np.random.default_rng(3)
        params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 2.0, leaf.shape)), params)
        x = jnp.asarray(rng.normal(size=(1, time, 2)))

        def of_choices(params, actions):
            others = [None] * (2 * num_layers - 2)
            out = nnx.merge(graphdef, params)(x, actions=[*actions, *others], policy=scheduled.policy)
            nll = jax.lax.stop_gradient((out.h.sum(-1) - 1) ** 2)
            probability = jnp.exp(sum(decision.log_prob.sum() for decision in out.decisions))
            surrogate = objective.loss(scheduled, nll, out)
            return jnp.stack([probability * nll.sum(), jax.lax.stop_gradient(probability) * surrogate])

        def of_agents(way):
            def total(params):
                return jax.vmap(lambda actions: of_choices(params, actions))(choices)[:, way].sum()

            gradient = jax.grad(total)(params)
            return [gradient["cells"][i]["agent"] for i in range(2)]

        exact, found = jax.device_get(jax.jit(lambda: (of_agents(0), of_agents(1)))())
        jax.tree.map(lambda a, b: np.testing.assert_allclose(b, a, rtol=1e-7, atol=1e-14), exact, found)
        assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(exact)) > 1e-6
