"""Relaxed choices: their values, their derivatives against exact ones, and where these do not go."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax import functional as F

K = 4


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def log_probs_of(seed=0, batch=5):
    return jax.nn.log_softmax(jax.random.normal(jax.random.key(seed), (batch, K)))


def noise_of(seed=1, batch=5):
    return jax.random.gumbel(jax.random.key(seed), (batch, K), float)


def noise_that_chooses(slot):
    """Noise beside which no probability counts."""
    return 1e3 * jax.nn.one_hot(slot, K, dtype=float)


@pytest.mark.parametrize("relaxation", F.RELAXATIONS)
def test_weights_are_a_distribution(relaxation):
    weights = F.relaxed_weights(log_probs_of(), noise_of(), relaxation, 0.7)
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)


def test_soft_weights_are_the_policy_and_at_low_temperature_its_mode():
    log_probs = log_probs_of()
    np.testing.assert_allclose(F.relaxed_weights(log_probs, None, "soft"), jnp.exp(log_probs), rtol=1e-12)
    cold = F.relaxed_weights(log_probs, None, "soft", 1e-3)
    np.testing.assert_allclose(cold, jax.nn.one_hot(log_probs.argmax(-1), K), atol=1e-9)


@pytest.mark.parametrize("relaxation", ["straight_through", "reinmax"])
def test_a_hard_choice_is_the_one_that_sampling_makes(relaxation):
    log_probs, noise = log_probs_of(), noise_of()
    weights = F.relaxed_weights(log_probs, noise, relaxation, 0.3)
    np.testing.assert_allclose(weights, jax.nn.one_hot(F.choose(log_probs, noise), K), atol=1e-12)


def test_straight_through_has_the_derivative_of_gumbel_softmax():
    noise, values = noise_of(), jax.random.normal(jax.random.key(2), (5, K))

    def total(log_probs, relaxation):
        return jnp.sum(values * F.relaxed_weights(log_probs, noise, relaxation, 0.5))

    hard, soft = (jax.grad(total)(log_probs_of(), name) for name in ("straight_through", "gumbel_softmax"))
    np.testing.assert_allclose(hard, soft, rtol=1e-12)
    assert np.abs(soft).max() > 1e-2


def expected_gradient(relaxation, f, logits):
    """The mean over samples, each with its probability, of the gradient that a relaxation gives."""

    def one(slot):
        def value(logits):
            log_probs = jax.nn.log_softmax(logits)
            return f(F.relaxed_weights(log_probs, noise_that_chooses(slot), relaxation))

        return jax.grad(value)(logits)

    return sum(p * one(slot) for slot, p in enumerate(jax.nn.softmax(logits)))


def exact_gradient(f, logits):
    values = jnp.stack([f(row) for row in jnp.eye(K)])
    return jax.grad(lambda logits: jax.nn.softmax(logits) @ values)(logits)


def test_reinmax_is_exact_for_quadratic_functions_and_not_for_others():
    """Liu et al. (2023): a method of second order."""
    matrix = jax.random.normal(jax.random.key(3), (K, K))
    logits = jax.random.normal(jax.random.key(4), (K,))

    def quadratic(x):
        return x @ matrix @ x + matrix[0] @ x

    def other(x):
        return jnp.exp(2 * x @ matrix[0])

    expected = expected_gradient("reinmax", quadratic, logits)
    np.testing.assert_allclose(expected, exact_gradient(quadratic, logits), rtol=1e-9)
    assert not np.allclose(
        expected_gradient("reinmax", other, logits), exact_gradient(other, logits), rtol=1e-2
    )


def unrolled(kind, mode, params, x, temperature=1.0, agent="mlp"):
    recurrence = F.Recurrence(F.TIME_SKIPS[kind](K, 0.7, agent=agent, empty_slots="masked"))
    zeros = jnp.zeros((x.shape[0], 3))
    carry = F.initial_carry(
        jax.random.split(jax.random.key(5), x.shape[0]), recurrence, F.LSTMState(zeros, zeros)
    )
    return F.unroll(params, carry, x, recurrence, policy=F.Policy(mode, temperature))[1]


def weights_of_a_layer(agent="mlp"):
    keys = iter(jax.random.split(jax.random.key(6), 9))
    draw = lambda *shape: jax.random.normal(next(keys), shape)
    lstm = F.LSTMParams(draw(2, 12), draw(3, 12), draw(12))
    out = K if agent == "mlp" else 3
    skip = F.AgentParams(draw(3, 5), draw(2, 5), draw(5), draw(5, out), draw(K))
    return F.LayerParams(lstm, skip), draw(2, 6, 2)


def test_a_softly_relaxed_dynamic_skip_computes_what_attention_does():
    params, x = weights_of_a_layer()
    soft, attention = unrolled("dynamic", "soft", params, x), unrolled("attention", "sample", params, x)
    for a, b in zip(jax.tree.leaves(soft), jax.tree.leaves(attention), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    assert not np.allclose(soft.h, unrolled("dynamic", "greedy", params, x).h)
    cold = unrolled("dynamic", "soft", params, x, temperature=1e-4)
    np.testing.assert_allclose(cold.h, unrolled("dynamic", "greedy", params, x).h, rtol=1e-9)


@pytest.mark.slow
def test_what_tells_stored_states_apart_is_learnt_by_relaxed_choices_by_content_alone():
    params, x = weights_of_a_layer("content")

    def gradient(kind, mode):
        loss = lambda params: jnp.sum(jnp.sin(unrolled(kind, mode, params, x, agent="content").h))
        return jax.grad(loss)(params)

    soft, attention = gradient("dynamic", "soft"), gradient("attention", "sample")
    for a, b in zip(jax.tree.leaves(soft), jax.tree.leaves(attention), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)

    def of_log_prob(params, mode):
        return unrolled("dynamic", mode, params, x, agent="content").decision.log_prob.sum()

    sampled = jax.grad(of_log_prob)(params, "sample")
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(sampled.transition)) == 0
    assert min(np.abs(leaf).max() for leaf in jax.tree.leaves(sampled.skip)) > 0


@pytest.mark.parametrize("relaxation", F.RELAXATIONS)
def test_a_relaxed_agent_learns_from_the_loss_and_sends_nothing_into_the_network(relaxation):
    params, x = weights_of_a_layer()

    def loss(params, kind):
        return jnp.sum(jnp.sin(unrolled(kind, relaxation, params, x).h))

    gradient = jax.grad(loss)(params, "dynamic")
    assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(gradient.skip))

    def entropies(lstm):
        return (
            unrolled("dynamic", relaxation, params._replace(transition=lstm), x).decision.entropy[:, 1].sum()
        )

    # The entropy of the second step depends on h of the first, which the agent sees and may not move.
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(jax.grad(entropies)(params.transition))) == 0


def test_replayed_actions_are_not_relaxed():
    params, x = weights_of_a_layer()
    recurrence, zeros = F.Recurrence(F.Dynamic(K, 0.7)), jnp.zeros((2, 3))
    carry = F.initial_carry(jax.random.split(jax.random.key(5), 2), recurrence, F.LSTMState(zeros, zeros))
    actions = jnp.array([[1, 2, 1, 3, 4, 2]] * 2)
    replayed = [
        F.unroll(params, carry, x, recurrence, actions=actions, policy=F.Policy(mode))[1].h
        for mode in ("soft", "sample")
    ]
    np.testing.assert_array_equal(*replayed)
