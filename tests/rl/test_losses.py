"""Check the losses against loops over their definitions."""

import dataclasses
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, drawn
from flax import nnx

from dynskip_jax import SkipLSTM, rl
from dynskip_jax import functional as F
from dynskip_jax.config.settings import Agent
from dynskip_jax.errors import UserError
from dynskip_jax.models.language_model import LanguageModelOutput
from dynskip_jax.tasks.agents import agents_loss, rewards_of
from dynskip_jax.training.scheduled import ScheduledValues

ROWS = 6
TIME = 4
ROLLOUTS = 3
LENGTHS = np.repeat([4, 2], 3)
VALID = np.arange(TIME) < LENGTHS[:, None]


def trace_of(seed=0, **facts):
    rng = np.random.default_rng(seed)
    return F.DecisionTrace(
        action=jnp.asarray(rng.integers(1, 6, (ROWS, TIME)), jnp.int32),
        log_prob=jnp.asarray(-rng.exponential(1.0, (ROWS, TIME)), jnp.float32),
        entropy=jnp.asarray(rng.uniform(0, 1.6, (ROWS, TIME)), jnp.float32),
        **facts,
    )


def rewards_like(per_step):
    shape = (ROWS, TIME)[: 1 + per_step]
    return jnp.asarray(np.random.default_rng(7).normal(size=shape), jnp.float32)


def mean_or_0(values):
    return np.mean(values) if len(values) else 0.0


# --- The definition


def slow_returns(trace, rewards, counted, *, discount, beta, baseline):
    """Compute the factor of each log-probability in the loss, one action at a time."""
    log_prob = np.asarray(trace.log_prob, float)
    rewards = np.asarray(rewards, float)
    returns = np.zeros((ROWS, TIME))
    per_step = rewards.ndim == 2
    if not per_step:
        discount = 1.0

    def steps(i, t, noncausal):
        """Return the steps that the action at t can change."""
        inside = [u for u in range(TIME) if counted[i, u]]
        if noncausal:
            return inside
        if trace.reverse:
            return [u for u in inside if u <= t]
        return [u for u in inside if u >= t]

    def gain(i, t):
        if not per_step:
            return rewards[i]
        return sum(discount ** abs(u - t) * rewards[i, u] for u in steps(i, t, trace.noncausal))

    for i, t in zip(*np.nonzero(counted), strict=True):
        # The sampled entropy of later actions, or of the whole row.
        later = sum(discount ** abs(u - t) * log_prob[i, u] for u in steps(i, t, not per_step))
        # The baseline: the mean gain of the other members of the group.
        first = i // ROLLOUTS * ROLLOUTS
        groups = {"none": [], "batch": range(ROWS), "rollouts": range(first, first + ROLLOUTS)}
        others = [j for j in groups[baseline] if j != i and (counted[j, t] or not per_step)]
        returns[i, t] = gain(i, t) - beta * (later + 1) - mean_or_0([gain(j, t) for j in others])
    return returns


DIRECTIONS = [{}, dict(reverse=True), dict(noncausal=True), dict(noncausal=True, reverse=True)]
CASES = list(itertools.product(["none", "batch", "rollouts"], [1.0, 0.5], DIRECTIONS))


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("per_step", [False, True], ids=["rows", "steps"])
def test_reinforce_and_its_gradient_are_the_slow_definition(per_step, masked):
    rewards = rewards_like(per_step)
    beta = 0.3
    cases = CASES
    if not per_step:  # a reward of a row has no steps to discount
        cases = [case for case in CASES if case[1] == 1.0]

    # Past the end nothing may count.
    counted = np.ones_like(VALID)
    valid = None
    odd = rewards
    if masked:
        counted = VALID
        valid = jnp.asarray(VALID)
    if per_step:
        odd = jnp.where(counted, rewards, jnp.nan)

    def loss(log_prob, rewards, baseline, discount, facts):
        group = (-1, ROLLOUTS)[: 1 + (baseline == "rollouts")]
        over = dict(none=None, batch=rl.leave_one_out, rollouts=partial(rl.leave_one_out, axis=1))
        trace = dataclasses.replace(trace_of(valid=valid, **facts), log_prob=log_prob)
        turn = partial(jax.tree.map, lambda leaf: leaf.reshape(*group, *leaf.shape[1:]))
        how = dict(baseline=over[baseline], discount=discount, entropy_coef=beta)
        return rl.reinforce(turn(trace), turn(rewards), **how)

    gradient = jax.value_and_grad(loss, (0, 1))
    program = jax.jit(lambda *arrays: [gradient(*arrays, *case) for case in cases])
    results = jax.device_get(program(trace_of().log_prob, odd))
    for (baseline, discount, facts), (value, grads) in zip(cases, results, strict=True):
        trace = trace_of(**facts)
        expected = slow_returns(
            trace, rewards, counted, discount=discount, beta=beta, baseline=baseline
        )
        losses = -(np.asarray(trace.log_prob) * expected).sum(axis=1)
        np.testing.assert_allclose(
            value, losses.mean(), rtol=1e-4, err_msg=f"{baseline} {discount} {facts}"
        )
        np.testing.assert_allclose(grads[0], -expected / ROWS, rtol=1e-4, atol=1e-6)
        assert not np.any(grads[1])  # rewards are stopped


def test_losses_by_hand():
    log_prob = jnp.array([[-1.0, -2.0], [-3.0, -4.0]])
    trace = F.DecisionTrace(
        jnp.ones((2, 2), jnp.int32), log_prob, jnp.array([[1.0, 2.0], [3.0, 4.0]])
    )
    # Rewards minus those of the other row: 10 - 4 and 4 - 10. Losses: 3 * 6 = 18 and 7 * -6 = -42.
    R = jnp.array([10.0, 4.0])
    assert rl.reinforce(trace, R, baseline=rl.leave_one_out(R)) == -12.0
    assert rl.entropy(trace) == 5.0
    assert rl.agent_loss(trace, R) == -12.0
    np.testing.assert_allclose(rl.agent_loss(trace, R, entropy_coef=0.02), -12.0 - 0.02 * 5.0)
    soft = dataclasses.replace(trace, mode="soft")
    assert rl.agent_loss(soft, R, entropy_coef=0.5) == 0  # nothing to explore
    np.testing.assert_allclose(rl.agent_loss([soft, trace], R, entropy_coef=0.5), -12.0 - 2.5)
    assert rl.reinforce(trace, jnp.array([[1, 0], [2, 3]])) == (1 * 1 + 2 * 0 + 3 * 5 + 4 * 3) / 2
    # Eq. 5 as printed: -Σ log π · (R - Σ log π - 1), with the cross-entropy -R.
    as_printed = rl.network_loss(trace, -R) + rl.reinforce(trace, R, entropy_coef=1.0)
    np.testing.assert_allclose(as_printed, (-10 - 4) / 2 + (3 * 12 + 7 * 10) / 2)
    assert rl.network_loss(trace, jnp.array([1, 0])) == 0.5  # not rounded
    # Values of steps: returns are 10, 10 and 4, 4.
    values = jnp.array([[9.0, 10.0], [6.0, 4.0]])
    assert rl.reinforce(trace, R, baseline=values) == (1 * 1 + 2 * 0 + 3 * -2 + 4 * 0) / 2


@pytest.mark.parametrize(("discount", "expected"), [(1.0, 14.0), (0.5, 11.75), (0.0, 9.5)])
def test_the_loss_of_a_task_discounts_later_rewards(discount, expected):
    """By hand, with discount 0.5: 1 · 1 + 2 · 0, and 3 · (2 + 0.5 · 3) + 4 · 3; their mean."""
    log_prob = jnp.array([[-1.0, -2.0], [-3.0, -4.0]])
    trace = F.DecisionTrace(jnp.ones((2, 2), jnp.int32), log_prob, jnp.zeros((2, 2)))
    objective = Agent(discount=discount, rl_coef=1.0, baseline="none")
    scheduled = ScheduledValues(F.Policy("sample"), entropy_coef=0.0)
    rewards = jnp.array([[1.0, 0.0], [2.0, 3.0]])
    assert agents_loss(objective, scheduled, [trace], jnp.zeros((2, 2)), rewards) == expected


# --- One loss


@pytest.mark.parametrize("per_step", [False, True], ids=["rows", "steps"])
def test_one_loss_is_that_of_the_network_plus_that_of_the_agents(per_step):
    """Rows of different lengths: sums over the steps that count, means over rows."""
    nll = np.abs(np.asarray(rewards_like(per_step)))
    rows = nll
    odd = nll
    if per_step:
        rows = np.where(VALID, nll, 0).sum(axis=1)
        odd = np.where(VALID, nll, np.nan)

    entropies = np.where(VALID, np.asarray(trace_of().entropy), 0).sum(axis=1)
    plain = slow_returns(trace_of(), -nll, VALID, discount=1.0, beta=0.0, baseline="batch")
    of_choices = -(np.asarray(trace_of().log_prob) * plain).sum(axis=1)
    expected = dict(sample=rows + of_choices - 0.3 * entropies, soft=rows)
    expected |= dict(replayed=expected["sample"], greedy=rows, none=rows)
    for mode, losses in expected.items():
        trace = trace_of(mode=mode, valid=jnp.asarray(VALID))
        for decisions in (trace, [trace], LanguageModelOutput(None, (trace,), None, None, ())):
            found = rl.loss(decisions, odd, entropy_coef=0.3)
            np.testing.assert_allclose(found, losses.mean(), rtol=1e-5, err_msg=mode)


def test_layers_that_are_greedy_have_no_part_in_the_loss_and_others_keep_theirs():
    """LSTM-Jump is greedy in relaxed modes."""
    greedy = trace_of(1, mode="greedy")
    sampled = trace_of()
    values = trace_of(2).log_prob
    nll = -rewards_like(True)
    found = rl.loss([greedy, sampled], nll, baseline=values)
    expected = rl.network_loss(sampled, nll) + rl.agent_loss(sampled, -nll, baseline=values)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    one_row = jax.tree.map(lambda leaf: leaf[:1], greedy)  # validation needs no other rows
    np.testing.assert_allclose(rl.loss(one_row, nll[:1]), nll[:1].sum(), rtol=1e-6)


# --- Baselines and VIMCO


OF_ROWS = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
OF_STEPS = np.arange(16, dtype=np.float32).reshape(4, 4) % 5


@pytest.mark.parametrize("values", [OF_ROWS, OF_STEPS], ids=["values of rows", "of steps"])
@pytest.mark.parametrize(
    "weights", [OF_ROWS % 3, OF_STEPS % 3], ids=["weights of rows", "of steps"]
)
def test_every_pair_of_rows_and_steps_is_weighed_by_a_loop_or_refused(values, weights):
    """Regression: with as many rows as steps, weights of steps were spread over rows of losses."""
    rng = np.random.default_rng(0)
    log_prob, entropy = -rng.exponential(size=(2, 4, 4)).astype(np.float32)
    trace = F.DecisionTrace(np.ones((4, 4), np.int32), *map(jnp.asarray, (log_prob, entropy)))
    every = np.broadcast_to(weights.reshape(4, -1), (4, 4))
    if values.ndim == 2:
        # Rewards of weight 0 do not count; a return is what follows.
        returns = np.cumsum(np.where(every, values, 0)[:, ::-1], axis=1)[:, ::-1]
    else:
        returns = np.broadcast_to(values[:, None], (4, 4))

    expected = {
        rl.reinforce: -(every * log_prob * returns).sum() / 4,
        rl.agent_loss: -(every * log_prob * returns).sum() / 4,
        rl.network_loss: (every * values.reshape(4, -1)).sum() / 4,
    }
    if values.ndim == 1:
        expected[rl.network_loss] = (weights * values).sum() / 4 if weights.ndim == 1 else None
    # The reward of `loss` is -nll.
    expected[rl.loss] = None
    if expected[rl.network_loss] is not None:
        expected[rl.loss] = expected[rl.network_loss] - expected[rl.reinforce]
    for function, wanted in expected.items():
        options = dict(weights=weights)
        if function in (rl.loss, rl.agent_loss):
            options["baseline"] = None
        if wanted is None:
            with pytest.raises(UserError, match=r"expected weights of each row, \(4,\)"):
                function(trace, values, **options)
        else:
            found = function(trace, values, **options)
            np.testing.assert_allclose(found, wanted, rtol=1e-5, err_msg=function.__name__)
    np.testing.assert_allclose(
        rl.entropy(trace, weights=weights), (every * entropy).sum() / 4, rtol=1e-5
    )


def test_long_sums_do_not_overflow():
    halves = jnp.ones((64, 2000), jnp.float16)
    assert rl.entropy(F.DecisionTrace(halves.astype(int), -halves, halves)) == 2000
    assert rl.leave_one_out(jnp.full(1000, -100, jnp.float16))[0] == -100


@pytest.mark.parametrize("counted", [(1, 0, 1, 1, 0, 0, 0, 1), (0, 0, 1, 0, 0, 0, 0, 0), (1,) * 8])
def test_leave_one_out_of_those_that_count_also_divided_among_devices(counted):
    values = np.random.default_rng(0).normal(size=(8, 3))
    counted = np.array(counted, bool)
    expected = np.zeros((8, 3))
    for i in range(8):
        if others := [j for j in np.flatnonzero(counted) if j != i]:
            expected[i] = values[others].mean(axis=0)
    values[~counted] = np.inf  # values that do not count must be ignored
    np.testing.assert_allclose(rl.leave_one_out(jnp.asarray(values), counted), expected, atol=1e-6)
    divided = jax.vmap(partial(rl.leave_one_out, axis_name="data"), axis_name="data")
    found = jax.jit(divided)(values.reshape(4, 2, 3), counted.reshape(4, 2))
    np.testing.assert_allclose(found.reshape(8, 3), expected, atol=1e-6)


def test_vimco_by_hand():
    p = np.array([0.1, 0.4, 0.9])
    geometric = np.sqrt([0.4 * 0.9, 0.1 * 0.9, 0.1 * 0.4])
    expected = 3 * (np.log(1.4 / 3) - np.log((1.4 - p + geometric) / 3))
    log_p = jnp.log(jnp.array([p, p]))
    np.testing.assert_allclose(rl.vimco(log_p, axis=1), [expected] * 2, rtol=1e-4)
    np.testing.assert_allclose(rl.vimco(log_p.T), np.stack([expected] * 2, axis=1), rtol=1e-4)
    np.testing.assert_allclose(
        rl.averaged_log_likelihood(log_p, axis=1), np.log([1.4 / 3] * 2), rtol=1e-5
    )
    assert not np.any(jax.grad(lambda x: rl.vimco(x).sum())(log_p.T))


def test_vimco_of_impossible_predictions_is_finite():
    for log_likelihood in ([-3, -np.inf], [-np.inf, -np.inf], [-np.inf, 0, -500]):
        found = rl.vimco(jnp.array(log_likelihood, jnp.float32))
        assert np.isfinite(found).all()
        assert np.argmax(found) == np.argmax(log_likelihood)  # the best rollout is rewarded most


@pytest.mark.parametrize("left_out", ["past the end", "of a row without weight"])
def test_what_is_left_out_may_be_infinite(left_out):
    """Regression: a masked advantage that was not finite made loss and gradient NaN."""
    out = ~VALID
    weights = None
    if left_out == "of a row without weight":
        out = np.tile(np.arange(ROWS)[:, None] >= 3, TIME)
        weights = jnp.asarray(~out[:, 0], jnp.float32)

    @jax.jit
    def both(odd):
        def loss(log_prob, entropy, values):
            trace = trace_of(valid=jnp.asarray(VALID))
            trace = dataclasses.replace(trace, log_prob=log_prob, entropy=entropy)
            reward = jnp.where(out, odd, rewards_like(True))
            how = dict(weights=weights)
            total = rl.reinforce(trace, reward, baseline=rl.leave_one_out, entropy_coef=0.1, **how)
            total += rl.reinforce(trace, reward, baseline=values, **how)
            total += rl.entropy(trace, **how)
            return total + rl.network_loss(trace, reward, **how)

        leaves = [trace_of().log_prob, trace_of().entropy, trace_of(1).log_prob]
        return jax.value_and_grad(loss, (0, 1, 2))(*(jnp.where(out, odd, leaf) for leaf in leaves))

    for odd in (np.nan, np.inf, -np.inf):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), both(odd), both(1.0))


# --- Outputs of layers

X = jax.device_put(np.random.default_rng(0).normal(size=(3, 5, 2)).astype(np.float32))
ENDS = np.array([5, 3, 1])
INSIDE = np.arange(5) < ENDS[:, None]
NLL = np.random.default_rng(1).exponential(size=(3, 5)).astype(np.float32)


def layers(**options):
    return drawn(lambda: SkipLSTM(2, 4, rngs=nnx.Rngs(0), **options))


def test_rollouts_are_a_leading_axis():
    """Two rollouts of three rows. With equal rewards none has an advantage, only entropy."""
    x, nll = (np.broadcast_to(array, (2, *array.shape)) for array in map(np.asarray, (X, NLL)))
    actions = np.random.default_rng(3).integers(1, 4, size=(2, 3, 5))
    module = compiled(layers(skip=F.Dynamic(3)))
    out = module(x, seq_lengths=np.broadcast_to(ENDS, (2, 3)), actions=[actions])
    loss = jax.jit(partial(rl.agent_loss, entropy_coef=0.02))
    np.testing.assert_allclose(
        loss(out, -nll.sum(axis=2)), -0.02 * float(rl.entropy(out)), rtol=1e-3
    )


def test_nan_in_the_padding_reaches_no_observation():
    out = compiled(layers())(np.where(INSIDE[..., None], X, np.nan), seq_lengths=ENDS)
    assert all(np.isfinite(seen).all() for seen in out.observations[0])


def test_masks_directions_and_layers_that_do_not_sample_are_told_by_the_output():
    module = layers(skip=[F.Dynamic(3), F.Attention(3)], bidirectional=True)
    out = compiled(module)(X, seq_lengths=ENDS, rngs=jax.random.key(0))
    facts = [(trace.mode, trace.reverse, trace.noncausal) for trace in out.decisions]
    sampled = [("sample", way, True) for way in (False, True)]
    none = [("none", False, False)]
    assert facts == [*sampled, *none, ("none", True, False)]
    jax.tree.map(
        np.testing.assert_array_equal, [trace.valid for trace in out.decisions], [INSIDE] * 4
    )
    expected = 0.0
    for trace, row in itertools.product(out.decisions[:2], range(3)):
        log_prob = np.asarray(trace.log_prob)
        # Below, an action changes all steps.
        for t, u in itertools.product(range(ENDS[row]), repeat=2):
            expected += log_prob[row, t] * 0.5 ** abs(u - t) * NLL[row, u] / 3
    np.testing.assert_allclose(rl.reinforce(out, -NLL, discount=0.5), expected, rtol=1e-5)
    np.testing.assert_allclose(
        rl.network_loss(out, NLL), np.where(INSIDE, NLL, 0).sum() / 3, rtol=1e-5
    )
    few = np.tile((np.arange(5) != 1).astype(np.float32), (3, 1))
    found = [float(rl.agent_loss(out, -nll, weights=few)) for nll in (NLL, np.where(few, NLL, 1e3))]
    np.testing.assert_allclose(*found, rtol=1e-6)


def test_traced_actions_out_of_range_are_clipped():
    """Regression: eagerly they are refused, but a compiled program chose a state without a word."""
    module = layers(skip=F.Dynamic(3))
    odd = jax.device_put(np.array([[1, 2, 9, -4, 0]] * 3))
    run = lambda actions: compiled(module)(X, actions=[actions])
    jax.tree.map(np.testing.assert_array_equal, run(odd), run(np.clip(odd, 1, 3)))
    assert np.array_equal(run(odd).decisions[0].action, np.clip(odd, 1, 3))
    with pytest.raises(UserError, match="actions lie between 1 and 3"):
        module(X, actions=[odd])


IMPOSSIBLE = {
    "forbidden by a mask": (F.Dynamic(3), F.Policy(mask=np.arange(3) != 1), 2),
    "before the first state": (F.Dynamic(3, empty_slots="masked"), None, 3),
    "no candidate": (F.Dynamic(8, among=F.LogSpaced()), None, 3),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_traced_action_of_probability_0_makes_the_loss_nan(name):
    """Regression: log π of -1e9 gave a loss of 3e10, with a gradient that was finite and wrong."""
    skip, policy, action = IMPOSSIBLE[name]
    graphdef, params = nnx.split(layers(skip=skip))

    @jax.jit
    def both(actions, weights):
        def loss(params):
            out = nnx.merge(graphdef, params)(X, actions=[actions], policy=policy)
            return rl.loss(out, NLL, weights=weights)

        return jax.value_and_grad(loss)(params)

    possible = np.ones((3, 5), np.int32)
    impossible = possible.copy()
    impossible[0, 0] = action
    all_rows = np.ones(3, np.float32)
    other_rows = np.array([0, 1, 1], np.float32)

    value, gradient = both(impossible, all_rows)
    assert np.isnan(value)
    assert np.isnan(gradient["cells"][0]["agent"]["w_out"][...]).any()
    for actions, weights in ((possible, all_rows), (impossible, other_rows)):
        value, gradient = both(actions, weights)
        assert np.isfinite(value) and abs(value) < 100
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_tokens_read_by_a_skip_rnn_are_paid_for():
    out = compiled(layers(skip=[F.SkipRNN(), F.Dynamic(3)]))(
        X, seq_lengths=ENDS, rngs=jax.random.key(0)
    )
    expected = np.asarray(out.decisions[0].update)[INSIDE].sum() / 3
    np.testing.assert_allclose(rl.tokens_read(out), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("skip", "mode", "made", "says"),
    [
        (F.Dynamic(3), "sample", "sample", None),
        (F.Dynamic(3), "soft", "soft", "soft choices .* trained by its own loss"),
        (F.Dynamic(3), "greedy", "greedy", r"call model.train\(\), or pass policy"),
        (F.Random(3), "sample", "none", None),  # it samples, but has no parameters
        (F.LSTMJump(), "soft", "greedy", "greedy choices"),  # it cannot be relaxed
        (F.Attention(3), "greedy", "none", None),
    ],
    ids=str,
)
def test_decisions_know_how_they_were_made(skip, mode, made, says):
    zeros = jnp.zeros((2, 3))
    decision = F.Decision(zeros.astype(int), zeros, zeros)
    trace = F.DecisionTrace.of(decision, skip, None, mode=mode)
    assert trace.mode == made
    replayed = F.DecisionTrace.of(decision, F.Dynamic(3), None, mode=mode, replayed=True)
    assert replayed.mode == "replayed"
    if says:
        with pytest.raises(UserError, match=says):
            rl.reinforce(trace, jnp.zeros(2))


# --- Settings of the experiments


def test_rewards_of_each_kind():
    probability = np.array([0.25, 1.0, 1e-3], np.float32)
    correct = jnp.array([0.0, 1.0, 1.0])
    expected = {
        "log_likelihood": np.log(probability),
        "probability": probability,
        "correct": [-1, 1, 1],
    }
    for kind, values in expected.items():
        found = rewards_of(Agent(reward=kind), jnp.log(probability), correct)
        np.testing.assert_allclose(found, values, rtol=1e-6)
