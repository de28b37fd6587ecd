"""Check the unroll against a NumPy float64 loop written from Gui et al. (2019), Eq. 1 and 2."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, unroll
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import and_slow
from recurrences import problem

from dynskip_jax import functional as F

BATCH, TIME, INPUT, HIDDEN, UNITS = 3, 6, 2, 4, 5


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def draw_weights(rng, max_skip):
    """Draw the weights of a layer as NumPy arrays by name."""
    shapes = dict(
        wx=(INPUT, 4 * HIDDEN),
        wh=(HIDDEN, 4 * HIDDEN),
        b=(4 * HIDDEN,),
        a_wh=(HIDDEN, UNITS),
        a_wx=(INPUT, UNITS),
        a_b=(UNITS,),
        a_out=(UNITS, max_skip),
        a_bout=(max_skip,),
    )
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def as_params(w, has_agent):
    lstm = F.LSTMParams(*(jax.device_put(w[n]) for n in ("wx", "wh", "b")))
    agent = F.AgentParams(*(jax.device_put(w[n]) for n in ("a_wh", "a_wx", "a_b", "a_out", "a_bout")))
    return F.LayerParams(lstm, agent if has_agent else None)


def candidates(skip, t):
    """Return the slots among which an agent chooses at step t."""
    among = getattr(skip, "among", None)
    if isinstance(among, F.LogSpaced):
        return np.array([2**j - 1 for j in range(10) if 2**j <= skip.max_skip])
    if isinstance(among, F.Segments):
        # the state in a slot was the newest one after t - slot steps
        ends = [slot for slot in range(1, skip.max_skip) if (t - slot) % among.size == 0]
        return np.array([0, *ends[: (skip.max_skip - 1) // among.size]])
    return np.array([slot for slot in range(skip.max_skip) if among is None or slot % among.size == 0])


def oracle_sequence(w, skip, mix, x, past, actions=None, allowed=None, recurrent_mask=None, first_call=True):
    """Run one sequence step by step; return h, action, log-probability and entropy of each step.

    `past` lists (h, c), oldest first. It starts with K copies of the initial state and is extended in place.
    """
    K = skip.max_skip
    num_initial, initial = len(past), past[0]
    rows = []
    for t in range(len(x)):
        h1, c1 = past[-1]
        log_p = ent = 0.0
        weights = None
        if skip.name == "fixed":
            k = K
        else:
            seen = (
                np.mean([h for h, _ in past[-K:]], axis=0)
                if getattr(skip, "agent_input", "previous") == "mean"
                else h1
            )
            s = np.concatenate([seen, x[t]])
            first = np.concatenate([w["a_wh"], w["a_wx"]])
            logits = np.tanh(s @ first + w["a_b"]) @ w["a_out"] + w["a_bout"]
            choosable = np.ones(K, bool) if allowed is None else allowed.copy()
            if skip.empty_slots == "masked" and first_call:
                choosable &= np.arange(K) < len(past) - num_initial + 1
            slots = candidates(skip, t)
            p = np.zeros(K)
            p[slots[choosable[slots]]] = softmax(logits[choosable[slots]])
            ent = -sum(q * np.log(q) for q in p if q > 0)
            if skip.name == "sparse":
                powers = np.exp(logits) * (p[slots] > 0)
                rest = np.sort(powers)[::-1][skip.top] if skip.top < len(powers) else 0
                weights = np.zeros(K)
                weights[slots] = np.maximum(powers - rest, 0) / np.maximum(powers - rest, 0).sum()
                k = int(np.argmax(weights)) + 1
                ent = -sum(q * np.log(q) for q in weights if q > 0)
            elif skip.name.endswith("attention"):
                weights, k = p, int(np.argmax(p)) + 1
            else:
                k = int(actions[t]) if actions is not None else int(np.argmax(p)) + 1
                log_p = np.log(p[k - 1])
        if weights is not None:
            h_k = sum(weights[j] * past[-1 - j][0] for j in range(K))
            c_k = sum(weights[j] * past[-1 - j][1] for j in range(K))
        else:
            h_k, c_k = past[-k]
        h = mix * h_k + (1 - mix) * h1
        c = mix * c_k + (1 - mix) * c1
        carried_first = skip.first_step == "carried" and first_call and t == 0
        if carried_first:
            h, c, k, log_p, ent = h1, c1, 1, 0.0, 0.0
        if recurrent_mask is not None:
            h = h * recurrent_mask
        gates = x[t] @ w["wx"] + h @ w["wh"] + w["b"]
        g, i, f, o = (gates[n * HIDDEN : (n + 1) * HIDDEN] for n in range(4))
        c = np.tanh(g) * sigmoid(i) + c * sigmoid(f)
        h = sigmoid(o) * np.tanh(c)
        if carried_first:
            past[-1] = initial
        past.append((h, c))
        rows.append((h, k, log_p, ent))
    return rows


def start(rng, skip, h0=None, c0=None, seed=0):
    h0 = rng.normal(size=(BATCH, HIDDEN)) if h0 is None else h0
    c0 = rng.normal(size=(BATCH, HIDDEN)) if c0 is None else c0
    keys = jax.random.split(jax.random.key(seed), BATCH)
    carry = F.initial_carry(keys, F.Recurrence(skip), F.LSTMState(jax.device_put(h0), jax.device_put(c0)))
    pasts = [[(h0[n], c0[n])] * skip.max_skip for n in range(BATCH)]
    return carry, pasts


def check(outputs, rows_of, lengths, order=lambda rows: rows):
    outputs = jax.tree.map(np.asarray, outputs)
    for n in range(BATCH):
        rows = order(rows_of[n])
        for t in range(TIME):
            got = (
                outputs.h[n, t],
                outputs.decision.action[n, t],
                outputs.decision.log_prob[n, t],
                outputs.decision.entropy[n, t],
            )
            want = rows[t] if t < lengths[n] else (np.zeros(HIDDEN), 0, 0.0, 0.0)
            for a, b in zip(got, want, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def check_carry(carry, pasts, K):
    carry = carry._replace(slots=jax.tree.map(np.asarray, carry.slots))
    for n in range(BATCH):
        for slot in range(K):
            np.testing.assert_allclose(carry.slots.h[n, slot], pasts[n][-1 - slot][0], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(carry.slots.c[n, slot], pasts[n][-1 - slot][1], rtol=1e-10, atol=1e-12)


ALL = list(itertools.product(("fixed", "attention", "dynamic"), (1, 3, 5), (0.0, 0.5, 1.0)))


# The default cases contain each pair of values once.
@pytest.mark.parametrize(
    ("kind", "K", "mix"), and_slow(ALL, lambda kind, K, mix: (len(kind) + K // 2 + int(2 * mix)) % 3 == 0)
)
def test_unroll_equals_the_loop_with_lengths_and_carry_out(kind, K, mix):
    rng = np.random.default_rng(K * 10 + int(4 * mix))
    skip = F.TIME_SKIPS[kind](K, mix)
    w = draw_weights(rng, K)
    x = rng.normal(size=(BATCH, TIME, INPUT))
    lengths = np.array([TIME, 1, 4])
    actions = rng.integers(1, K + 1, size=(BATCH, TIME))
    carry, pasts = start(rng, skip)
    rows = [oracle_sequence(w, skip, mix, x[n, : lengths[n]], pasts[n], actions[n]) for n in range(BATCH)]
    last, outputs = unroll(
        as_params(w, skip.has_agent),
        carry,
        jax.device_put(x),
        F.Recurrence(skip),
        seq_lengths=jax.device_put(lengths),
        actions=jax.device_put(actions),
    )
    check(outputs, rows, lengths)
    check_carry(last, pasts, K)
    np.testing.assert_array_equal(last.step, lengths)


@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["fixed", "attention", "dynamic"]),
    K=st.integers(1, 4),
    mix=st.sampled_from([0.0, 0.3, 1.0]),
    agent_input=st.sampled_from(["previous", "mean"]),
    empty_slots=st.sampled_from(["initial", "masked"]),
    stride=st.integers(1, 3),
    first_step=st.sampled_from(["agent", "carried"]),
    with_mask=st.booleans(),
)
def test_every_option_equals_the_loop_when_greedy(
    seed, kind, K, mix, agent_input, empty_slots, stride, first_step, with_mask
):
    rng = np.random.default_rng(seed)
    options = dict(first_step=first_step, agent_input=agent_input, empty_slots=empty_slots)
    options["among"] = F.Every(stride)
    skip = F.TIME_SKIPS[kind](K, mix, **(options if kind != "fixed" else dict(first_step=first_step)))
    w = draw_weights(rng, getattr(skip, "num_candidates", K))
    x = rng.normal(size=(BATCH, TIME, INPUT))
    lengths = rng.integers(1, TIME + 1, size=BATCH)
    carry, pasts = start(rng, skip)
    recurrent = rng.integers(0, 2, size=(BATCH, HIDDEN)) * 2.0 if with_mask else None
    if with_mask:
        carry = carry._replace(recurrent_mask=jax.device_put(recurrent))
    rows = [
        oracle_sequence(
            w,
            skip,
            mix,
            x[n, : lengths[n]],
            pasts[n],
            recurrent_mask=None if recurrent is None else recurrent[n],
        )
        for n in range(BATCH)
    ]
    last, outputs = unroll(
        as_params(w, skip.has_agent),
        carry,
        jax.device_put(x),
        F.Recurrence(skip),
        seq_lengths=jax.device_put(lengths),
        policy=F.Policy("greedy"),
    )
    check(outputs, rows, lengths)
    check_carry(last, pasts, K)


CANDIDATES = {
    "log": F.Dynamic(5, 0.5, among=F.LogSpaced()),
    "log masked": F.Dynamic(4, 1.0, empty_slots="masked", among=F.LogSpaced()),
    "log attention": F.Attention(5, 0.5, agent_input="mean", among=F.LogSpaced()),
    "log carried": F.Attention(5, 0.5, first_step="carried", among=F.LogSpaced()),
    "far": F.Dynamic(512, 1.0, among=F.LogSpaced()),
    "segments": F.Dynamic(5, 0.5, among=F.Segments(2)),
    "segments masked": F.Dynamic(4, 0.5, among=F.Segments(3), empty_slots="masked"),
    "segments attention": F.Attention(4, 0.5, among=F.Segments(2)),
    "sparse": F.SparseAttention(5, 0.5, top=2, agent="mlp"),
    "sparse segments": F.SparseAttention(5, 1.0, top=2, among=F.Segments(2), agent="mlp"),
    "sparse carried": F.SparseAttention(4, 0.5, top=9, agent="mlp", first_step="carried"),
    "segments carried": F.Attention(4, 0.5, among=F.Segments(2), first_step="carried"),
}


@pytest.mark.parametrize("name", CANDIDATES)
@pytest.mark.parametrize("implementation", and_slow(["fused", "reference"], "fused".__eq__))
def test_candidates_equal_the_loop_when_greedy(name, implementation):
    skip, rng = CANDIDATES[name], np.random.default_rng(6)
    w = draw_weights(rng, skip.num_candidates)
    x, lengths = rng.normal(size=(BATCH, TIME, INPUT)), np.array([TIME, 1, 4])
    carry, pasts = start(rng, skip)
    rows = [oracle_sequence(w, skip, skip.mix, x[n, : lengths[n]], pasts[n]) for n in range(BATCH)]
    settings = dict(seq_lengths=lengths, policy=F.Policy("greedy"), implementation=implementation)
    last, outputs = unroll(as_params(w, True), carry, jax.device_put(x), F.Recurrence(skip), **settings)
    check(outputs, rows, lengths)
    check_carry(last, pasts, skip.max_skip)


def test_a_gradient_reaches_only_the_states_that_sparse_attention_chose():
    recurrence = F.Recurrence(F.SparseAttention(6, 1.0, top=2))
    params, carry, x, _ = problem(recurrence)
    x = x[:, :1]

    def total(slots):
        return jnp.sum(F.unroll(params, carry._replace(slots=slots), x, recurrence)[1].h)

    gradient = jax.jit(jax.grad(total))(carry.slots)
    log_weights = compiled(recurrence.time_skip.log_distribution)(
        params.skip, x[:, 0], carry.step, F.Window.of_slots(carry.slots.h)
    )
    chosen = np.exp(log_weights) > 1e-9
    assert (chosen.sum(axis=1) == 2).all()
    np.testing.assert_array_equal(np.abs(gradient.c).max(axis=-1) > 0, chosen)
    chosen[:, 0] = True  # the query is computed from h(t-1)
    np.testing.assert_array_equal(np.abs(gradient.h).max(axis=-1) > 0, chosen)


def test_ten_candidates_reach_512_steps_back():
    skip = F.Dynamic(512, among=F.LogSpaced())
    assert (skip.candidates(jnp.zeros((), jnp.int32)) + 1).tolist() == [2**j for j in range(10)]
    params = jax.eval_shape(lambda: skip.init(jax.random.key(0), 2, 4, 5, F.Initializers()))
    assert params.w_out.shape == (5, 10)


def test_a_dilated_layer_is_as_many_plain_ones_as_its_distance():
    """Chang et al. (2017), Section 2.1: step t reads the state of step t - s."""
    rng = np.random.default_rng(7)
    params, x = as_params(draw_weights(rng, 1), False), rng.normal(size=(BATCH, 8, INPUT))
    assert [skip.max_skip for skip in F.dilated(10)] == [2**layer for layer in range(10)]
    skip = F.dilated(3)[2]
    dilated = unroll(params, start(rng, skip, *np.zeros((2, BATCH, HIDDEN)))[0], x, F.Recurrence(skip))[1].h
    plain, _ = start(rng, F.Previous(), *np.zeros((2, BATCH, HIDDEN)))
    for first in range(4):
        wanted = unroll(params, plain, x[:, first::4], F.Recurrence())[1].h
        np.testing.assert_allclose(np.asarray(dilated)[:, first::4], wanted, rtol=1e-12)


@pytest.mark.parametrize("name", ["log", "log attention", "segments", "segments carried"])
def test_a_distribution_over_candidates_is_0_elsewhere(name):
    skip, rng = CANDIDATES[name], np.random.default_rng(8)
    params, h = as_params(draw_weights(rng, skip.num_candidates), True), rng.normal(size=(BATCH, HIDDEN))
    steps = np.array([0, 3, 4], np.int32)
    x = rng.normal(size=(BATCH, INPUT))
    weights = np.exp(compiled(skip.log_distribution)(params.skip, x, steps, h))
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
    for row, step in zip(weights, steps, strict=True):
        assert set(np.flatnonzero(row)) == set(candidates(skip, step))


@pytest.mark.parametrize("keep_order", and_slow([True, False], bool))
def test_reverse_starts_at_each_sequences_own_last_step(keep_order):
    rng = np.random.default_rng(1)
    skip = F.Dynamic(3, 0.5)
    w = draw_weights(rng, 3)
    x = rng.normal(size=(BATCH, TIME, INPUT))
    lengths = np.array([TIME, 2, 5])
    actions = rng.integers(1, 4, size=(BATCH, TIME))
    carry, pasts = start(rng, skip)
    rows = [
        oracle_sequence(w, skip, 0.5, x[n, : lengths[n]][::-1], pasts[n], actions[n, : lengths[n]][::-1])
        for n in range(BATCH)
    ]
    last, outputs = unroll(
        as_params(w, True),
        carry,
        jax.device_put(x),
        F.Recurrence(skip),
        seq_lengths=jax.device_put(lengths),
        actions=jax.device_put(actions),
        reverse=True,
        keep_order=keep_order,
    )
    check(outputs, rows, lengths, order=(lambda r: r[::-1]) if keep_order else (lambda r: r))
    check_carry(last, pasts, 3)


@pytest.mark.parametrize("kind", and_slow(["fixed", "attention", "dynamic"], lambda kind: kind == "dynamic"))
def test_two_segments_with_the_carry_passed_on_equal_one_long_pass(kind):
    rng = np.random.default_rng(2)
    skip = F.Fixed(4, 0.5) if kind == "fixed" else F.TIME_SKIPS[kind](4, 0.5, empty_slots="masked")
    params = as_params(draw_weights(rng, 4), skip.has_agent)
    x = rng.normal(size=(BATCH, TIME, INPUT))
    carry, _ = start(rng, skip)
    whole_carry, whole = unroll(params, carry, x, F.Recurrence(skip))
    middle, first = unroll(params, carry, np.asarray(x)[:, :3], F.Recurrence(skip))
    end, second = unroll(params, middle, np.asarray(x)[:, 3:], F.Recurrence(skip))
    joined = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), first, second)
    for a, b in zip(jax.tree.leaves(joined), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(end.slots.h, whole_carry.slots.h, rtol=1e-12)
    np.testing.assert_array_equal(end.step, whole_carry.step)


def test_one_step_equals_the_scans():
    rng = np.random.default_rng(3)
    skip = F.Dynamic(3, 0.5)
    params = as_params(draw_weights(rng, 3), True)
    x = rng.normal(size=(BATCH, TIME, INPUT))
    carry, _ = start(rng, skip)
    recurrence = F.Recurrence(skip)
    _, whole = unroll(params, carry, x, F.Recurrence(skip))
    step = compiled(
        lambda carry, x: F.recurrent_step(params, carry, F.project_inputs(params, x, recurrence), recurrence)
    )
    for t in range(TIME):
        carry, out = step(carry, x[:, t])
        np.testing.assert_allclose(out.h, np.asarray(whole.h)[:, t], rtol=1e-12)
        np.testing.assert_array_equal(out.decision.action, np.asarray(whole.decision.action)[:, t])


def test_policy_mask_of_the_first_skips_equals_a_smaller_k():
    rng = np.random.default_rng(4)
    w = draw_weights(rng, 5)
    x = rng.normal(size=(BATCH, TIME, INPUT))
    large, small = F.Dynamic(5, 1.0), F.Dynamic(3, 1.0)
    h0, c0 = rng.normal(size=(2, BATCH, HIDDEN))
    mask = np.arange(5) < 3
    carry, _ = start(rng, large, h0, c0)
    _, masked = unroll(
        as_params(w, True), carry, x, F.Recurrence(large), policy=F.Policy("greedy", mask=mask)
    )
    sliced = dict(w, a_out=w["a_out"][:, :3], a_bout=w["a_bout"][:3])
    carry, _ = start(rng, small, h0, c0)
    _, direct = unroll(as_params(sliced, True), carry, x, F.Recurrence(small), policy=F.Policy("greedy"))
    for a, b in zip(jax.tree.leaves(masked), jax.tree.leaves(direct), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_mix_given_at_the_call_may_be_traced_and_replaces_the_skips_own():
    rng = np.random.default_rng(5)
    w = draw_weights(rng, 3)
    x = jax.device_put(rng.normal(size=(BATCH, TIME, INPUT)))
    skip = F.Fixed(3, 1.0)
    carry, _ = start(rng, skip)

    def run(mix):
        return F.unroll(as_params(w, False), carry, x, F.Recurrence(skip), policy=F.Policy(mix=mix))[1].h

    swept = jax.jit(jax.vmap(run))(np.array([0.0, 0.25, 1.0]))
    for mix, h in zip((0.0, 0.25, 1.0), swept, strict=True):
        direct = unroll(as_params(w, False), carry, x, F.Recurrence(F.Fixed(3, mix)))[1].h
        np.testing.assert_allclose(h, direct, rtol=1e-12)
