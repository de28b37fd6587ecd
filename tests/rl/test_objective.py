"""Check the agent's objective against loops over its definition, one example and one step at a time."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from learners import classification, drawn_params, first_batch, symbols
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional import DecisionTrace, parse_time_skip
from dynskip_jax.rl import AgentObjective, ScheduledValues
from dynskip_jax.training.sweep import Sweep

BATCH, TIME, ROLLOUTS = 6, 4, 3


def decision_of(seed):
    rng = np.random.default_rng(seed)
    return DecisionTrace(
        action=jnp.asarray(rng.integers(1, 6, (BATCH, TIME)), jnp.int32),
        log_prob=jnp.asarray(-rng.exponential(1.0, (BATCH, TIME)), jnp.float32),
        entropy=jnp.asarray(rng.uniform(0, 1.6, (BATCH, TIME)), jnp.float32),
    )


def agents_part(objective, decisions, rewards):
    """Return the loss with the network's part set to 0."""
    scheduled = ScheduledValues(F.Policy("sample"), objective.entropy_coef)
    nll = jnp.zeros(rewards.shape)
    return objective.loss(scheduled, nll, decisions, rewards=rewards)


def slow_returns(objective, log_prob, rewards):
    """Compute the factor of each log-probability in the loss, (batch, time)."""
    beta = objective.entropy_coef if objective.entropy == "sampled" else 0.0
    returns = np.zeros((BATCH, TIME))
    for i, t in itertools.product(range(BATCH), range(TIME)):

        def gain(j, t=t):
            """Return the reward of example j from step t on, without entropy and baseline."""
            if rewards.ndim == 1:
                return rewards[j]
            return sum(objective.discount ** (u - t) * rewards[j, u] for u in range(t, TIME))

        if rewards.ndim == 1:
            entropy = beta * (sum(log_prob[i]) + 1)
        else:
            later = range(t, TIME)
            entropy = beta * (sum(objective.discount ** (u - t) * log_prob[i, u] for u in later) + 1)
        others = []
        if objective.baseline == "batch":
            others = [j for j in range(BATCH) if j != i]
        elif objective.baseline == "rollouts":
            first = i // objective.rollouts * objective.rollouts
            others = [j for j in range(first, first + objective.rollouts) if j != i]
        baseline = np.mean([gain(j) for j in others]) if others else 0.0
        returns[i, t] = gain(i) - entropy - baseline
    return returns


def slow_loss(objective, decision, rewards):
    log_prob, rewards = np.asarray(decision.log_prob, float), np.asarray(rewards, float)
    losses = -(log_prob * slow_returns(objective, log_prob, rewards)).sum(axis=1)
    if objective.entropy == "exact":
        losses -= objective.entropy_coef * np.asarray(decision.entropy, float).sum(axis=1)
    return objective.rl_coef * losses.mean()


def rewards_of(kind):
    shape = (BATCH,) if kind == "terminal" else (BATCH, TIME)
    return jnp.asarray(np.random.default_rng(7).normal(size=shape), jnp.float32)


SETTINGS = list(
    itertools.product(["none", "batch", "rollouts"], ["sampled", "exact"], [1.0, 0.5, 0.0])
)  # baseline, entropy, discount


def objective_of(baseline, entropy, discount):
    return AgentObjective(
        rl_coef=0.7,
        entropy_coef=0.3,
        entropy=entropy,
        discount=discount,
        baseline=baseline,
        rollouts=ROLLOUTS if baseline == "rollouts" else 1,
    )


@pytest.fixture(scope="module")
def losses_and_gradients():
    """Return losses and gradients by kind of reward and settings; each kind is compiled once."""
    found = {}
    for kind in ("terminal", "per_step"):
        decision, rewards = decision_of(0), rewards_of(kind)

        def of(objective, log_prob, entropies, rewards, decision=decision):
            traced = dataclasses.replace(decision, log_prob=log_prob, entropy=entropies)
            return agents_part(objective, (traced,), rewards)

        @jax.jit
        def program(*arguments, of=of):
            return [
                jax.value_and_grad(partial(of, objective_of(*s)), (0, 1, 2))(*arguments) for s in SETTINGS
            ]

        results = program(decision.log_prob, decision.entropy, rewards)
        found |= {(kind, *s): jax.device_get(each) for s, each in zip(SETTINGS, results, strict=True)}
    return found


@pytest.mark.parametrize(("baseline", "entropy", "discount"), SETTINGS)
@pytest.mark.parametrize("kind", ["terminal", "per_step"])
def test_loss_and_gradient_are_the_slow_definition(kind, baseline, entropy, discount, losses_and_gradients):
    objective = objective_of(baseline, entropy, discount)
    decision, rewards = decision_of(0), rewards_of(kind)
    value, grads = losses_and_gradients[kind, baseline, entropy, discount]
    np.testing.assert_allclose(value, slow_loss(objective, decision, rewards), rtol=1e-4)
    # With the score function, returns are constants to the gradient, and rewards get none.
    expected = slow_returns(objective, np.asarray(decision.log_prob, float), np.asarray(rewards, float))
    np.testing.assert_allclose(grads[0], -0.7 / BATCH * expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(grads[1], -0.7 * 0.3 / BATCH if entropy == "exact" else 0.0, rtol=1e-5)
    np.testing.assert_array_equal(grads[2], 0.0)


def test_a_case_worked_out_by_hand():
    decision = DecisionTrace(
        action=jnp.array([[1, 2], [2, 1]], jnp.int32),
        log_prob=jnp.array([[-1.0, -2.0], [-3.0, -4.0]]),
        entropy=jnp.zeros((2, 2)),
    )
    # Returns minus baseline: (10 - 4) and (4 - 10). Losses: 3 * 6 = 18 and 7 * -6 = -42; their mean is -12.
    objective = AgentObjective(entropy_coef=0.0, baseline="batch")
    assert agents_part(objective, (decision,), jnp.array([10.0, 4.0])) == -12.0
    # Rewards to go (3, 2) and (0, 0): losses 1 * 3 + 2 * 2 = 7 and 0; half of their mean.
    objective = AgentObjective(entropy_coef=0.0, rl_coef=0.5)
    rewards = jnp.array([[1.0, 2.0], [0.0, 0.0]])
    assert agents_part(objective, (decision,), rewards) == 0.5 * 3.5


def test_rewards_of_each_kind():
    probability = np.array([[0.25, 1.0], [0.5, 1e-3]], np.float32)
    correct = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    log_likelihood = jnp.log(probability)
    expected = {
        "log_likelihood": np.log(probability),
        "probability": probability,
        "correct": np.array([[-1.0, 1.0], [1.0, -1.0]]),
    }
    for kind, values in expected.items():
        rewards = AgentObjective(reward=kind).rewards(log_likelihood, correct)
        np.testing.assert_allclose(rewards, values, rtol=1e-6)


@pytest.mark.parametrize("entropy", ["sampled", "exact"])
def test_only_layers_that_sample_contribute(entropy):
    objective = AgentObjective(entropy=entropy)
    names = ("dynamic:5", "lstm", "attention:4", "dynamic:5")
    facts = [parse_time_skip(name).is_stochastic for name in names]
    assert facts == [True, False, False, True]
    decisions = [dataclasses.replace(decision_of(i), is_stochastic=fact) for i, fact in enumerate(facts)]
    rewards = rewards_of("per_step")
    assert agents_part(objective, decisions[1:3], rewards) == 0.0
    first, last = (agents_part(objective, (decisions[i],), rewards) for i in (0, 3))
    np.testing.assert_allclose(agents_part(objective, decisions, rewards), first + last, rtol=1e-6)


def test_rollouts_of_an_example_follow_each_other():
    objective = AgentObjective(entropy_coef=0.0, baseline="rollouts", rollouts=ROLLOUTS)
    each = jnp.array([5.0, -2.0])
    # Equal rewards within an example leave no advantage; in the other order, the rewards differ.
    repeated = agents_part(objective, (decision_of(0),), jnp.repeat(each, ROLLOUTS))
    tiled = agents_part(objective, (decision_of(0),), jnp.tile(each, ROLLOUTS))
    assert abs(repeated) < 1e-5
    assert abs(tiled) > 0.1


@pytest.mark.slow
def test_classifier_compares_the_rollouts_of_one_example():
    compared, batch = (
        classification(
            symbols(4, time=6),
            (0, 0),
            sweep=Sweep(mix=(0.0, 1.0)),
            batch_size=4,
            objective=AgentObjective(entropy_coef=0.0, **objective),
        )
        for objective in (dict(baseline="rollouts", rollouts=3), dict(baseline="batch"))
    )
    params, keys = drawn_params(compared, scale=1.5), jax.random.split(jax.random.key(2), 4)

    @jax.jit
    def losses(*scheduled):
        """Return for each task the agents' part of the loss per λ, and the number of rows in its mean."""
        found = []
        for task, each in zip((compared, batch), scheduled, strict=True):

            def of(scheduled, task=task):
                carry = task.initial_carry(params, jax.random.key(0))
                loss, (_, sums) = task.loss(params, carry, first_batch(task), keys, scheduled)
                return loss - sums["nll"].total / sums["nll"].count, sums["nll"].count

            found.append(jax.vmap(of)(each))
        return found

    ((equal, unequal), counts), ((of_batch, _), _) = losses(compared.scheduled(0), batch.scheduled(0))
    # With λ = 0 choices have no effect, so the rollouts of an example agree and none has an advantage.
    assert counts.tolist() == [12, 12]
    assert abs(equal) < 1e-4
    assert abs(of_batch) > 1e-2
    assert abs(unequal) > 1e-3


OBJECTIVES = {
    "paper": dict(),
    "exact": dict(entropy="exact", entropy_coef=0.3),
    "batch": dict(baseline="batch", discount=0.9),
    "rollouts": dict(baseline="rollouts", entropy="exact"),
    "critic": dict(baseline="learned", discount=0.9),
    "vimco": dict(estimator="vimco", entropy_coef=0.0),
    "relaxed": dict(relaxation="soft", relaxed_epochs=1),
}
# Pairs (objective, whether each step has a reward). VIMCO averages predictions of whole rows.
BY_DEFAULT = [("paper", False), ("exact", True), ("batch", True), ("rollouts", False), ("critic", False),
              ("critic", True), ("vimco", False), ("relaxed", True)]  # fmt: skip
OF_ROWS_AND_STEPS = pytest.mark.parametrize(
    ("name", "per_step"),
    and_slow(
        [pair for pair in itertools.product(OBJECTIVES, [False, True]) if pair != ("vimco", True)],
        lambda *pair: pair in BY_DEFAULT,
    ),
)


def objective_with(name, rollouts):
    groups = {"rollouts": rollouts} if name in ("rollouts", "vimco") else {}
    return AgentObjective(**OBJECTIVES[name], **groups)


@OF_ROWS_AND_STEPS
def test_rows_that_fill_a_batch_are_as_none(name, per_step):
    """Rows of weight 0 change loss and gradients only through the number of rows in the mean."""
    objective = objective_with(name, rollouts=2)
    weights = jnp.array([1.0, 1.0, 0.5, 0.5, 0.0, 0.0])  # rollouts of one example have the same weight
    decision, values = decision_of(1), decision_of(2).log_prob
    nll = -rewards_of("per_step" if per_step else "terminal")

    def loss(log_prob, nll, values, count):
        traced = dataclasses.replace(decision, log_prob=log_prob)
        traced = jax.tree.map(lambda leaf: leaf[:count], traced)
        return count * objective.loss(
            objective.schedule(1).at(0),
            nll[:count],
            traced,
            weights=weights[:count],
            values=[values[:count]] if objective.baseline == "learned" else None,
        )

    @jax.jit
    def both(*arguments):
        return [jax.value_and_grad(partial(loss, count=n), argnums=(0, 1, 2))(*arguments) for n in (6, 4)]

    (full, full_grads), (alone, grads) = jax.device_get(both(decision.log_prob, nll, values))
    np.testing.assert_allclose(full, alone, rtol=1e-5)
    for found, wanted in zip(full_grads, grads, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        assert not np.any(np.asarray(found)[4:])
    # The loss is a weighted sum, checked by hand for the objective that does not compare rows.
    if name == "paper":
        each = [slow_loss_of_row(objective, decision, -nll, i) for i in range(6)]
        np.testing.assert_allclose(full, np.dot(weights, each), rtol=1e-4)


def slow_loss_of_row(objective, decision, rewards, row):
    """Compute J_1 - J_2 of one row, without a baseline."""
    log_prob, rewards = np.asarray(decision.log_prob, float), np.asarray(rewards, float)
    score = (log_prob * slow_returns(objective, log_prob, rewards)).sum(axis=1)[row]
    return -rewards[row].sum() - score


@pytest.mark.parametrize(
    "settings",
    [
        dict(discount=-0.1),
        dict(discount=1.1),
        dict(discount=float("nan")),
        dict(rollouts=0),
        dict(rollouts=-1),
        dict(baseline="rollouts"),
        dict(baseline="rollouts", rollouts=1),
        dict(rl_coef=-1.0),
        dict(rl_coef=float("nan")),
        dict(entropy_coef=-0.5),
        dict(entropy_coef=float("nan")),
    ],
    ids=str,
)
def test_settings_without_a_meaning_are_refused(settings):
    with pytest.raises(UserError) as caught:
        AgentObjective(**settings)
    assert "\n" not in str(caught.value)


@OF_ROWS_AND_STEPS
def test_what_stands_past_the_end_has_no_effect(name, per_step):
    """Regression: a critic's terminal reward was in the last column, past the end of shorter sequences."""
    objective = objective_with(name, rollouts=3)
    scheduled = objective.schedule(1).at(0)
    lengths = jnp.repeat(jnp.array([4, 2]), 3)  # two groups of three rows
    valid = F.length_mask(lengths, TIME)
    nll = -rewards_of("per_step" if per_step else "terminal")

    def loss(log_prob, nll, values, rows=slice(None), time=TIME, valid=valid):
        decision = dataclasses.replace(decision_of(1), log_prob=log_prob)
        decision = jax.tree.map(lambda leaf: leaf[rows, :time], decision)
        return objective.loss(
            scheduled,
            nll[rows, :time] if per_step else nll[rows],
            decision.where(None if valid is None else valid[rows, :time]),
            values=[values[rows, :time]] if objective.baseline == "learned" else None,
        )

    log_prob, values = decision_of(1).log_prob, decision_of(2).log_prob
    gradient = jax.grad(loss, argnums=(0, 1, 2))
    apart = objective.baseline != "batch"  # `batch` compares rows of all lengths

    @jax.jit
    def gradients(arguments, odd):
        both = jax.vmap(gradient)(*jax.tree.map(lambda *pair: jnp.stack(pair), arguments, odd))
        groups = [gradient(*arguments, rows=slice(i, i + 3), time=t, valid=None) for i, t in ((0, 4), (3, 2))]
        return both, groups if apart else []

    arguments = log_prob, nll, values
    odd = [jnp.where(valid, array, 1e3) if array.ndim == 2 else array for array in arguments]
    both, groups = jax.device_get(gradients(arguments, tuple(odd)))
    found = [leaf[0] for leaf in both]
    for a, b in zip(found, (leaf[1] for leaf in both), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
        if a.ndim == 2:
            assert not np.any(a[~np.asarray(valid)])
    if apart:
        for whole, (first, second) in zip(found, zip(*groups, strict=True), strict=True):
            np.testing.assert_allclose(whole, (first + second) / 2, rtol=1e-4, atol=1e-6)


@pytest.mark.usefixtures("as_users")
def test_vimco_has_one_prediction_for_each_row():
    trace = DecisionTrace(jnp.ones((2, 4), int), -jnp.ones((2, 4)), jnp.ones((2, 4)))
    objective = AgentObjective(estimator="vimco", rollouts=2, entropy_coef=0.0)
    scheduled = objective.schedule(1).at(0)
    for nll, rewards in ((jnp.ones((2, 4)), None), (jnp.ones(2), jnp.ones((2, 4)))):
        with pytest.raises(UserError, match="predictions of rows, not of steps"):
            objective.loss(scheduled, nll, trace, rewards=rewards)


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (dict(weights=jnp.ones((2, 1))), "weights of shape"),
        (dict(weights=jnp.ones(3)), "weights of shape"),
        (dict(rewards=jnp.ones((2, 3))), "rewards of shape"),
        (dict(values=[]), "as many values"),
    ],
)
def test_what_does_not_fit_the_decisions_is_said(given, says):
    decision = DecisionTrace(jnp.ones((2, 4), int), -jnp.ones((2, 4)), jnp.ones((2, 4)))
    objective = AgentObjective()
    with pytest.raises(UserError, match=says):
        objective.loss(objective.schedule(1).at(0), jnp.ones(2), decision, **given)


@pytest.mark.parametrize(
    ("traces", "says"),
    [
        (lambda one: (one, one.where(jnp.ones((2, 4), bool))), "1 of 2 decisions say which steps are valid"),
        (
            lambda one: (one, jax.tree.map(lambda leaf: leaf[:, :3], one)),
            r"one shape .*\(2, 3\), \(2, 4\)",
        ),
        (lambda one: jax.tree.map(lambda leaf: leaf[0], one), r"shape \(rows, time\), got \(4,\)"),
        (lambda one: F.Decision(one.action, one.log_prob, one.entropy), "call DecisionTrace.of"),
        (lambda one: (), "call DecisionTrace.of"),
    ],
    ids=["one mask", "two lengths", "no rows", "a bare cell", "none"],
)
def test_decisions_that_do_not_fit_each_other_are_refused(traces, says):
    one = DecisionTrace(jnp.ones((2, 4), int), -jnp.ones((2, 4)), jnp.ones((2, 4)))
    objective = AgentObjective()
    with pytest.raises(UserError, match=says):
        objective.loss(objective.schedule(1).at(0), jnp.ones(2), traces(one))


def test_a_temperature_is_that_of_relaxed_epochs():
    """Epochs after the relaxed ones have a temperature of 1."""
    objective = AgentObjective(relaxation="soft", relaxed_epochs=2, temperature=0.5)
    assert [objective.schedule(4).at(epoch).policy.temperature for epoch in range(4)] == [0.5, 0.5, 1.0, 1.0]
