"""Check each transition, time skip and depth skip against the NumPy float64 loops of `oracles`.

A new piece is tested by an entry in the tables of `recurrences`, and its equations in `oracles`.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from compiled import compiled, unroll
from oracles import candidates, loop, sigmoid
from recurrences import (
    BATCH,
    DEPTH_SKIPS,
    HIDDEN,
    LENGTHS,
    OPTIONS,
    TIME,
    TIME_SKIPS,
    TRANSITIONS,
    problem,
)

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.memory import Memory

pytestmark = pytest.mark.usefixtures("double_precision")

# Each skip over a buffer of states has another transition or skip over depth; all of them occur.
# An sLSTM mixes its states in its own way.
AT_DEPTH = {None: None} | F.DEPTH_SKIPS | DEPTH_SKIPS
PIECES = [(F.LSTM(), piece) for piece in dict.fromkeys(AT_DEPTH.values())]
PIECES += [(piece, None) for name, piece in TRANSITIONS.items() if name != "slstm"]
BUFFERED = {
    name: skip for name, skip in (TIME_SKIPS | OPTIONS).items() if type(skip) not in oracles.LOOPS
}
# The layer of each case, and arguments of `check_case`.
CASES = {
    f"{name}, {type(transition).__name__}, {type(depth).__name__}": (
        F.Recurrence(skip, transition, depth),
        {},
    )
    for (name, skip), (transition, depth) in zip(
        BUFFERED.items(), itertools.cycle(PIECES), strict=False
    )
}
for name in ("min-lstm", "min-gru"):
    CASES[f"{name} in parallel"] = (
        F.Recurrence(transition=TRANSITIONS[name]),
        dict(implementation="parallel"),
    )
for name in ("dynamic", "lstm-jump"):
    CASES[f"sampled {name}"] = F.Recurrence(TIME_SKIPS[name]), dict(mode="sample")
for name in ("dynamic", "skim-rnn"):
    CASES[f"soft {name}"] = F.Recurrence(TIME_SKIPS[name]), dict(mode="soft")
# Reverse starts at each sequence's own last step.
options = dict(mode="sample", reverse=True, lengths=(TIME, 2, 5), masked=True)
CASES |= {
    "reversed": (F.Recurrence(TIME_SKIPS["dynamic"]), options),
    "zoneout": (F.Recurrence(TIME_SKIPS["dynamic"]), dict(zoned=True)),
    "slstm": (F.Recurrence(transition=F.SLSTM()), {}),
    "skip rnn": (F.Recurrence(TIME_SKIPS["skip-rnn"]), {}),
    "skip rnn of a gru": (F.Recurrence(F.SkipRNN(), F.GRU()), {}),
    "jumps of one word": (F.Recurrence(F.LSTMJump(max_jump=2, read_steps=1, max_jumps=9)), {}),
    "jumps of five words": (F.Recurrence(F.LSTMJump(max_jump=5, read_steps=3)), {}),
    "skim rnn of two lstms": (F.Recurrence(F.SkimRNN(), F.SkimLSTM(2)), {}),
    "an expected skim": (F.Recurrence(F.SkimRNN(), F.SkimLSTM(2)), dict(mode="soft")),
    "all three": (F.Recurrence(F.Dynamic(3, 0.5), F.FullGateRecurrence(), F.Highway()), {}),
}


def check_case(
    recurrence,
    implementation="fused",
    mode="greedy",
    reverse=False,
    lengths=LENGTHS,
    masked=False,
    zoned=False,
):
    """Compare h, the trace of each choice, and the last carry with those of the loop.

    If `masked`, recurrent dropout masks h, and the policy forbids State(t-2).
    """
    skip = recurrence.time_skip
    params, carry, x, below = problem(recurrence)
    if not skip.writes_all:
        x, lengths = np.concatenate([x, -x, x[:, ::-1]], axis=1), (3 * TIME, 0, 8)
    if isinstance(skip, F.SkipRNN):  # the gate opens seldom
        params = params._replace(skip=params.skip._replace(b=np.array([-1.5])))
    mask = np.random.default_rng(1).integers(0, 2, (BATCH, HIDDEN)) * 2.0 if masked else None
    allowed = np.arange(skip.max_skip) != 1 if masked else None
    policy = F.Policy(mode, temperature=0.7, mask=allowed)
    kept = tuple(np.random.default_rng(2).random((2, *x.shape[:2], HIDDEN))) if zoned else None
    options = dict(seq_lengths=np.array(lengths), policy=policy, reverse=reverse, zoneout_mask=kept)
    start, options["implementation"] = carry._replace(recurrent_mask=mask), implementation
    end, out = unroll(params, start, x, recurrence, below=below, **options)
    trace, replays = jax.tree.map(np.asarray, out.decision), skip.draws(mode, False)
    way = slice(None, None, -1) if reverse else slice(None)
    for n, length in enumerate(lengths):
        slots = jax.tree.map(lambda array, n=n: array[n], carry.slots)
        given = dict(below=None if below is None else np.asarray(below[n, :length][way]))
        given["actions"] = trace.action[n, :length][way] if replays else None
        given |= dict(dropped=mask[n], allowed=allowed) if masked else {}
        given |= dict(earlier=np.asarray(carry.recent_inputs[n])) if skip.observes_inputs else {}
        given |= dict(kept=[rate[n] for rate in kept]) if zoned else {}
        options = dict(mode=mode, temperature=policy.temperature)
        rows, last = loop(
            recurrence, params, np.asarray(x[n, :length][way]), slots, **given, **options
        )
        for t, row in enumerate(rows[way]):
            np.testing.assert_allclose(out.h[n, t], row.h, rtol=1e-10, atol=1e-12)
            assert trace.action[n, t] == row.action
            found = trace.log_prob[n, t], trace.entropy[n, t]
            np.testing.assert_allclose(found, (row.log_prob, row.entropy), rtol=1e-9, atol=1e-12)
            assert row.update is None or np.isclose(trace.update[n, t], row.update, rtol=1e-10)
        assert not any(
            leaf[n, length:].any() for leaf in jax.tree.leaves((np.asarray(out.h), trace))
        )
        for array, expected in zip(end.slots, last, strict=True):
            np.testing.assert_allclose(array[n], expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(end.step, carry.step + np.array(lengths))
    if trace.update is not None:
        inside = np.arange(x.shape[1]) < np.array(lengths)[:, None]
        assert 0 < (trace.update[inside] > 0.5).mean() < 1


@pytest.mark.parametrize("name", CASES)
def test_a_piece_is_its_papers_equations(name):
    recurrence, options = CASES[name]
    check_case(recurrence, **options)


# --- What the loops do not show


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_states_of_an_slstm_mix_without_their_stabilisers(dtype):
    """Regression: the exponent was capped. With a weight of exp(-69) on exp(70) both states
    count.
    """
    h, c, n, m = np.random.default_rng(0).normal(size=(4, BATCH, 3, HIDDEN)).astype(dtype)
    m[0, 1], n = 70, np.maximum(n, 0)
    states = F.SLSTMState(h, c, n, m)
    weights = np.array([[1, 1e-30, 0], [0.2, 0.5, 0.3], [0.4, 0, 0.6]], dtype)
    mixed = compiled(F.SLSTM().average_states)(weights, states)
    close = partial(np.testing.assert_allclose, rtol=1e-4 if dtype is np.float32 else 1e-10)
    share = weights[..., None] * n * np.exp(m.astype(float))
    total = share.sum(axis=1)
    close(mixed.h, (weights[..., None] * h).sum(axis=1))
    close(mixed.n * np.exp(np.asarray(mixed.m, float)), total)
    close(mixed.c * total, (share * c).sum(axis=1), atol=1e-6 if dtype is np.float32 else 1e-12)
    first, second = (jax.tree.map(lambda array, k=k: array[:, k], states) for k in (0, 1))
    pair = jax.tree.map(lambda array: array[:, :2], states)
    wanted = compiled(F.SLSTM().average_states)(np.full((BATCH, 2), (0.3, 0.7), dtype), pair)
    jax.tree.map(
        np.testing.assert_array_equal, compiled(F.SLSTM().mix_states)(0.3, first, second), wanted
    )


def test_gates_of_an_slstm_may_be_huge():
    """Gradients are finite in float32 with exponents of thousands, for empty and for mixed
    states.
    """
    recurrence = F.Recurrence(F.Attention(3, 0.5), F.SLSTM())
    params, carry, x, _ = problem(recurrence, jnp.float32)
    carry = carry._replace(ring=jax.tree.map(jnp.zeros_like, carry.ring))

    def total(params, x):
        return jnp.sum(F.unroll(params, carry, x, recurrence)[1].h)

    for leaf in jax.tree.leaves(
        jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(params, 3000 * x)
    ):
        assert np.isfinite(leaf).all()


def test_the_gradient_of_skip_rnns_gate_is_that_of_the_gate_before_rounding():
    """The rounding passes gradients through, dL/dũ = dL/du, so the cost of updates reaches W_p."""
    recurrence = F.Recurrence(F.SkipRNN())
    params, carry, x, _ = problem(recurrence)

    def cost(gate):
        return (
            F.unroll(params._replace(skip=gate), carry, x, recurrence)[1]
            .decision.update[:, 1]
            .sum()
        )

    gradient = jax.jit(jax.grad(cost))(params.skip)
    c = np.asarray(unroll(params, carry, np.asarray(x)[:, :1], recurrence)[0].slots.c)[:, 0]
    delta = sigmoid(c @ np.asarray(params.skip.w) + np.asarray(params.skip.b))
    slope = delta * (1 - delta)  # ũ(2) = Δũ(1), because u(1) = 1
    np.testing.assert_allclose(gradient.b, [slope.sum()], rtol=1e-9)
    np.testing.assert_allclose(gradient.w, slope @ c, rtol=1e-9)


def test_a_gradient_reaches_only_the_states_that_sparse_attention_chose():
    recurrence = F.Recurrence(F.SparseAttention(6, 1.0, top=2))
    params, carry, x, _ = problem(recurrence)
    carry = carry.with_slots(carry.ring)  # all K states differ
    x = x[:, :1]

    def total(slots):
        return jnp.sum(F.unroll(params, carry.with_slots(slots), x, recurrence)[1].h)

    gradient = jax.jit(jax.grad(total))(carry.slots)
    log_weights = compiled(recurrence.time_skip.log_distribution)(
        params.skip, x[:, 0], carry.step, Memory(np.flip(carry.slots.h, axis=1), 6)
    )
    chosen = np.exp(log_weights) > 1e-9
    assert (chosen.sum(axis=1) == 2).all()
    np.testing.assert_array_equal(np.abs(gradient.c).max(axis=-1) > 0, chosen)
    chosen[:, 0] = True  # the query is computed from h(t-1)
    np.testing.assert_array_equal(np.abs(gradient.h).max(axis=-1) > 0, chosen)


@pytest.mark.parametrize("name", ["log-dynamic", "segments carried"])
def test_a_distribution_over_candidates_is_0_elsewhere(name):
    skip = (TIME_SKIPS | OPTIONS)[name]
    params, carry, x, _ = problem(F.Recurrence(skip))
    steps = np.array([0, 3, 4], np.int32)
    weights = np.exp(compiled(skip.log_distribution)(params.skip, x[:, 0], steps, carry.state.h))
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-12)
    for row, step in zip(weights, steps, strict=True):
        assert set(np.flatnonzero(row)) == set(candidates(skip, step))


@pytest.mark.parametrize("name", ["fixed", "dynamic masked", "followed masked"])
def test_two_segments_with_the_carry_passed_on_equal_one_long_pass(name):
    recurrence = F.Recurrence((TIME_SKIPS | OPTIONS)[name])
    params, carry, x, _ = problem(recurrence)
    x = np.asarray(x)
    whole_end, whole = unroll(params, carry, x, recurrence)
    middle, first = unroll(params, carry, x[:, :3], recurrence)
    end, second = unroll(params, middle, x[:, 3:], recurrence)
    joined = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), first, second)
    close = partial(np.testing.assert_allclose, rtol=1e-12)
    jax.tree.map(close, (joined, end.slots), (whole, whole_end.slots))


def test_mix_given_at_the_call_may_be_traced_and_replaces_the_skips_own():
    params, carry, x, _ = problem(F.Recurrence(F.Fixed(3)))

    def run(mix):
        return F.unroll(params, carry, x, F.Recurrence(F.Fixed(3, 1.0)), policy=F.Policy(mix=mix))[
            1
        ].h

    swept = jax.jit(jax.vmap(run))(np.array([0.0, 0.25, 1.0]))
    for mix, h in zip((0.0, 0.25, 1.0), swept, strict=True):
        direct = unroll(params, carry, x, F.Recurrence(F.Fixed(3, mix)))[1].h
        np.testing.assert_allclose(h, direct, rtol=1e-12)


# --- Names and options


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: F.GRU("never"), "'before' or 'after'"),
        (
            lambda: F.SkimLSTM(9).init(jax.random.key(0), 2, 4, F.Initializers()),
            "at most 4, the layer's",
        ),
        (lambda: F.Random(3, rates=(1.0,)), "takes 3 rates, got 1"),
        (lambda: F.ToOutput(mapping="tanh"), "unknown mapping 'tanh'"),
        (lambda: F.ToOutput().check_below(6, 4), "size 6 .*linear"),
        (lambda: F.parse_transition("tree"), "unknown transition 'tree': choose one of .*gru"),
        (lambda: F.parse_time_skip("log_dynamic:8", stride=2), "leave out the stride"),
        (lambda: F.parse_time_skip("dynamic"), "'dynamic'"),
        (lambda: F.parse_time_skip("dynamic:0"), "'dynamic:0'"),
        (
            lambda: F.Dynamic(5, agent_input="all"),
            "unknown agent_input 'all': choose one of previous, mean",
        ),
    ],
)
def test_choices_that_make_no_sense_are_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_pieces_are_read_by_name():
    assert F.parse_transition("rhn:5") == F.RecurrentHighway(5)
    assert {type(F.parse_transition(name)) for name in F.TRANSITIONS} == set(F.TRANSITIONS.values())
    assert F.parse_depth_skip("gated_output") == F.ToOutput(gated=True)
    parse, by_content = F.parse_time_skip, dict(agent="content")
    for plain in ("previous", "lstm"):
        assert parse(plain, mix=0.5, agent_input="mean") == F.Previous()
    assert parse("fixed:3", mix=0.5) == F.Fixed(3, 0.5)
    assert parse("attention:4", **by_content) == F.Attention(4)
    assert parse("content:4", agent_input="mean") == F.Attention(
        4, agent_input="mean", **by_content
    )
    assert parse("dynamic:10", **by_content, stride=2) == F.Dynamic(
        10, among=F.Every(2), **by_content
    )
    assert parse("log_dynamic:512", mix=0.5) == F.Dynamic(512, 0.5, among=F.LogSpaced())
    assert parse("segment_attention:40", stride=4) == F.Attention(
        40, among=F.Segments(4), **by_content
    )
    assert parse("sparse:9", stride=3, top=2) == F.SparseAttention(9, among=F.Segments(3), top=2)
    assert parse("skip_rnn", mix=0.5) == F.SkipRNN()
    assert parse("lstm_jump", max_jump=3) == F.LSTMJump(max_jump=3)


@pytest.mark.usefixtures("as_users")
@pytest.mark.parametrize("number", [jnp.float32, np.float64, np.array])
def test_arrays_in_a_skip_become_numbers_so_that_it_is_hashable(number):
    skip = F.Dynamic(np.int64(2), mix=number(0.5))
    assert skip == F.Dynamic(2, mix=0.5) and hash(skip) == hash(F.Dynamic(2, mix=0.5))
    assert type(skip.mix) is float and type(skip.max_skip) is int
    assert (
        F.Random(2, rates=[1, 2])
        == F.Random(2, rates=np.array([1, 2]))
        == F.Random(2, rates=(1, 2))
    )
    assert hash(F.Random(2, rates=[1, 2]))
