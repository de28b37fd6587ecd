"""Check how agents choose: frequencies, independence of neighbours, masks, and refused arguments."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, unroll
from marks import and_slow

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError

K, HIDDEN, INPUT, UNITS = 4, 3, 2, 6
SKIP = F.Dynamic(K, 0.5)


choice_noise, choose = compiled(F.choice_noise), compiled(F.choose)


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def layer(max_skip=K):
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
    lstm = F.LSTMParams(draw(INPUT, 4 * HIDDEN), draw(HIDDEN, 4 * HIDDEN), draw(4 * HIDDEN))
    agent = F.AgentParams(
        draw(HIDDEN, UNITS), draw(INPUT, UNITS), draw(UNITS), draw(UNITS, max_skip), draw(max_skip)
    )
    return F.LayerParams(lstm, agent)


@functools.partial(jax.jit, static_argnames=("recurrence", "implementation"))
def run_program(params, keys, x, recurrence, **options):
    zeros = jnp.zeros((len(x), HIDDEN))
    carry = F.initial_carry(keys, recurrence, F.LSTMState(zeros, zeros))
    return F.unroll(params, carry, x, recurrence, **options)


def run(x, keys, skip=SKIP, **options):
    return run_program(layer(skip.max_skip), keys, x, F.Recurrence(skip), **options)


def test_sampling_frequencies_follow_the_softmax():
    count = 40_000
    log_probs = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    keys = jax.random.split(jax.random.key(1), count)
    noise = choice_noise(keys, np.zeros(count, np.int32), K, jnp.float32)
    drawn = choose(np.broadcast_to(log_probs, (count, K)), noise)
    p = np.exp(log_probs)
    error = np.abs(np.bincount(drawn, minlength=K) / count - p) / np.sqrt(p * (1 - p) / count)
    assert error.max() < 4.0


def test_frequencies_of_a_whole_unroll_follow_the_policy_it_reports():
    count = 20_000
    x = np.broadcast_to(normal(2, 1, 1, INPUT), (count, 1, INPUT))
    _, out = run(x, jax.random.split(jax.random.key(3), count))
    action, log_prob = np.asarray(out.decision.action)[:, 0], np.asarray(out.decision.log_prob)[:, 0]
    total = 0.0
    for k in range(1, K + 1):
        p = np.exp(log_prob[action == k][0])
        total += p
        assert abs((action == k).mean() - p) < 4 * np.sqrt(p * (1 - p) / count)
    assert abs(total - 1) < 1e-5


def test_a_choice_is_the_categorical_sample_of_the_same_key():
    log_probs = normal(0, 50, K)
    keys, steps = jax.random.split(jax.random.key(1), 50), np.arange(50)

    @jax.jit
    def both(keys, steps, log_probs):
        step_keys = jax.vmap(jax.random.fold_in)(keys, steps)
        noise = F.choice_noise(keys, steps, K, jnp.float32)
        return F.choose(log_probs, noise), jax.vmap(jax.random.categorical)(step_keys, log_probs)

    np.testing.assert_array_equal(*both(keys, steps, log_probs))


def test_a_restarted_carry_keeps_the_newest_state_and_draws_new_noise():
    x = np.ones((200, 1, INPUT), np.float32)
    end, _ = run(x, jax.random.split(jax.random.key(7), 200))
    initial = F.LSTMState(*(np.full((200, HIDDEN), value, np.float32) for value in (0.25, -0.5)))
    again = jax.jit(F.restart_carry, static_argnums=1)(end, F.Recurrence(SKIP), initial)
    for slots, before, forgotten in zip(
        *(map(np.asarray, a) for a in (again.slots, end.slots, initial)), strict=True
    ):
        np.testing.assert_array_equal(slots[:, 0], before[:, 0])
        np.testing.assert_array_equal(slots[:, 1:], np.repeat(forgotten[:, None], K - 1, axis=1))
    assert not np.asarray(again.step).any()
    data = lambda key: np.asarray(jax.random.key_data(key))
    assert (data(again.key) != data(end.key)).any(axis=1).all()


def test_a_masked_skip_is_never_chosen_and_the_rest_is_renormalised():
    x = normal(4, 500, 6, INPUT)
    keys = jax.random.split(jax.random.key(5), 500)
    mask = np.array([True, False, True, False])
    _, out = run(x, keys, policy=F.Policy(mask=mask))
    assert set(np.unique(out.decision.action)) == {1, 3}
    per_example = np.broadcast_to(mask, (500, K))
    _, same = run(x, keys, policy=F.Policy(mask=per_example))
    np.testing.assert_array_equal(same.decision.action, out.decision.action)
    _, one = run(x, keys, policy=F.Policy(mask=np.array([False, True, False, False])))
    np.testing.assert_array_equal(one.decision.action, 2)
    np.testing.assert_allclose(one.decision.log_prob, 0, atol=1e-6)
    np.testing.assert_allclose(one.decision.entropy, 0, atol=1e-6)


def test_a_strided_choice_is_one_of_every_so_many_states():
    skip = F.Dynamic(7, 1.0, among=F.Every(3))
    np.testing.assert_array_equal(skip.candidates(jnp.zeros(2, int)) + 1, [[1, 4, 7]])
    # If the caller's mask forbids all of them, only State(t-1) may be chosen.
    allowed = skip.allowed(jnp.zeros(2, int), jnp.arange(7) == 1)
    np.testing.assert_array_equal(np.asarray(allowed), [[True, False, False]])


def test_masked_empty_slots_are_chosen_only_once_filled():
    skip = F.Dynamic(K, 1.0, empty_slots="masked")
    x = normal(4, 500, 6, INPUT)
    _, out = run(x, jax.random.split(jax.random.key(5), 500), skip)
    reach = np.asarray(out.decision.action).max(axis=0)
    np.testing.assert_array_equal(reach, [1, 2, 3, 4, 4, 4])


def test_gradients_stay_finite_under_a_mask():
    x = normal(4, 5, 6, INPUT)
    keys = jax.random.split(jax.random.key(5), 5)

    @jax.jit
    @jax.grad
    def gradient_of(params, mask):
        _, out = run_program(params, keys, x, F.Recurrence(SKIP), policy=F.Policy(mask=mask))
        # Regression: with a weight of 5, the largest finite number overflowed to infinity.
        return out.decision.log_prob.sum() + 5 * out.decision.entropy.sum()

    for mask in ([True, False, False, False], [True, True, False, True]):
        gradient = gradient_of(layer(), np.array(mask))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("dtype", "mode"),
    and_slow(
        itertools.product(
            ("float16", "bfloat16", "float32", "float64"), ("sample", "soft", "gumbel_softmax", "reinmax")
        ),
        lambda dtype, mode: (dtype, mode) in {("float16", "sample"), ("bfloat16", "soft")},
    ),
)
def test_an_empty_slot_has_probability_0_in_every_dtype(dtype, mode):
    """Regression: in float16, -1e9 became minus infinity, and entropies were NaN."""
    with jax.enable_x64(dtype == "float64"):
        params = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), layer())
        x, key = jnp.asarray(normal(4, 5, 6, INPUT), dtype), jax.random.split(jax.random.key(0), 5)
        skip = F.Dynamic(K, 0.5, empty_slots="masked")

        @jax.jit
        @functools.partial(jax.value_and_grad, has_aux=True)
        def run(params):
            carry = F.initial_carry(key, F.Recurrence(skip), F.zero_state(F.LSTM(), (5, HIDDEN), dtype))
            _, out = F.unroll(params, carry, x, F.Recurrence(skip), policy=F.Policy(mode, temperature=0.7))
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


@pytest.mark.parametrize("implementation", and_slow(["fused", "reference"], "fused".__eq__))
def test_where_masks_leave_nothing_the_previous_state_enters(implementation):
    """Regression: if masked empty slots and a policy mask forbade all states, no state was masked."""
    skip = F.Dynamic(K, 1.0, empty_slots="masked")
    x = normal(4, 50, 4, INPUT)
    mask = np.array([False, False, True, False])
    keys = jax.random.split(jax.random.key(5), 50)
    _, out = run(x, keys, skip, policy=F.Policy(mask=mask), implementation=implementation)
    np.testing.assert_array_equal(out.decision.action, np.tile([1, 1, 3, 3], (50, 1)))
    np.testing.assert_allclose(out.decision.entropy, 0, atol=1e-6)


@pytest.mark.parametrize("implementation", and_slow(["fused", "reference"], "fused".__eq__))
def test_what_a_carried_first_step_forgets_becomes_the_initial_state(implementation):
    """The initial state may be learned. Regression: the forgotten slots became zeros."""
    skip = F.Dynamic(3, 1.0, first_step="carried")
    recurrence = F.Recurrence(skip)
    initial = F.LSTMState(jnp.full((2, HIDDEN), 0.25), jnp.full((2, HIDDEN), -0.5))
    carry = F.initial_carry(jax.random.split(jax.random.key(0), 2), recurrence, initial)
    carried = jax.tree.map(lambda slots: slots.at[:, 0].set(9.0), carry.slots)
    end, _ = unroll(
        layer(3),
        carry._replace(slots=carried),
        jnp.ones((2, 1, INPUT)),
        recurrence,
        implementation=implementation,
    )
    np.testing.assert_array_equal(end.slots.h[:, 1:], 0.25)
    np.testing.assert_array_equal(end.slots.c[:, 1:], -0.5)


def test_flipping_keeps_padding_and_is_its_own_inverse():
    x = jnp.arange(10).reshape(2, 5)
    flipped = F.flip_sequences(x, jnp.array([5, 3]))
    np.testing.assert_array_equal(flipped, [[4, 3, 2, 1, 0], [7, 6, 5, 8, 9]])
    np.testing.assert_array_equal(F.flip_sequences(flipped, jnp.array([5, 3])), x)
    np.testing.assert_array_equal(F.last_valid(x, jnp.array([5, 3])), [4, 7])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("gru", "'gru'"),
        ("dynamic", "'dynamic'"),
        ("dynamic:", "whole number"),
        ("dynamic:x", "whole number"),
        ("dynamic:5:3", "whole number"),
        ("dynamic:1.5", "whole number"),
        ("dynamic:0", "'dynamic:0'"),
        ("fixed:-1", "'fixed:-1'"),
        ("lstm:3", "'lstm:3'"),
        ("", "''"),
    ],
)
def test_an_unknown_model_is_named_in_one_line(text, named):
    with pytest.raises(UserError) as error:
        F.parse_time_skip(text)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "options",
    [
        dict(agent="gated"),
        dict(max_skip=0),
        dict(mix=1.5),
        dict(mix=-0.1),
        dict(mix=float("nan")),
        dict(agent_input="all"),
        dict(empty_slots="none"),
        dict(first_step="skip"),
    ],
    ids=str,
)
def test_a_skip_that_makes_no_sense_is_refused(options):
    with pytest.raises(UserError, match="a size of at least 1"):
        F.Segments(0)
    with pytest.raises(UserError) as error:
        F.Dynamic(**{"max_skip": 5, **options})
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("number", [jnp.float32, np.float32, np.float64, lambda mix: np.array(mix)])
def test_arrays_in_a_skip_become_numbers_so_that_it_is_hashable(number):
    skip = F.Dynamic(np.int64(2), mix=number(0.5))
    assert skip == F.Dynamic(2, mix=0.5) and hash(skip) == hash(F.Dynamic(2, mix=0.5))
    assert type(skip.mix) is float and type(skip.max_skip) is int
    assert F.Random(2, rates=[1, 2]) == F.Random(2, rates=np.array([1, 2])) == F.Random(2, rates=(1, 2))
    assert hash(F.Random(2, rates=[1, 2]))


def test_log_spaced_skips_have_no_stride():
    with pytest.raises(UserError, match="leave out the stride"):
        F.parse_time_skip("log_dynamic:8", stride=2)


@pytest.mark.parametrize(
    "skip",
    [F.Dynamic(8, among=among) for among in (F.LogSpaced(), F.Segments(2), F.Every(2))],
    ids=lambda skip: type(skip.among).__name__,
)
def test_a_replayed_action_that_is_no_candidate_has_probability_0(skip):
    """Regression: it got the log-probability of k = 1."""
    x, k, recurrence = normal(3, 1, 8, INPUT), 6, F.Recurrence(skip)
    zeros = jax.device_put(np.zeros((1, HIDDEN), np.float32))
    carry = F.initial_carry(None, recurrence, F.LSTMState(zeros, zeros))
    params = layer(skip.num_candidates)
    _, out = unroll(params, carry, x, recurrence, actions=np.full((1, 8), k, np.int32))
    is_candidate = (np.asarray(skip.candidates(jnp.arange(8))) == k - 1).any(axis=-1)
    assert not is_candidate.all()
    np.testing.assert_array_equal(
        np.asarray(out.decision.log_prob[0]) > -100, is_candidate | np.zeros(8, bool)
    )


def test_attention_reports_the_entropy_of_the_weights_that_entered():
    """Regression: the entropy was that of the temperature 1."""
    run = functools.partial(
        run_program, layer(), jax.random.split(jax.random.key(0), 2), normal(3, 2, 6, INPUT)
    )
    entropies = {
        temperature: run(F.Recurrence(F.Attention(K)), policy=F.Policy(temperature=temperature))[
            1
        ].decision.entropy
        for temperature in (1e-3, 1.0, 1e3)
    }
    np.testing.assert_allclose(entropies[1e3], np.log(K), rtol=1e-4)
    assert entropies[1e-3].max() < 0.1 < entropies[1.0].min()


@pytest.mark.parametrize("rate", [1.0, -0.1, float("nan")])
def test_a_dropout_rate_outside_its_range_is_refused(rate):
    with pytest.raises(UserError, match="dropout"):
        F.dropout_mask(jax.random.key(0), rate, (3,), jnp.float32)


def test_known_models_are_read():
    assert F.parse_time_skip("lstm", mix=0.5, agent_input="mean") == F.Previous()
    assert F.parse_time_skip("fixed:3", mix=0.5) == F.Fixed(3, 0.5)
    assert F.parse_time_skip("attention:4") == F.Attention(4)
    assert F.parse_time_skip("content:4", agent_input="mean") == F.Attention(
        4, agent_input="mean", agent="content"
    )
    assert F.parse_time_skip("dynamic:10", agent="content") == F.Dynamic(10, agent="content")
    assert F.parse_time_skip("log_dynamic:512", mix=0.5) == F.Dynamic(512, 0.5, among=F.LogSpaced())
    assert F.parse_time_skip("segment_attention:40", stride=4) == F.Attention(
        40, among=F.Segments(4), agent="content"
    )
    assert F.parse_time_skip("skip_rnn", mix=0.5) == F.SkipRNN()
    assert F.parse_time_skip("lstm_jump", max_jump=3) == F.LSTMJump(max_jump=3)


@pytest.mark.parametrize(
    ("rates", "mode"),
    and_slow(
        itertools.product([None, (3.0, 0.0, 1.0, 1.0)], ["sample", "greedy"]),
        lambda rates, mode: mode == "greedy" and rates is not None,
    ),
)
def test_random_choices_have_their_rates_in_every_mode_and_nothing_to_learn(rates, mode):
    count = 20_000
    skip, x = F.Random(K, 0.5, rates=rates), jnp.ones((count, 2, INPUT))
    recurrence = F.Recurrence(skip)
    params = recurrence.init(jax.random.key(0), INPUT, HIDDEN)
    assert params.skip is None
    zeros = jnp.zeros((count, HIDDEN))
    carry = F.initial_carry(jax.random.key(1), recurrence, F.LSTMState(zeros, zeros))
    _, out = unroll(params, carry, x, recurrence, policy=F.Policy(mode))
    p = np.ones(K) / K if rates is None else np.array(rates) / sum(rates)
    for t in range(2):
        found = np.bincount(out.decision.action[:, t], minlength=K + 1)[1:] / count
        assert (np.abs(found - p) <= 4.5 * np.sqrt(p * (1 - p) / count)).all()
    assert not np.any(out.decision.log_prob) and not np.any(out.decision.entropy)
    log_probs = skip.log_distribution(None, x, jnp.zeros((count, 2), jnp.int32), None)
    np.testing.assert_allclose(np.exp(log_probs[0, 0]), p, rtol=1e-6, atol=1e-30)
    again = jnp.full((count, 2), 3)
    replayed = unroll(params, carry, x, recurrence, actions=again)[1].decision.action
    np.testing.assert_array_equal(replayed, again)


def test_the_mean_is_attention_that_prefers_nothing():
    x = normal(0, 5, 6, INPUT)
    attention = F.Recurrence(F.Attention(K, 0.5))
    params = attention.init(jax.random.key(0), INPUT, HIDDEN, agent_features=UNITS)
    params = params._replace(skip=jax.tree.map(jnp.zeros_like, params.skip))
    zeros = jnp.zeros((5, HIDDEN))
    outputs = []
    for recurrence in (attention, F.Recurrence(F.Mean(K, 0.5))):
        carry = F.initial_carry(jax.random.key(1), recurrence, F.LSTMState(zeros, zeros))
        outputs.append(unroll(params, carry, x, recurrence)[1].h)
    np.testing.assert_allclose(*outputs, rtol=1e-6)
