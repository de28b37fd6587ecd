"""Check how agents choose: frequencies, masks, dtypes, first steps; relaxed choices and
gradients.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, unroll
from flax import nnx
from marks import and_slow
from recurrences import HIDDEN, INPUT, problem

from dynskip_jax import SkipLSTM
from dynskip_jax import functional as F
from dynskip_jax.functional.agent import choice_noise, choose

K = 4
SKIP = F.Dynamic(K, 0.5)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def layer(skip=SKIP):
    return problem(F.Recurrence(skip), jnp.float32)[0]


def keys(count, seed=0):
    return jax.random.split(jax.random.key(seed), count)


@functools.partial(jax.jit, static_argnames=("recurrence", "implementation"))
def run_program(params, keys, x, recurrence, **options):
    zeros = jnp.zeros((len(x), HIDDEN))
    carry = F.initial_carry(keys, recurrence, F.LSTMState(zeros, zeros))
    return F.unroll(params, carry, x, recurrence, **options)


def run(x, skip=SKIP, **options):
    return run_program(layer(skip), keys(len(x)), x, F.Recurrence(skip), **options)


# --- Sampling


def test_a_choice_is_the_categorical_sample_of_the_same_key():
    log_probs, steps = normal(0, 50, K), np.arange(50)

    @jax.jit
    def both(keys, steps, log_probs):
        step_keys = jax.vmap(jax.random.fold_in)(keys, steps)
        noise = choice_noise(keys, steps, K, jnp.float32)
        return choose(log_probs, noise), jax.vmap(jax.random.categorical)(step_keys, log_probs)

    np.testing.assert_array_equal(*both(keys(50), steps, log_probs))


@pytest.mark.parametrize("rates", [None, (3.0, 0.0, 1.0, 1.0)])
def test_random_choices_have_their_rates_in_every_mode_and_nothing_to_learn(rates):
    count = 20_000
    skip, x = F.Random(K, 0.5, rates=rates), np.ones((count, 2, INPUT), np.float32)
    assert F.Recurrence(skip).init(jax.random.key(0), INPUT, HIDDEN).skip is None
    _, out = run(x, skip, policy=F.Policy("greedy"))
    p = np.ones(K) / K if rates is None else np.array(rates) / sum(rates)
    for t in range(2):
        found = np.bincount(out.decision.action[:, t], minlength=K + 1)[1:] / count
        assert (np.abs(found - p) <= 4.5 * np.sqrt(p * (1 - p) / count)).all()
    assert not np.any(out.decision.log_prob) and not np.any(out.decision.entropy)
    log_probs = skip.log_distribution(None, x, jnp.zeros((count, 2), jnp.int32), None)
    np.testing.assert_allclose(np.exp(log_probs[0, 0]), p, rtol=1e-6, atol=1e-30)
    again = np.full((count, 2), 3)
    np.testing.assert_array_equal(run(x, skip, actions=again)[1].decision.action, again)


def test_a_restarted_carry_keeps_the_newest_state_and_draws_new_noise():
    end, _ = run(np.ones((200, 1, INPUT), np.float32))
    initial = F.LSTMState(*(np.full((200, HIDDEN), value, np.float32) for value in (0.25, -0.5)))
    again = jax.jit(F.restart_carry, static_argnums=1)(end, F.Recurrence(SKIP), initial)
    states = jax.tree.map(np.asarray, (again.slots, end.slots, initial))
    for slots, before, forgotten in zip(*states, strict=True):
        np.testing.assert_array_equal(slots[:, 0], before[:, 0])
        np.testing.assert_array_equal(slots[:, 1:], np.repeat(forgotten[:, None], K - 1, axis=1))
    assert not np.asarray(again.step).any()
    data = lambda key: np.asarray(jax.random.key_data(key))
    assert (data(again.key) != data(end.key)).any(axis=1).all()


def test_only_the_papers_agent_begins_with_a_preference_for_distances():
    """At the first step all K slots have the initial state, so only distances differ."""
    x = jax.random.normal(jax.random.key(0), (3, 2, 4))
    found = {}
    for agent in ("mlp", "content", "both"):
        layer = SkipLSTM(4, 8, skip=F.Dynamic(K, agent=agent), rngs=nnx.Rngs(0))
        entropy = layer(x, rngs=jax.random.key(1)).decisions[0].entropy
        found[agent] = np.allclose(entropy[:, 0], np.log(K), atol=1e-6)
    assert found == dict(mlp=False, content=True, both=True)


# --- Temperature

TEMPERED = [
    F.Dynamic(K, 0.5),
    F.Dynamic(K, 0.5, agent="both", among=F.Every(2)),
    F.SparseAttention(K, 0.5, top=2),
]


def of_tau(log_probs, tau):
    """Return log of p^(1/τ), normalised."""
    powers = np.asarray(log_probs, float) / tau
    return powers - np.logaddexp.reduce(powers, axis=-1, keepdims=True)


@pytest.mark.parametrize("skip", TEMPERED, ids=str)
@pytest.mark.parametrize("tau", [0.25, 4.0])
def test_a_temperature_divides_the_logits_of_samples_log_probabilities_and_entropies(skip, tau):
    """Regression: samples ignored it, and so did the entropies of soft choices."""
    x = jnp.asarray(np.repeat(normal(3, 1, 1, INPUT), 4000, axis=0))
    seen = F.observations_in(jnp.zeros((4000, K, HIDDEN)), skip.observation_kind, K, 1)
    distribution = functools.partial(
        skip.log_distribution, layer(skip).skip, x, jnp.zeros((4000, 1), int), seen
    )
    expected = np.asarray(distribution(temperature=tau))[:, 0]
    if not isinstance(skip, F.SparseAttention):  # its weights are differences of exponentials
        np.testing.assert_allclose(
            np.exp(expected), np.exp(of_tau(distribution()[:, 0], tau)), atol=1e-5
        )
    p = np.exp(expected[0])
    entropy = -np.sum(p * np.log(np.maximum(p, 1e-30)))
    for mode in ("sample", "greedy", "soft"):
        policy = F.Policy(mode, temperature=tau)
        decision = run(x, skip, policy=policy)[1].decision
        np.testing.assert_allclose(decision.entropy, entropy, atol=1e-4)
        if mode == "soft" or not skip.is_stochastic:
            continue
        chosen = np.asarray(decision.action)[:, 0]
        np.testing.assert_allclose(decision.log_prob[:, 0], expected[0, chosen - 1], atol=1e-4)
        if mode == "sample":
            found = np.bincount(chosen, minlength=K + 1)[1:] / len(x)
            assert (np.abs(found - p) <= 4.5 * np.sqrt(p * (1 - p) / len(x)) + 1e-9).all()


@pytest.mark.parametrize("mode", ["gumbel_softmax", "straight_through", "reinmax"])
def test_the_temperature_of_a_relaxed_sample_leaves_its_distribution(mode):
    x = normal(3, 5, 1, INPUT)
    entropies = [
        run(x, policy=F.Policy(mode, temperature=tau))[1].decision.entropy for tau in (0.5, 1.0)
    ]
    np.testing.assert_array_equal(*entropies)


def test_a_temperature_lets_no_masked_skip_in():
    policy = F.Policy("sample", temperature=1e9, mask=np.array([True, False, True, False]))
    decision = run(normal(4, 200, 3, INPUT), policy=policy)[1].decision
    assert set(np.unique(decision.action)) == {1, 3}
    np.testing.assert_allclose(decision.entropy, np.log(2), rtol=1e-5)


def test_no_temperature_makes_values_or_gradients_nan():
    """Regression: 1e-20 made gradients of relaxed choices NaN, and 1e-40 those of all modes."""
    recurrence = F.Recurrence(F.Dynamic(K, agent="both"))
    params, carry, x, _ = problem(recurrence, np.float16)  # the narrowest range
    modes = ("sample", "soft", "straight_through", "reinmax")

    def loss(params, x, tau, mode):
        policy = F.Policy(mode, temperature=tau)
        _, out = F.unroll(params, carry, x, recurrence, policy=policy)
        parts = (out.h, out.decision.log_prob, out.decision.entropy)
        return sum(jnp.sum(part.astype(jnp.float32)) for part in parts)

    @jax.jit
    def of_modes(tau):
        return [jax.value_and_grad(loss, (0, 1, 2))(params, x, tau, mode) for mode in modes]

    for tau in (1e-40, 1e-20, 1e-10, 1e-4, 1.0, 1e20):
        for mode, leaves in zip(modes, of_modes(np.float32(tau)), strict=True):
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(leaves)), (mode, tau)


def test_jumps_have_a_temperature():
    skip, x = F.LSTMJump(max_jump=3, read_steps=1), normal(3, 6, 4, INPUT)
    decisions = [
        run(x, skip, policy=F.Policy("greedy", temperature=tau))[1].decision for tau in (1.0, 4.0)
    ]
    at_jump = np.asarray(decisions[0].action) > 0
    assert at_jump.any()
    assert (np.asarray(decisions[0].entropy) < np.asarray(decisions[1].entropy))[at_jump].all()
    assert (np.asarray(decisions[0].log_prob) > np.asarray(decisions[1].log_prob))[at_jump].all()


# --- Masks


def test_a_masked_skip_is_never_chosen_and_the_rest_is_renormalised():
    x, mask = normal(4, 500, 6, INPUT), np.array([True, False, True, False])
    _, out = run(x, policy=F.Policy(mask=mask))
    assert set(np.unique(out.decision.action)) == {1, 3}
    _, mixed = run(x, policy=F.Policy(mask=np.stack([mask, ~mask] * 250)))
    np.testing.assert_array_equal(mixed.decision.action[::2], out.decision.action[::2])
    assert set(np.unique(mixed.decision.action[1::2])) == {2, 4}
    _, one = run(x, policy=F.Policy(mask=np.array([False, True, False, False])))
    np.testing.assert_array_equal(one.decision.action, 2)
    np.testing.assert_allclose((one.decision.log_prob, one.decision.entropy), 0, atol=1e-6)


def test_where_masks_leave_nothing_the_previous_state_enters():
    """Regression: if masked empty slots and a policy mask forbade all states, no state was
    masked.
    """
    policy = F.Policy(mask=np.array([False, False, True, False]))
    skip = F.Dynamic(K, 1.0, empty_slots="masked")
    _, out = run(normal(4, 50, 4, INPUT), skip, policy=policy)
    np.testing.assert_array_equal(out.decision.action, np.tile([1, 1, 3, 3], (50, 1)))
    np.testing.assert_allclose(out.decision.entropy, 0, atol=1e-6)


@pytest.mark.parametrize(("dtype", "mode"), [("float16", "sample"), ("bfloat16", "soft")])
def test_an_empty_slot_has_probability_0_in_every_dtype(dtype, mode):
    """Regression: in float16, -1e9 became minus infinity, and entropies were NaN."""
    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), layer())
        x, skip = (
            jnp.asarray(normal(4, 5, 6, INPUT), dtype),
            F.Dynamic(K, 0.5, empty_slots="masked"),
        )

        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def run(params):
            carry = F.initial_carry(
                keys(5), F.Recurrence(skip), F.zero_state(F.LSTM(), (5, HIDDEN), dtype)
            )
            _, out = F.unroll(
                params, carry, x, F.Recurrence(skip), policy=F.Policy(mode, temperature=0.7)
            )
            decision = out.decision
            total = decision.log_prob.sum() + 5 * decision.entropy.sum() + out.h.sum()
            return total, (out, skip.log_distribution(params.skip, x, jnp.arange(6)[None], out.h))

        (_, (out, log_probs)), gradient = run(params)
        for leaf in jax.tree.leaves((out, log_probs, gradient)):
            assert np.isfinite(np.asarray(leaf, np.float64)).all()
        assert out.decision.entropy.dtype == log_probs.dtype == dtype
        np.testing.assert_array_equal(out.decision.entropy[:, 0], 0)
        empty = np.arange(K) > np.arange(6)[:, None]
        probs = np.exp(np.asarray(log_probs))
        assert not probs[:, empty].any() and (probs[:, ~empty] > 0).all()


@pytest.mark.parametrize("among", [F.LogSpaced(), F.Segments(2), F.Every(2)], ids=str)
def test_a_replayed_action_that_is_no_candidate_has_probability_0(among):
    """Regression: it got the log-probability of k = 1."""
    skip, k = F.Dynamic(8, among=among), 6
    _, out = run(normal(3, 1, 8, INPUT), skip, actions=np.full((1, 8), k, np.int32))
    is_candidate = (np.asarray(skip.candidates(jnp.arange(8))) == k - 1).any(axis=-1)
    assert not is_candidate.all()
    is_possible = np.asarray(out.decision.log_prob[0]) > -100
    np.testing.assert_array_equal(is_possible, np.broadcast_to(is_candidate, 8))


class Halves(F.Candidates):
    """State(t-1), the state half way back, and the first one: equal at early steps."""

    def count(self, max_skip):
        return 3

    def slots(self, max_skip, step):
        return jnp.minimum(jnp.stack([0 * step, step // 2, step], axis=-1), max_skip - 1)


class Beyond(F.Candidates):
    """Candidates of which some are no slots, and are known only when the program runs."""

    def count(self, max_skip):
        return 3

    def slots(self, max_skip, step):
        return jnp.stack([0 * step, step - 2, step + 2 * max_skip], axis=-1)


BEYOND = [F.Dynamic(K, 0.5, among=Beyond(), agent=agent) for agent in ("mlp", "content")]
BEYOND += [F.Attention(K, 0.5, among=Beyond()), F.SparseAttention(K, 0.5, top=2, among=Beyond())]


@pytest.mark.parametrize("skip", BEYOND, ids=str)
def test_traced_candidates_beyond_k_are_none_in_both_unrolls(skip):
    """Regression: the fused unroll took states that do not exist, and the reference returned NaN;
    later, slot K + 3 became k = K.
    """
    x = normal(3, 5, 7, INPUT)
    runs = [run(x, skip, implementation=name)[1] for name in ("fused", "reference")]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), *runs)
    assert np.isfinite(runs[0].h).all()
    # Only State(t-1) and State(t-k) with k = t - 1 are named, if there are such.
    k = np.asarray(runs[0].decision.action)
    named = np.arange(7) - 1
    assert ((k == 1) | ((k == named) & (named >= 1) & (named <= K))).all()


@pytest.mark.parametrize(
    ("agent", "mask"),
    [("mlp", np.arange(3) >= 0), ("content", np.arange(8) >= 0), ("mlp", np.arange(8) == 7)],
    ids=str,
)
def test_equal_slots_are_one_candidate(agent, mask):
    """Regression: the log-probability was the sum of theirs, so that REINFORCE had a wrong
    gradient.
    """
    K, x = len(mask), jnp.asarray(normal(3, 1, 8, INPUT))
    skip = F.Dynamic(K, agent=agent, among=Halves())
    decision = run(x, skip, policy=F.Policy("sample", mask=mask))[1].decision
    seen = F.observations_in(jnp.zeros((1, K + 8, HIDDEN)), skip.observation_kind, K, 8)
    log_probs = skip.log_distribution(layer(skip).skip, x, jnp.arange(8)[None], seen, mask)
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=-1), 1, rtol=1e-6)
    for t, slots in enumerate(np.asarray(skip.candidates(jnp.arange(8)))):
        allowed = {*slots[mask[slots]].tolist()} or {0}
        assert {*np.flatnonzero(np.asarray(log_probs)[0, t] > -100)} == allowed
        assert int(decision.action[0, t]) - 1 in allowed
        assert decision.entropy[0, t] <= np.log(len(allowed)) + 1e-6
        assert len(allowed) > 1 or abs(decision.log_prob[0, t]) < 1e-6


def test_what_a_carried_first_step_forgets_becomes_the_initial_state():
    """The initial state may be learned. Regression: the forgotten slots became zeros."""
    recurrence = F.Recurrence(F.Dynamic(3, 1.0, first_step="carried"))
    initial = F.LSTMState(jnp.full((2, HIDDEN), 0.25), jnp.full((2, HIDDEN), -0.5))
    carry = F.initial_carry(keys(2), recurrence, initial)
    carried = carry.with_newest(jax.tree.map(lambda state: jnp.full_like(state, 9.0), initial))
    x = jnp.ones((2, 1, INPUT))
    end, _ = unroll(layer(recurrence.time_skip), carried, x, recurrence)
    np.testing.assert_array_equal(end.slots.h[:, 1:], 0.25)
    np.testing.assert_array_equal(end.slots.c[:, 1:], -0.5)


# --- Relaxed choices

relaxed_weights = compiled(F.relaxed_weights)


def log_probs_and_noise():
    rng = np.random.default_rng(0)
    logits, noise = rng.normal(size=(5, K)), rng.gumbel(size=(5, K))
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), noise


@pytest.mark.parametrize("relaxation", F.RELAXATIONS)
def test_weights_are_a_distribution_and_those_of_a_hard_choice_its_sample(
    relaxation, double_precision
):
    log_probs, noise = log_probs_and_noise()
    weights = relaxed_weights(log_probs, noise, relaxation, 0.7)
    assert weights.min() >= 0
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-12)
    if relaxation in ("straight_through", "reinmax"):
        np.testing.assert_allclose(
            weights, np.eye(K)[compiled(choose)(log_probs, noise)], atol=1e-12
        )


def test_straight_through_has_the_derivative_of_gumbel_softmax(double_precision):
    log_probs, noise = map(jax.device_put, log_probs_and_noise())
    values = np.random.default_rng(2).normal(size=(5, K))

    def total(log_probs, relaxation):
        return jnp.sum(values * F.relaxed_weights(log_probs, noise, relaxation, 0.5))

    names = ("straight_through", "gumbel_softmax")
    hard, soft = jax.jit(lambda x: [jax.grad(total)(x, name) for name in names])(log_probs)
    np.testing.assert_allclose(hard, soft, rtol=1e-12)
    assert np.abs(soft).max() > 1e-2


def test_reinmax_is_exact_for_quadratic_functions_and_not_for_others(double_precision):
    """Liu et al. (2023): ReinMax is a method of second order. Expectations are sums over all
    choices.
    """
    rng = np.random.default_rng(3)
    matrix, logits = rng.normal(size=(K, K)), rng.normal(size=K)

    def gradients(f):
        def of_slot(logits, slot):
            noise = 1e3 * jnp.eye(K)[slot]  # chooses the slot whatever the probabilities are
            return f(F.relaxed_weights(jax.nn.log_softmax(logits), noise, "reinmax"))

        def both(logits):
            pi = jax.nn.softmax(logits)
            expected = sum(p * jax.grad(of_slot)(logits, slot) for slot, p in enumerate(pi))
            values = jnp.stack([f(row) for row in jnp.eye(K)])
            return expected, jax.grad(lambda logits: jax.nn.softmax(logits) @ values)(logits)

        return jax.jit(both)(logits)

    np.testing.assert_allclose(*gradients(lambda x: x @ matrix @ x + matrix[0] @ x), rtol=1e-9)
    assert not np.allclose(*gradients(lambda x: jnp.exp(2 * x @ matrix[0])), rtol=1e-2)


def test_replayed_actions_are_not_relaxed():
    x, actions = normal(6, 2, 6, INPUT), np.array([[1, 2, 1, 3, 4, 2]] * 2)
    replayed = [run(x, actions=actions, policy=F.Policy(mode))[1].h for mode in ("soft", "sample")]
    np.testing.assert_array_equal(*replayed)


@pytest.mark.parametrize(
    "relaxation", and_slow(F.RELAXATIONS, {"soft", "straight_through"}.__contains__)
)
def test_a_relaxed_agent_learns_from_the_loss_and_sends_nothing_into_the_network(relaxation):
    x, policy = normal(6, 2, 6, INPUT), F.Policy(relaxation)

    def outputs(params):
        return run_program(params, keys(2), x, F.Recurrence(SKIP), policy=policy)[1]

    def loss(params):
        return jnp.sum(jnp.sin(outputs(params).h))

    def entropies(params):
        return outputs(params).decision.entropy[:, 1].sum()

    of_loss, of_entropies = jax.jit(lambda p: (jax.grad(loss)(p), jax.grad(entropies)(p)))(layer())
    assert all(np.abs(leaf).max() > 1e-6 for leaf in jax.tree.leaves(of_loss.skip))
    # The entropy of step 2 depends on h of step 1, but the agent sends no gradient into the
    # network.
    assert not any(np.any(leaf) for leaf in of_entropies.transition)
