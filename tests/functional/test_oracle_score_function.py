"""The score-function gradient against exact enumeration of all action sequences (Eq. 4 and 5)."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batched import reinforce_loss
from marks import and_slow

from benchmarks import tiny_problem
from benchmarks.tiny_problem import SEQUENCES, K, problem
from dynskip_jax import functional as F


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def rollout(agent, count, actions=None, seed=0):
    """Runs `count` copies of the input; returns decisions, and rewards of each step, (count, time)."""
    keys = jax.random.split(jax.random.key(seed), count)
    runs = tiny_problem.rollout(problem()._replace(agent=agent), keys, actions)
    return runs.decision, runs.rewards


def returns(rewards, per_step):
    return rewards if per_step else rewards[:, -1]


def exact_objective(agent, entropy_coef, per_step):
    """J_2 = E[R] + β H, every expectation a sum over all action sequences."""
    return tiny_problem.exact_objective(problem()._replace(agent=agent), entropy_coef, per_step)


def losses(agent, entropy_coef, per_step, count, actions=None, seed=0, **options):
    decision, rewards = rollout(agent, count, actions, seed)
    return reinforce_loss(decision.log_prob, returns(rewards, per_step), entropy_coef=entropy_coef, **options)


CASES = list(itertools.product((0.0, 0.3, 1.0), (False, True)))


@pytest.mark.parametrize(("entropy_coef", "per_step"), CASES)
def test_expected_surrogate_gradient_is_minus_the_gradient_of_the_objective(entropy_coef, per_step):
    _, agent, *_ = problem()
    decision, _ = rollout(agent, len(SEQUENCES), jnp.asarray(SEQUENCES))
    pi = jnp.exp(decision.log_prob.sum(axis=1))
    np.testing.assert_allclose(pi.sum(), 1.0, rtol=1e-12)

    def expected(agent):
        return jnp.sum(pi * losses(agent, entropy_coef, per_step, len(SEQUENCES), jnp.asarray(SEQUENCES)))

    enumerated = jax.grad(expected)(agent)
    exact = jax.grad(exact_objective)(agent, entropy_coef, per_step)
    for a, b in zip(enumerated, exact, strict=True):
        assert np.abs(b).max() > 1e-4
        np.testing.assert_allclose(a, -b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("entropy_coef", "per_step"), and_slow(CASES, lambda coef, per_step: per_step == (coef > 0))
)
def test_mean_over_sampled_keys_is_within_three_standard_errors(entropy_coef, per_step):
    _, agent, *_ = problem()
    count = 20_000

    @partial(jax.jit, static_argnums=1)
    def per_example(agent, count):
        # The Jacobian of the losses: one gradient per key.
        single = lambda key_seed: jax.grad(
            lambda a: losses(a, entropy_coef, per_step, 1, seed=key_seed).sum()
        )(agent)
        return jax.vmap(single)(jnp.arange(count))

    samples = per_example(agent, count)
    exact = jax.grad(exact_objective)(agent, entropy_coef, per_step)
    z = np.concatenate(
        [
            np.ravel((np.mean(s, axis=0) + e) / (np.std(s, axis=0) / np.sqrt(count)))
            for s, e in zip(samples, exact, strict=True)
        ]
    )
    # Three standard errors hold for 99.7 % of independent components; here they are few and dependent.
    assert np.abs(z).max() < 3.0
    # The bound means something: against the gradient of another objective it is broken by far.
    other = jax.grad(exact_objective)(agent, entropy_coef + 1.0, per_step)
    far = [
        np.abs((np.mean(s, axis=0) + e) / (np.std(s, axis=0) / np.sqrt(count))).max()
        for s, e in zip(samples, other, strict=True)
    ]
    assert max(far) > 6.0


def test_constant_and_leave_one_out_baselines_keep_the_expected_gradient():
    _, agent, *_ = problem()
    decision, _ = rollout(agent, len(SEQUENCES), jnp.asarray(SEQUENCES))
    pi = jnp.exp(decision.log_prob.sum(axis=1))

    def expected(agent, baseline):
        return jnp.sum(
            pi * losses(agent, 1.0, False, len(SEQUENCES), jnp.asarray(SEQUENCES), baseline=baseline)
        )

    plain, shifted = (jax.grad(expected)(agent, b) for b in (0.0, 5.0))
    for a, b in zip(plain, shifted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)

    # Leave-one-out over two rollouts: enumerate all pairs of sequences.
    pairs = np.array(list(itertools.product(range(len(SEQUENCES)), repeat=2)))
    both = jnp.asarray(SEQUENCES[pairs.ravel()])

    def expected_pairs(agent):
        decision, rewards = rollout(agent, len(both), both)
        R = rewards[:, -1].reshape(-1, 2)
        baseline = jax.vmap(F.leave_one_out_mean)(R).reshape(-1)
        loss = reinforce_loss(decision.log_prob, R.reshape(-1), baseline=baseline).reshape(-1, 2)
        return jnp.sum(pi[pairs[:, 0]] * pi[pairs[:, 1]] * loss.mean(axis=1))

    for a, b in zip(plain, jax.grad(expected_pairs)(agent), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_reward_to_go_by_hand():
    rewards = jnp.array([[1.0, 2.0, 4.0]])
    np.testing.assert_allclose(F.reward_to_go(rewards), [[7.0, 6.0, 4.0]])
    np.testing.assert_allclose(F.reward_to_go(rewards, 0.5), [[3.0, 4.0, 4.0]])
    np.testing.assert_allclose(F.reward_to_go(rewards, 0.0), [[1.0, 2.0, 4.0]])


def test_terminal_loss_is_equation_5_by_hand():
    log_probs = jnp.log(jnp.array([[0.5, 0.25], [0.1, 1.0]]))
    R = jnp.array([-1.0, -2.0])
    # -Σ log π · (R - Σ log π - 1)
    s = np.log([0.5 * 0.25, 0.1])
    np.testing.assert_allclose(reinforce_loss(log_probs, R), -s * (np.array(R) - s - 1), rtol=1e-12)
    gradient = jax.grad(lambda lp: reinforce_loss(lp, R).sum())(log_probs)
    np.testing.assert_allclose(gradient, -(np.array(R) - s - 1)[:, None] * np.ones((1, 2)), rtol=1e-12)


def test_per_step_loss_by_hand_with_discount_entropy_baseline_and_padding():
    log_probs = jnp.array([[-1.0, -2.0, -9.0]])
    rewards = jnp.array([[3.0, 5.0, 99.0]])
    valid = jnp.array([[True, True, False]])
    baseline = jnp.array([[0.25, 0.75, 0.0]])
    loss = reinforce_loss(log_probs, rewards, valid=valid, discount=0.5, entropy_coef=0.1, baseline=baseline)
    G1 = 5.0 + 0.1 * 2.0
    G0 = 3.0 + 0.1 * 1.0 + 0.5 * G1
    np.testing.assert_allclose(loss, [1.0 * (G0 - 0.1 - 0.25) + 2.0 * (G1 - 0.1 - 0.75)], rtol=1e-12)


def test_baseline_may_be_one_number_in_an_array():
    log_probs, baseline = jnp.log(jnp.array([[0.5, 0.25], [0.2, 0.4]])), jnp.array(0.25)
    for rewards in (jnp.array([1.0, 2.0]), jnp.array([[1.0, 2.0], [3.0, 4.0]])):
        np.testing.assert_array_equal(
            reinforce_loss(log_probs, rewards, baseline=baseline),
            reinforce_loss(log_probs, rewards, baseline=0.25),
        )


def test_leave_one_out_mean_of_a_group_divided_among_devices():
    values = jnp.asarray(np.random.default_rng(0).normal(size=(8, 3)))
    divided = jax.vmap(partial(F.leave_one_out_mean, axis_name="data"), axis_name="data")
    np.testing.assert_allclose(
        divided(values.reshape(4, 2, 3)).reshape(8, 3), F.leave_one_out_mean(values), rtol=1e-12
    )


@pytest.mark.parametrize("counted", [(1, 0, 1, 1, 0, 0, 0, 1), (0, 0, 1, 0, 0, 0, 0, 0), (1,) * 8])
def test_leave_one_out_mean_of_those_that_count(counted):
    values, counted = np.random.default_rng(0).normal(size=(8, 3)), np.array(counted, bool)
    expected = np.zeros((8, 3))
    for i in range(8):
        others = [j for j in np.flatnonzero(counted) if j != i]
        expected[i] = values[others].mean(axis=0) if others else 0
    values[~counted] = np.inf  # whatever stands there
    given = jnp.asarray(values), jnp.asarray(counted)
    np.testing.assert_allclose(F.leave_one_out_mean(given[0], counted=given[1]), expected, atol=1e-12)
    divided = jax.vmap(lambda v, c: F.leave_one_out_mean(v, "data", c), axis_name="data")
    pieces = given[0].reshape(4, 2, 3), given[1].reshape(4, 2)
    np.testing.assert_allclose(divided(*pieces).reshape(8, 3), expected, atol=1e-12)


def test_rewards_are_stopped():
    gradient = jax.grad(lambda r: reinforce_loss(jnp.array([[-1.0]]), r).sum())(jnp.array([2.0]))
    np.testing.assert_array_equal(gradient, [0.0])


def test_a_sampled_agent_sends_no_gradient_into_the_network_and_attention_does():
    lstm, agent, _, x, (h0, c0) = problem()

    def trace(lstm, x, kind):
        recurrence = F.Recurrence(F.TIME_SKIPS[kind](K, 0.7))
        keys = jax.random.split(jax.random.key(0), 1)
        carry = F.initial_carry(keys, recurrence, F.LSTMState(h0[None], c0[None]))
        _, out = F.unroll(F.LayerParams(lstm, agent), carry, x[None], recurrence)
        return out.decision.log_prob.sum() + out.decision.entropy.sum()

    largest = lambda tree: max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(tree))
    assert largest(jax.grad(trace, argnums=(0, 1))(lstm, x, "dynamic")) == 0.0
    assert largest(jax.grad(trace, argnums=(0, 1))(lstm, x, "attention")) > 1e-3


@pytest.mark.parametrize("kind", and_slow(["fixed", "attention", "dynamic"], lambda kind: kind != "fixed"))
def test_gradients_with_replayed_actions_agree_with_finite_differences(kind):
    lstm, agent, head, x, (h0, c0) = problem()
    actions = jnp.array([[1, 2, 2]])
    recurrence = F.Recurrence(F.TIME_SKIPS[kind](K, 0.7))

    def loss(lstm, x, h0, c0):
        keys = jax.random.split(jax.random.key(0), 1)
        carry = F.initial_carry(keys, recurrence, F.LSTMState(h0[None], c0[None]))
        params = F.LayerParams(lstm, agent if kind != "fixed" else None)
        _, out = F.unroll(params, carry, x[None], recurrence, actions=actions)
        return jnp.sum(jnp.sin(out.h @ head))

    arguments = (lstm, x, h0, c0)
    gradients = jax.grad(loss, argnums=(0, 1, 2, 3))(*arguments)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), arguments)
    shifted = lambda e: loss(*jax.tree.map(lambda a, d: a + e * d, arguments, direction))
    numeric = (shifted(1e-5) - shifted(-1e-5)) / 2e-5
    analytic = sum(jax.tree.leaves(jax.tree.map(lambda g, d: jnp.sum(g * d), gradients, direction)))
    np.testing.assert_allclose(analytic, numeric, rtol=1e-7)
