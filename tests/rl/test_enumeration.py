"""Check gradients of the losses against sums over all action sequences, in double precision."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import drawn
from flax import nnx

from benchmarks import tiny_problem
from benchmarks.tiny_problem import (
    K,
    exact_objective,
    problem,
    tuples,
)
from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.nn import SkipLSTM

pytestmark = pytest.mark.usefixtures("double_precision")


def runs_of(agent):
    return tiny_problem.every_sequence(problem()._replace(agent=agent))


def trace_of(runs):
    return F.DecisionTrace.of(runs.decision, tiny_problem.RECURRENCE.time_skip, None, mode="sample")


BASELINES = {
    "none": lambda runs: None,
    "constant": lambda runs: 5.0,
    "function": lambda runs: lambda returns, counted: jnp.full_like(returns, 2.0),
    "value of a step": lambda runs: jnp.broadcast_to(problem().x[:, 0], runs.rewards.shape),
    "knows the action": lambda runs: runs.decision.action.astype(float),
}


@functools.cache
def probabilities():
    return np.exp(np.asarray(jax.jit(runs_of)(problem().agent).decision.log_prob).sum(axis=1))


@functools.cache
def gradients(beta, per_step):
    """Return the gradient of the objective, and the expected one of the loss with each baseline."""
    pi = probabilities()

    def objective(agent):
        return exact_objective(problem()._replace(agent=agent), beta, per_step)

    def expected(agent, name):
        runs = runs_of(agent)
        reward = runs.rewards
        if not per_step:  # that of the last step stands for the row
            reward = reward[:, -1]
        # The mean over rows, weighted like this, is the expectation over all sequences.
        how = dict(baseline=BASELINES[name](runs), entropy_coef=beta, weights=pi * len(pi))
        return rl.reinforce(trace_of(runs), reward, **how)

    def both(agent):
        return jax.grad(objective)(agent), {
            name: jax.grad(expected)(agent, name) for name in BASELINES
        }

    return jax.jit(both)(problem().agent)


def assert_opposite(surrogate, exact):
    for a, b in zip(jax.tree.leaves(surrogate), jax.tree.leaves(exact), strict=True):
        assert np.abs(b).max() > 1e-4
        np.testing.assert_allclose(a, -np.asarray(b), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("beta", "per_step"), list(itertools.product((0.0, 0.7), (False, True))))
def test_expected_gradient_is_minus_that_of_the_objective_with_each_baseline(beta, per_step):
    np.testing.assert_allclose(probabilities().sum(), 1.0, rtol=1e-12)
    exact, found = gradients(beta, per_step)
    for name in ("none", "constant", "function", "value of a step"):
        assert_opposite(found[name], exact)


def test_a_baseline_that_knows_the_action_is_noticed():
    exact, found = gradients(0.0, True)
    difference = jax.tree.map(np.add, found["knows the action"], exact)
    assert max(np.abs(leaf).max() for leaf in difference) > 1e-3


def test_leave_one_out_over_two_rollouts_keeps_the_expected_gradient():
    pi = probabilities()
    pairs = tuples(2).T  # (rollout, pair): all pairs of sequences
    weights = pi[pairs].prod(axis=0, keepdims=True) * len(pairs[0])
    weights = jnp.broadcast_to(weights, pairs.shape)

    def expected(agent):
        runs = runs_of(agent)
        trace = jax.tree.map(lambda leaf: leaf[pairs], trace_of(runs))
        reward = runs.rewards[:, -1][pairs]
        baselines = (rl.leave_one_out, rl.leave_one_out(reward))
        return [rl.reinforce(trace, reward, baseline=of, weights=weights) for of in baselines]

    exact, _ = gradients(0.0, False)
    for found in jax.jit(jax.jacrev(expected))(problem().agent):
        assert_opposite(found, exact)


def test_expected_vimco_gradient_of_agent_and_network_is_minus_that_of_the_objective():
    size = 2
    of = problem()
    places = tuples(size).T
    weights = probabilities()[places].prod(axis=0) * len(places[0])

    def expected(lstm, agent, head):
        runs = tiny_problem.every_sequence(of._replace(lstm=lstm, agent=agent, head=head))
        trace = jax.tree.map(lambda leaf: leaf[places], trace_of(runs))
        reward = runs.rewards[:, -1][places]
        network = -(rl.averaged_log_likelihood(reward) * weights).mean()
        of_all = jnp.broadcast_to(weights[None], places.shape)
        return network + rl.reinforce(trace, rl.vimco(reward), weights=of_all)

    def objective(lstm, agent, head):
        return tiny_problem.exact_averaged(of._replace(lstm=lstm, agent=agent, head=head), size)

    both = jax.jit(
        lambda *trained: [jax.grad(f, argnums=(0, 1, 2))(*trained) for f in (expected, objective)]
    )
    assert_opposite(*both(of.lstm, of.agent, of.head))


# --- Several layers and directions ---


def test_expected_gradient_of_a_bidirectional_stack_is_that_of_the_expected_loss():
    """The expectation is over all choices of both directions of the lowest layer."""
    skips = [F.Dynamic(K)]
    options = dict(skip=skips, bidirectional=True, param_dtype=jnp.float64)
    module = drawn(lambda: SkipLSTM(2, 3, rngs=nnx.Rngs(3), **options), scale=1.0)
    graphdef, params, _ = nnx.split(module, nnx.Param, ...)
    x = jnp.asarray(np.random.default_rng(3).normal(size=(1, 3, 2)))
    # (sequence, direction, row, time)
    choices = jnp.array(list(itertools.product((1, 2), repeat=6))).reshape(-1, 2, 1, 3)

    def losses(params):
        def of_choices(actions):
            out = nnx.merge(graphdef, params)(x, actions=[*actions])
            nll = jax.lax.stop_gradient((out.h.sum(-1) - 1) ** 2)
            probability = jnp.exp(sum(decision.log_prob.sum() for decision in out.decisions))
            surrogate = rl.agent_loss(out, -nll, baseline=None)
            return probability * nll.sum(), jax.lax.stop_gradient(probability) * surrogate

        return [each.sum() for each in jax.vmap(of_choices)(choices)]

    gradient = lambda way: jax.grad(lambda params: losses(params)[way])(params)["cells"]
    exact, found = jax.jit(
        lambda: [[gradient(way)[i]["agent"] for i in (0, 1)] for way in (0, 1)]
    )()
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7, atol=1e-13)
    assert all(max(np.abs(leaf).max() for leaf in jax.tree.leaves(each)) > 1e-6 for each in exact)
