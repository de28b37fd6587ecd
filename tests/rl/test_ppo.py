"""Check the losses of PPO against NumPy loops, and their gradient against all actions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.rl import ppo

SIZES = (3, 2)
TIME = 6


def rng_of(*shape):
    return np.random.default_rng(0).normal(size=shape)


def test_advantages_are_those_of_a_loop_over_episodes():
    """The first row holds one episode, the second a terminated and a truncated one."""
    rewards, values, following = rng_of(3, 2, TIME)
    terminated = np.zeros((2, TIME), bool)
    terminated[0, -1] = terminated[1, 2] = True
    ends = [[TIME], [3, TIME]]
    discount = 0.9
    decay = 0.7
    is_last = np.zeros((2, TIME), bool)
    expected = np.zeros((2, TIME))
    for row, stops in enumerate(ends):
        start = 0
        for stop in stops:
            is_last[row, stop - 1] = True
            for t in range(start, stop):
                for later in range(t, stop):
                    after = 0 if terminated[row, later] else following[row, later]
                    delta = rewards[row, later] + discount * after - values[row, later]
                    expected[row, t] += (discount * decay) ** (later - t) * delta
            start = stop
    found = ppo.generalized_advantages(
        rewards, discount * (1 - terminated), decay * (1 - is_last), values, following
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_the_surrogate_is_that_of_a_loop():
    log_ratios, advantages = rng_of(2, 5, TIME)
    found = ppo.clipped_surrogate(log_ratios, advantages, 0.2)
    for index in np.ndindex(5, TIME):
        ratio = np.exp(log_ratios[index])
        clipped = min(max(ratio, 0.8), 1.2)
        expected = -min(ratio * advantages[index], clipped * advantages[index])
        np.testing.assert_allclose(found[index], expected, rtol=1e-5)


def probability(logits, action):
    """Return the probability of an action with a part for each of `SIZES`."""
    parts = np.split(logits, [SIZES[0]])
    shares = [np.exp(part) / np.exp(part).sum() for part in parts]
    return np.prod([share[choice] for share, choice in zip(shares, action, strict=True)])


ACTIONS = np.array([*itertools.product(*map(range, SIZES))])


def test_probability_and_entropy_are_sums_over_all_actions():
    logits = rng_of(sum(SIZES))
    each = np.array([probability(logits, action) for action in ACTIONS])
    rows = jnp.broadcast_to(logits, (len(ACTIONS), len(logits)))
    np.testing.assert_allclose(np.exp(ppo.action_log_prob(rows, ACTIONS, SIZES)), each, rtol=1e-5)
    expected = -(each * np.log(each)).sum()
    np.testing.assert_allclose(ppo.action_entropy(logits, SIZES), expected, rtol=1e-5)


def test_the_gradient_at_the_old_policy_is_that_of_the_expected_advantage():
    """In expectation over all actions, by enumeration."""
    logits = jnp.array(rng_of(sum(SIZES)))
    advantages = rng_of(len(ACTIONS))
    each = np.array([probability(np.array(logits), action) for action in ACTIONS])

    def surrogate(new):
        rows = jnp.broadcast_to(new, (len(ACTIONS), len(new)))
        log_probs = ppo.action_log_prob(rows, ACTIONS, SIZES)
        log_ratios = log_probs - jax.lax.stop_gradient(log_probs)
        return (each * ppo.clipped_surrogate(log_ratios, advantages, 0.2)).sum()

    def expected_advantage(new):
        rows = jnp.broadcast_to(new, (len(ACTIONS), len(new)))
        return (jnp.exp(ppo.action_log_prob(rows, ACTIONS, SIZES)) * advantages).sum()

    np.testing.assert_allclose(
        jax.grad(surrogate)(logits), -jax.grad(expected_advantage)(logits), atol=1e-6
    )


@pytest.mark.parametrize(("log_ratio", "advantage"), [(0.5, 1.0), (-0.5, -1.0)])
def test_a_ratio_that_is_far_enough_has_no_gradient(log_ratio, advantage):
    loss = lambda log_ratio: ppo.clipped_surrogate(log_ratio, advantage, 0.2)
    assert jax.grad(loss)(log_ratio) == 0
    assert jax.grad(loss)(-log_ratio) != 0


def test_sampled_actions_have_their_probabilities_and_greedy_ones_are_the_likeliest():
    logits = jnp.array(rng_of(sum(SIZES)))
    rows = jnp.broadcast_to(logits, (20_000, len(logits)))
    sampled = np.array(ppo.sample_actions(rows, SIZES, jax.random.key(0)))
    for action in ACTIONS:
        share = (sampled == action).all(-1).mean()
        assert abs(share - probability(np.array(logits), action)) < 0.015
    greedy = ppo.sample_actions(logits, SIZES, None)
    best = max(ACTIONS, key=lambda action: probability(np.array(logits), action))
    np.testing.assert_array_equal(greedy, best)


def test_means_and_normalized_values_leave_out_steps_that_do_not_count():
    values = rng_of(3, TIME)
    counted = np.arange(TIME) < np.array([[2], [6], [4]])
    given = np.where(counted, values, np.nan)
    own = values[counted]
    np.testing.assert_allclose(ppo.mean_over_steps(given, counted), own.mean(), rtol=1e-5)
    found = ppo.normalized(given, counted)
    np.testing.assert_allclose(found[counted], (own - own.mean()) / own.std(), rtol=1e-4)
