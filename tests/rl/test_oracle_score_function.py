"""Check the score-function gradient against enumeration of all action sequences (Eq. 4 and 5)."""

import functools
import itertools

import batched
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from marks import and_slow

from benchmarks import tiny_problem
from benchmarks.tiny_problem import SEQUENCES, K, problem
from dynskip_jax import functional as F
from dynskip_jax import rl

reinforce_loss = compiled(batched.reinforce_loss)
leave_one_out_mean = compiled(rl.leave_one_out_mean)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def rollout(agent, keys, actions=None):
    """Run copies of the input; return their decisions and the rewards of each step, (count, time)."""
    runs = tiny_problem.rollout(problem()._replace(agent=agent), keys, actions)
    return runs.decision, runs.rewards


def returns(rewards, per_step):
    return rewards if per_step else rewards[:, -1]


def exact_objective(agent, entropy_coef, per_step):
    """Compute J_2 = E[R] + β H, with every expectation as a sum over all action sequences."""
    return tiny_problem.exact_objective(problem()._replace(agent=agent), entropy_coef, per_step)


def every_sequence(agent):
    return rollout(agent, jax.random.split(jax.random.key(0), len(SEQUENCES)), jnp.asarray(SEQUENCES))


@functools.cache
def gradients():
    """Return a function of `entropy_coef` and `baseline` that returns gradients and probabilities.

    The gradients are those of a terminal and of a per-step reward. Each is a pair: that of the expected loss,
    and that of the exact objective. The probabilities are those of all action sequences.
    """

    def expected(agent, pi, entropy_coef, baseline, per_step):
        decision, rewards = every_sequence(agent)
        options = dict(entropy_coef=entropy_coef, baseline=baseline)
        return jnp.sum(pi * reinforce_loss(decision.log_prob, returns(rewards, per_step), **options))

    def both(agent, entropy_coef, baseline):
        pi = jnp.exp(every_sequence(agent)[0].log_prob.sum(axis=1))
        found = [
            (
                jax.grad(expected)(agent, pi, entropy_coef, baseline, per_step),
                jax.grad(exact_objective)(agent, entropy_coef, per_step),
            )
            for per_step in (False, True)
        ]
        return found, pi

    program = jax.jit(both)
    return lambda entropy_coef, baseline=0.0: program(problem().agent, entropy_coef, baseline)


CASES = list(itertools.product((0.0, 0.3, 1.0), (False, True)))


@pytest.mark.parametrize(("entropy_coef", "per_step"), CASES)
def test_expected_surrogate_gradient_is_minus_the_gradient_of_the_objective(entropy_coef, per_step):
    found, pi = gradients()(entropy_coef)
    np.testing.assert_allclose(pi.sum(), 1.0, rtol=1e-12)
    for a, b in zip(*jax.tree.map(np.asarray, found[per_step]), strict=True):
        assert np.abs(b).max() > 1e-4
        np.testing.assert_allclose(a, -b, rtol=1e-9, atol=1e-12)


@functools.cache
def sampled_gradients():
    """Return a function of `entropy_coef` that returns gradients of many keys, by kind of reward."""

    def of_one_key(agent, seed, entropy_coef):
        def losses(agent):
            decision, rewards = rollout(agent, jax.random.key(seed)[None])
            return [
                reinforce_loss(decision.log_prob, returns(rewards, per_step), entropy_coef=entropy_coef).sum()
                for per_step in (False, True)
            ]

        return jax.jacrev(losses)(agent)

    program = jax.jit(jax.vmap(of_one_key, in_axes=(None, 0, None)))
    return lambda entropy_coef: program(problem().agent, np.arange(20_000), entropy_coef)


@pytest.mark.parametrize("entropy_coef", [0.0, 0.3, 1.0])
def test_mean_over_sampled_keys_is_within_three_standard_errors(entropy_coef):
    exact, other = (gradients()(coef)[0] for coef in (entropy_coef, entropy_coef + 1.0))
    for per_step, samples in enumerate(sampled_gradients()(entropy_coef)):
        samples = [np.asarray(s) for s in samples]
        errors = [np.std(s, axis=0) / np.sqrt(len(s)) for s in samples]

        def in_standard_errors(objective, samples=samples, errors=errors):
            rows = zip(samples, errors, objective, strict=True)
            return [np.abs((np.mean(s, axis=0) + np.asarray(e)) / error).max() for s, error, e in rows]

        # 99.7 % of independent components lie within three standard errors. These are few and dependent.
        assert max(in_standard_errors(exact[per_step][1])) < 3.0
        # The bound is strict enough: the gradient of another objective exceeds it by far.
        assert max(in_standard_errors(other[per_step][1])) > 6.0


def test_constant_and_leave_one_out_baselines_keep_the_expected_gradient():
    (plain, _), pi = gradients()(1.0)[0][0], gradients()(1.0)[1]
    shifted, _ = gradients()(1.0, 5.0)[0][0]
    for a, b in zip(plain, shifted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)

    # For leave-one-out over two rollouts, enumerate all pairs of sequences.
    pairs = np.array(list(itertools.product(range(len(SEQUENCES)), repeat=2)))

    def expected_pairs(agent):
        decision, rewards = every_sequence(agent)
        R = rewards[:, -1][pairs]
        baseline = jax.vmap(rl.leave_one_out_mean)(R).reshape(-1)
        log_prob = decision.log_prob[pairs.ravel()]
        loss = reinforce_loss(log_prob, R.reshape(-1), baseline=baseline).reshape(-1, 2)
        return jnp.sum(pi[pairs[:, 0]] * pi[pairs[:, 1]] * loss.mean(axis=1))

    for a, b in zip(plain, jax.jit(jax.grad(expected_pairs))(problem().agent), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_reward_to_go_by_hand():
    rewards = np.array([[1.0, 2.0, 4.0]])
    reward_to_go = compiled(rl.reward_to_go)
    np.testing.assert_allclose(reward_to_go(rewards, 1.0), [[7.0, 6.0, 4.0]])
    np.testing.assert_allclose(reward_to_go(rewards, 0.5), [[3.0, 4.0, 4.0]])
    np.testing.assert_allclose(reward_to_go(rewards, 0.0), [[1.0, 2.0, 4.0]])


def test_terminal_loss_is_equation_5_by_hand():
    log_probs = np.log(np.array([[0.5, 0.25], [0.1, 1.0]]))
    R = np.array([-1.0, -2.0])
    # -Σ log π · (R - Σ log π - 1)
    s = np.log([0.5 * 0.25, 0.1])
    np.testing.assert_allclose(reinforce_loss(log_probs, R), -s * (np.array(R) - s - 1), rtol=1e-12)
    gradient = jax.jit(jax.grad(lambda lp: batched.reinforce_loss(lp, R).sum()))(log_probs)
    np.testing.assert_allclose(gradient, -(np.array(R) - s - 1)[:, None] * np.ones((1, 2)), rtol=1e-12)


def test_per_step_loss_by_hand_with_discount_entropy_baseline_and_padding():
    log_probs = np.array([[-1.0, -2.0, -9.0]])
    rewards = np.array([[3.0, 5.0, 99.0]])
    valid = np.array([[True, True, False]])
    baseline = np.array([[0.25, 0.75, 0.0]])
    loss = reinforce_loss(log_probs, rewards, valid=valid, discount=0.5, entropy_coef=0.1, baseline=baseline)
    G1 = 5.0 + 0.1 * 2.0
    G0 = 3.0 + 0.1 * 1.0 + 0.5 * G1
    np.testing.assert_allclose(loss, [1.0 * (G0 - 0.1 - 0.25) + 2.0 * (G1 - 0.1 - 0.75)], rtol=1e-12)


def test_baseline_may_be_one_number_in_an_array():
    log_probs, baseline = np.log(np.array([[0.5, 0.25], [0.2, 0.4]])), np.array(0.25)
    for rewards in (np.array([1.0, 2.0]), np.array([[1.0, 2.0], [3.0, 4.0]])):
        np.testing.assert_array_equal(
            reinforce_loss(log_probs, rewards, baseline=baseline),
            reinforce_loss(log_probs, rewards, baseline=0.25),
        )


def test_leave_one_out_mean_of_a_group_divided_among_devices():
    values = np.asarray(np.random.default_rng(0).normal(size=(8, 3)))
    divided = functools.partial(rl.leave_one_out_mean, axis_name="data")
    divided = jax.jit(jax.vmap(divided, axis_name="data"))
    np.testing.assert_allclose(
        divided(values.reshape(4, 2, 3)).reshape(8, 3), leave_one_out_mean(values), rtol=1e-12
    )


@pytest.mark.parametrize("counted", [(1, 0, 1, 1, 0, 0, 0, 1), (0, 0, 1, 0, 0, 0, 0, 0), (1,) * 8])
def test_leave_one_out_mean_of_those_that_count(counted):
    values, counted = np.random.default_rng(0).normal(size=(8, 3)), np.array(counted, bool)
    expected = np.zeros((8, 3))
    for i in range(8):
        others = [j for j in np.flatnonzero(counted) if j != i]
        expected[i] = values[others].mean(axis=0) if others else 0
    values[~counted] = np.inf  # values that do not count must be ignored
    given = values, counted
    np.testing.assert_allclose(leave_one_out_mean(given[0], counted=given[1]), expected, atol=1e-12)
    divided = jax.jit(jax.vmap(lambda v, c: rl.leave_one_out_mean(v, "data", c), axis_name="data"))
    pieces = given[0].reshape(4, 2, 3), given[1].reshape(4, 2)
    np.testing.assert_allclose(divided(*pieces).reshape(8, 3), expected, atol=1e-12)


def test_rewards_are_stopped():
    gradient = jax.jit(jax.grad(lambda r: batched.reinforce_loss(np.array([[-1.0]]), r).sum()))(
        np.array([2.0])
    )
    np.testing.assert_array_equal(gradient, [0.0])


def test_a_sampled_agent_sends_no_gradient_into_the_network_and_attention_does():
    lstm, agent, _, x, (h0, c0) = problem()

    def trace(lstm, x, kind):
        recurrence = F.Recurrence(F.TIME_SKIPS[kind](K, 0.7))
        keys = jax.random.split(jax.random.key(0), 1)
        carry = F.initial_carry(keys, recurrence, F.LSTMState(h0[None], c0[None]))
        _, out = F.unroll(F.LayerParams(lstm, agent), carry, x[None], recurrence)
        return out.decision.log_prob.sum() + out.decision.entropy.sum()

    gradient = jax.jit(jax.grad(trace, argnums=(0, 1)), static_argnums=2)
    largest = lambda tree: max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))
    assert largest(gradient(lstm, x, "dynamic")) == 0.0
    assert largest(gradient(lstm, x, "attention")) > 1e-3


@pytest.mark.parametrize("kind", and_slow(["fixed", "attention", "dynamic"], lambda kind: kind != "fixed"))
def test_gradients_with_replayed_actions_agree_with_finite_differences(kind):
    lstm, agent, head, x, (h0, c0) = problem()
    actions = jax.device_put(np.array([[1, 2, 2]]))
    recurrence = F.Recurrence(F.TIME_SKIPS[kind](K, 0.7))

    def loss(lstm, x, h0, c0):
        keys = jax.random.split(jax.random.key(0), 1)
        carry = F.initial_carry(keys, recurrence, F.LSTMState(h0[None], c0[None]))
        params = F.LayerParams(lstm, agent if kind != "fixed" else None)
        _, out = F.unroll(params, carry, x[None], recurrence, actions=actions)
        return jnp.sum(jnp.sin(out.h @ head))

    arguments = (lstm, x, h0, c0)
    program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))
    _, gradients = program(*arguments)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda a: rng.normal(size=a.shape), arguments)
    shifted = lambda e: program(*jax.tree.map(lambda a, d: np.asarray(a) + e * d, arguments, direction))[0]
    numeric = (float(shifted(1e-5)) - float(shifted(-1e-5))) / 2e-5
    analytic = sum(
        jax.tree.leaves(jax.tree.map(lambda g, d: np.sum(np.asarray(g) * d), gradients, direction))
    )
    np.testing.assert_allclose(analytic, numeric, rtol=1e-7)
