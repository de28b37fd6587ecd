"""Rewards of single steps in layers that read from the end, and where other log-likelihoods are rewarded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax import functional as F
from dynskip_jax.functional import Decision
from dynskip_jax.training.objective import AgentObjective, AgentStage

LENGTHS = np.array([4, 2, 1])
VALID = np.arange(4) < LENGTHS[:, None]


def trace(seed):
    rng = np.random.default_rng(seed)
    log_prob = jnp.asarray(np.where(VALID, -rng.exponential(1.0, (3, 4)), 0), jnp.float32)
    entropy = jnp.asarray(np.where(VALID, rng.uniform(0, 1.6, (3, 4)), 0), jnp.float32)
    return Decision(action=jnp.ones((3, 4), jnp.int32), log_prob=log_prob, entropy=entropy)


def loss_of(objective, decisions, rewards, valid=VALID, **how):
    stage = AgentStage(F.Policy("sample"), objective.entropy_coef)
    valid = None if valid is None else jnp.asarray(valid)
    return objective.loss(stage, jnp.zeros(3), decisions, valid=valid, rewards=rewards, **how)


def own_steps_reversed(array):
    """Each row within its own length, by hand."""
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
    back = loss_of(objective, decision, rewards, reverse=[True])
    forth = loss_of(objective, turned, own_steps_reversed(rewards))
    np.testing.assert_allclose(back, forth, rtol=1e-5)
    assert abs(float(loss_of(objective, decision, rewards) - back)) > 1e-3
    # Both directions at once: the sum.
    both = loss_of(objective, [decision, decision], rewards, reverse=[False, True])
    np.testing.assert_allclose(both, loss_of(objective, decision, rewards) + back, rtol=1e-5)


def test_an_action_of_a_backward_layer_is_paid_by_the_steps_before_it():
    objective = AgentObjective(entropy_coef=0.0)
    log_prob = jnp.asarray([[-1.0, -2.0, -4.0]])
    decision = Decision(jnp.ones((1, 3), jnp.int32), log_prob, jnp.zeros((1, 3)))
    rewards = jnp.asarray([[1.0, 10.0, 100.0]])
    stage = AgentStage(F.Policy("sample"), 0.0)

    def of(reverse):
        return objective.loss(stage, jnp.zeros(1), decision, valid=None, rewards=rewards, reverse=[reverse])

    assert float(of(False)) == 1 * 111 + 2 * 110 + 4 * 100
    assert float(of(True)) == 1 * 1 + 2 * 11 + 4 * 111


def test_a_reward_of_the_whole_row_has_no_direction():
    objective = AgentObjective(entropy_coef=0.2)
    rewards = jnp.asarray([1.0, -2.0, 0.5])
    one, two = (loss_of(objective, trace(0), rewards, reverse=[back]) for back in (False, True))
    np.testing.assert_allclose(one, two, rtol=1e-6)
