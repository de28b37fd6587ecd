"""Check baselines and VIMCO against exact enumeration of all action sequences, and values by hand."""

import functools

import batched
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batched import reinforce_loss
from compiled import compiled
from marks import and_slow

from benchmarks import tiny_problem
from benchmarks.tiny_problem import (
    HIDDEN,
    INPUT,
    SEQUENCES,
    TIME,
    every_sequence,
    exact_averaged,
    exact_objective,
    exact_values,
    problem,
    tuples,
)
from dynskip_jax import functional as F
from dynskip_jax import rl
from dynskip_jax.errors import UserError

UNITS = 5
critic_loss, critic_values, vimco_loss, averaged_log_likelihood = map(
    compiled, (batched.critic_loss, rl.critic_values, batched.vimco_loss, rl.averaged_log_likelihood)
)
ENTROPY_COEFS = (0.0, 0.3)


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def critic(seed=1, scale=1.0):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jax.device_put(scale * rng.normal(size=shape))
    return F.AgentParams(draw(HIDDEN, UNITS), draw(INPUT, UNITS), draw(UNITS), draw(UNITS, 1), draw(1))


@functools.cache
def enumerated():
    """Return the runs of all action sequences, and their probabilities."""
    runs = jax.jit(every_sequence)(problem())
    return runs, np.exp(np.asarray(runs.decision.log_prob).sum(axis=1))


def largest(tree):
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def assert_opposite(surrogate, exact):
    """Check that the gradient of a loss is minus that of an objective, and that neither is zero."""
    for a, b in zip(jax.tree.leaves(surrogate), jax.tree.leaves(exact), strict=True):
        assert np.abs(b).max() > 1e-4
        np.testing.assert_allclose(a, -np.asarray(b), rtol=1e-9, atol=1e-12)


def terminal_as_steps(runs):
    """Return the terminal reward as that of the last step, so that each step may have its own baseline."""
    return jnp.zeros_like(runs.rewards).at[:, -1].set(runs.rewards[:, -1])


def moving_average():
    average = rl.moving_average_start((), jnp.float64)
    for value in (-3.0, 1.0, -0.5):
        average = rl.moving_average_update(average, jnp.asarray(value), 0.9)
    return rl.moving_average_value(average)


def values_of_critic(runs):
    x = jnp.broadcast_to(problem().x, (len(SEQUENCES), TIME, INPUT))
    return rl.critic_values(critic(), x, runs.seen)


# Functions of the runs, and of whether each step has a reward, that return (rewards, baseline).
BASELINES = {
    "moving average": lambda runs, per_step: (
        runs.rewards if per_step else runs.rewards[:, -1],
        moving_average(),
    ),
    "critic": lambda runs, per_step: (
        runs.rewards if per_step else terminal_as_steps(runs),
        values_of_critic(runs),
    ),
    "knows the action": lambda runs, per_step: (
        terminal_as_steps(runs),
        runs.decision.action.astype(runs.rewards.dtype),
    ),
}


@functools.cache
def gradients(per_step):
    """Return a function of `entropy_coef` that returns the exact and the expected gradients.

    The exact gradient is that of the objective. The expected ones are those of the loss, by name of baseline.
    """

    def expected(agent, entropy_coef, pi, name):
        runs = every_sequence(problem()._replace(agent=agent))
        rewards, baseline = BASELINES[name](runs, per_step)
        options = dict(entropy_coef=entropy_coef, baseline=baseline)
        return jnp.sum(pi * reinforce_loss(runs.decision.log_prob, rewards, **options))

    def objective(agent, entropy_coef):
        return exact_objective(problem()._replace(agent=agent), entropy_coef, per_step)

    @jax.jit
    def both(agent, entropy_coef, pi):
        found = {name: jax.grad(expected)(agent, entropy_coef, pi, name) for name in BASELINES}
        return jax.grad(objective)(agent, entropy_coef), found

    return lambda entropy_coef: both(problem().agent, entropy_coef, enumerated()[1])


@pytest.mark.parametrize("entropy_coef", ENTROPY_COEFS)
@pytest.mark.parametrize("per_step", and_slow([True, False], bool))
def test_moving_average_and_critic_keep_the_expected_gradient(entropy_coef, per_step):
    """The critic has arbitrary weights, and its values depend on the earlier actions."""
    assert abs(compiled(moving_average)()) > 0.1
    assert np.ptp(compiled(values_of_critic)(enumerated()[0])[:, -1]) > 0.1
    exact, expected = gradients(per_step)(entropy_coef)
    for name in ("moving average", "critic"):
        assert_opposite(expected[name], exact)


def test_a_baseline_that_knows_the_action_is_noticed():
    _, expected = gradients(True)(0.0)
    exact = jax.jit(jax.grad(lambda agent: exact_objective(problem()._replace(agent=agent))))(problem().agent)
    wrong = jax.tree.map(lambda a, b: np.add(a, b), expected["knows the action"], exact)
    assert largest(wrong) > 0.01 * largest(exact)


@pytest.mark.parametrize("size", and_slow([2, 3], lambda size: size == 2))
def test_expected_vimco_gradient_of_agent_and_network_is_minus_that_of_the_objective(size):
    of, places = problem(), tuples(size)
    pi = enumerated()[1][places].prod(axis=1)
    np.testing.assert_allclose(pi.sum(), 1.0, rtol=1e-12)

    def expected(lstm, agent, head):
        runs = every_sequence(of._replace(lstm=lstm, agent=agent, head=head))
        return jnp.sum(pi * batched.vimco_loss(runs.decision.log_prob[places], runs.rewards[:, -1][places]))

    def objective(lstm, agent, head):
        return exact_averaged(of._replace(lstm=lstm, agent=agent, head=head), size)

    both = jax.jit(lambda *trained: [jax.grad(f, argnums=(0, 1, 2))(*trained) for f in (expected, objective)])
    assert_opposite(*both(of.lstm, of.agent, of.head))


def test_vimco_by_hand_for_two_rollouts():
    log_probs = np.log(np.array([[[0.5, 0.25], [0.1, 1.0]]]))
    log_likelihood = np.log(np.array([[0.2, 0.8]]))
    # L = log 0.5. With each likelihood replaced by the other one, L is log 0.8 and log 0.2.
    signals = np.log(0.5) - np.log([0.8, 0.2])
    scores = np.log([0.5 * 0.25, 0.1])
    loss = vimco_loss(log_probs, log_likelihood)
    np.testing.assert_allclose(loss, [-np.log(0.5) - signals @ scores], rtol=1e-12)
    gradient = jax.jit(jax.grad(lambda *a: batched.vimco_loss(*a).sum(), argnums=(0, 1)))
    to_log_probs, to_likelihood = gradient(log_probs, log_likelihood)
    np.testing.assert_allclose(to_log_probs, -signals[None, :, None] * np.ones((1, 1, 2)), rtol=1e-12)
    # The gradient reaches the likelihoods only through L, because the signals are constants to it.
    np.testing.assert_allclose(to_likelihood, [[-0.2, -0.8]], rtol=1e-12)


def test_vimco_by_hand_for_three_rollouts():
    p = np.array([0.1, 0.4, 0.9])
    geometric = np.sqrt([0.4 * 0.9, 0.1 * 0.9, 0.1 * 0.4])
    without = np.log((1.4 - p + geometric) / 3)
    scores = np.array([-1.0, -2.0, -4.0])
    loss = vimco_loss(scores[None, :, None], np.log(p)[None])
    L = np.log(1.4 / 3)
    np.testing.assert_allclose(loss, [-L - (L - without) @ scores], rtol=1e-12)


def test_vimco_does_not_count_padding():
    rng = np.random.default_rng(0)
    log_probs, log_likelihood = (-rng.exponential(size=s) for s in ((2, 3, 4), (2, 3)))
    valid = np.array([[True, True, False, False], [True, True, True, True]])
    loss = lambda lp: batched.vimco_loss(lp, *jax.device_put((log_likelihood, valid))).sum()
    loss, gradient = map(np.asarray, jax.jit(jax.value_and_grad(loss))(log_probs))
    first = vimco_loss(log_probs[:1, :, :2], log_likelihood[:1])
    cut = np.asarray(first) + np.asarray(vimco_loss(log_probs[1:], log_likelihood[1:]))
    np.testing.assert_allclose(loss, cut[0], rtol=1e-12)
    np.testing.assert_array_equal(gradient[0, :, 2:], 0)
    assert np.abs(gradient[1]).min() > 0


def test_vimco_needs_two_rollouts():
    with pytest.raises(UserError, match="at least 2 rollouts, got 1") as caught:
        vimco_loss(np.zeros((2, 1, 3)), np.zeros((2, 1)))
    assert "\n" not in str(caught.value)


def test_averaged_log_likelihood_by_hand_and_where_probabilities_underflow():
    likelihood = np.array([[0.2, 0.8, 0.5], [1.0, 0.0, 0.5]])
    with np.errstate(divide="ignore"):
        averaged = averaged_log_likelihood(np.log(likelihood))
    np.testing.assert_allclose(averaged, np.log([0.5, 0.5]), rtol=1e-12)
    np.testing.assert_allclose(
        averaged_log_likelihood(np.array([-2000.0, -2000.0 + np.log(3.0)])), -2000 + np.log(2), rtol=1e-12
    )
    np.testing.assert_allclose(averaged_log_likelihood(np.full((2, 4, 1), -3.0)), np.full((2, 4), -3.0))


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.99])
def test_moving_average_against_a_loop(decay):
    values = np.random.default_rng(0).normal(size=(20, 3)) + 5.0
    average = rl.moving_average_start((3,), jnp.float64)
    update = jax.jit(lambda *args: (new := rl.moving_average_update(*args), rl.moving_average_value(new)))
    np.testing.assert_array_equal(rl.moving_average_value(average), np.zeros(3))
    for n in range(1, len(values) + 1):
        average, value = update(average, values[n - 1], decay)
        weights = decay ** np.arange(n - 1, -1, -1.0)
        expected = weights @ values[:n] / weights.sum()
        np.testing.assert_allclose(value, expected, rtol=1e-12)
        if n == 1:
            np.testing.assert_allclose(value, values[0], rtol=1e-15)


def test_moving_average_under_jit_and_scan_keeps_its_dtype():
    values = np.arange(1.0, 5.0, dtype=np.float32)
    step = lambda average, value: (
        rl.moving_average_update(average, value, 0.5),
        rl.moving_average_value(average),
    )
    last, before = jax.jit(functools.partial(jax.lax.scan, step))(rl.moving_average_start(), values)
    assert rl.moving_average_value(last).dtype == before.dtype == jnp.float32
    np.testing.assert_allclose(before, [0.0, 1.0, 5 / 3, 17 / 7], rtol=1e-6)


def test_moving_average_of_nothing_has_no_nan_in_its_gradient():
    gradient = jax.jit(jax.grad(lambda average: rl.moving_average_value(average).sum()))(
        rl.moving_average_start((2,))
    )
    assert np.isfinite(np.concatenate(gradient)).all()


def test_critic_values_by_hand_and_their_shapes():
    params = critic()
    w_h, w_x, b, w_out, b_out = map(np.asarray, params)
    rng = np.random.default_rng(2)
    x, h = rng.normal(size=(4, TIME, INPUT)), rng.normal(size=(4, TIME, HIDDEN))
    hidden = np.tanh(h @ w_h + x @ w_x + b)
    expected = (hidden @ w_out + b_out)[..., 0]
    values = critic_values(params, x, h)
    assert values.shape == (4, TIME)
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    alone = critic_values(params, x[0, 0], h[0, 0])
    assert alone.shape == ()
    np.testing.assert_allclose(alone, expected[0, 0], rtol=1e-12)


def test_a_critic_of_two_outputs_is_refused():
    two = critic()._replace(w_out=np.zeros((UNITS, 2)), b_out=np.zeros(2))
    with pytest.raises(ValueError):
        critic_values(two, np.zeros((1, INPUT)), np.zeros((1, HIDDEN)))


def test_critic_sends_no_gradient_into_what_it_sees_nor_into_returns():
    x, h = np.ones((2, TIME, INPUT)), np.ones((2, TIME, HIDDEN))

    def loss(params, x, h, returns):
        return batched.critic_loss(rl.critic_values(params, x, h), returns).sum()

    for returns in (np.ones(2), np.ones((2, TIME))):
        to_critic, *elsewhere = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(critic(), x, h, returns)
        assert min(float(np.abs(leaf).max()) for leaf in to_critic) > 1e-3
        assert largest(elsewhere) == 0.0


def test_critic_loss_by_hand_with_terminal_and_per_step_returns_and_padding():
    values = np.array([[1.0, 2.0, 4.0], [0.0, 1.0, 9.0]])
    valid = np.array([[True, True, True], [True, True, False]])
    terminal, per_step = np.array([3.0, 1.0]), np.array([[1.0, 4.0, 4.0], [2.0, 2.0, np.nan]])
    np.testing.assert_allclose(critic_loss(values, terminal), [3.0, 32.5], rtol=1e-12)
    np.testing.assert_allclose(critic_loss(values, terminal, valid), [3.0, 0.5], rtol=1e-12)
    np.testing.assert_allclose(critic_loss(values, per_step, valid), [2.0, 2.5], rtol=1e-12)
    gradient = jax.jit(jax.grad(lambda v: batched.critic_loss(v, per_step, valid).sum()))(values)
    np.testing.assert_allclose(gradient, [[0.0, -2.0, 0.0], [-2.0, -1.0, 0.0]], rtol=1e-12)


def test_expected_critic_loss_is_smallest_at_the_expected_return(monkeypatch):
    runs, pi = enumerated()
    monkeypatch.setattr(tiny_problem, "every_sequence", lambda of: runs)  # do not recompute it op by op
    R = np.asarray(runs.rewards)[:, -1]
    gradient = jax.jit(jax.grad(lambda v: jnp.sum(pi * batched.critic_loss(v, R))))
    slope = np.asarray(gradient(exact_values(problem())))
    # A critic has one value for all sequences with the same beginning, so their slopes sum to 0.
    for t in range(TIME):
        for beginning in np.unique(SEQUENCES[:, :t], axis=0):
            alike = (SEQUENCES[:, :t] == beginning).all(axis=1)
            np.testing.assert_allclose(slope[alike, t].sum(), 0.0, atol=1e-12)
