"""Check transitions and skips over time and depth against NumPy float64 loops written from their papers."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled, unroll
from marks import and_slow
from recurrences import BATCH, HIDDEN, LENGTHS, TIME, TRANSITIONS, problem

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(tree):
    return jax.tree.map(np.asarray, tree)


# One step of each transition for one sequence: (transition, params, x, state) -> state. States are tuples
# that begin with h.


def lstm(t, p, x, state):
    h, c = state
    parts = np.split(x @ p.w_x + h @ p.w_h + p.b, 4 if t.output_gate else 3)
    c = np.tanh(parts[0]) * sigmoid(parts[1]) + c * sigmoid(parts[2])
    return (sigmoid(parts[3]) if t.output_gate else 1) * np.tanh(c), c


def peephole(t, p, x, state, r=(0, 0, 0)):
    h, c = state
    g, i, f, o = np.split(x @ p.w_x + h @ p.w_h + p.b, 4)
    i, f = sigmoid(i + p.p_i * c + r[0]), sigmoid(f + p.p_f * c + r[1])
    c = i * np.tanh(g) + f * c
    o = sigmoid(o + p.p_o * c + r[2])
    return o * np.tanh(c), c, i, f, o


def full_gate(t, p, x, state):
    h, c, *before = state
    # R[b][a] maps gate b of the previous step to gate a of this step.
    R = [np.split(rows, 3, axis=1) for rows in np.split(p.r, 3)]
    r = [sum(gate @ R[b][a] for b, gate in enumerate(before)) for a in range(3)]
    return peephole(t, p, x, (h, c), r)


def plstm(t, p, x, state):
    h, c = state
    g, i, f, *o = np.split(x @ p.w_x + h @ p.w_h + p.b, 4 if t.output_gate else 3)
    c = sigmoid(i) * np.tanh(g + p.p_g * c) + sigmoid(f) * c
    return (sigmoid(o[0]) if o else 1) * np.tanh(c), c


def ulstm(t, p, x, state):
    h, c = state
    i, f, z, *o = map(sigmoid, np.split(x @ p.w_x + h @ p.w_h + p.b, 4 if t.output_gate else 3))
    n = np.tanh(x @ p.w_xn + (z * np.tanh(c)) @ p.w_n + p.b_n)
    c = i * n + f * c
    return (o[0] if o else 1) * np.tanh(c), c


def gru(t, p, x, state):
    (h,) = state
    r, z = map(sigmoid, np.split(x @ p.w_x + h @ p.w_h + p.b, 2))
    inside = (r * h) @ p.w_n if t.reset == "before" else r * (h @ p.w_n + p.b_hn)
    return ((1 - z) * np.tanh(x @ p.w_xn + p.b_n + inside) + z * h,)


def rhn(t, p, x, state):
    (s,) = state
    for layer in range(t.depth):
        h, gate = np.split((x @ p.w_x if layer == 0 else 0) + s @ p.r[layer] + p.b[layer], 2)
        s = np.tanh(h) * sigmoid(gate) + s * (1 - sigmoid(gate))
    return (s,)


def min_lstm(t, p, x, state):
    f, i, n = np.split(x @ p.w_x + p.b, 3)
    f, i = sigmoid(f), sigmoid(i)
    return ((f * state[0] + i * n) / (f + i),)


def min_gru(t, p, x, state):
    z, n = np.split(x @ p.w_x + p.b, 2)
    return ((1 - sigmoid(z)) * state[0] + sigmoid(z) * n,)


def ind_rnn(t, p, x, state):
    return (np.maximum(x @ p.w_x + p.u * state[0] + p.b, 0),)


def skim_lstm(t, p, x, state):
    return lstm(F.LSTM(), p, x, state)


def skimmed(p, x, state):
    """Compute a step of Skim-RNN's small LSTM, which writes the first units and keeps the others."""
    h, c = state
    g, i, f, o = np.split(x @ p.w_xs + h @ p.w_hs + p.b_s, 4)
    small = len(g)
    new = np.tanh(g) * sigmoid(i) + c[:small] * sigmoid(f)
    return np.concatenate([sigmoid(o) * np.tanh(new), h[small:]]), np.concatenate([new, c[small:]])


def slstm(t, p, x, state):
    """Compute Eq. 8-14 of xLSTM without the stabiliser; only the returned n is divided by exp(m)."""
    h, c, n, m = state
    n = np.maximum(n, 0) * np.exp(m)
    g, i, f, o = np.split(x @ p.w_x + h @ p.w_h + p.b, 4)
    log_f = np.log(sigmoid(f))
    m = np.where(n > 0, np.maximum(log_f + m, i), i)
    c = np.exp(log_f) * (c * n) + np.exp(i) * np.tanh(g)
    n = np.exp(log_f) * n + np.exp(i)
    return sigmoid(o) * c / n, c / n, n * np.exp(-m), m


STEPS = dict(lstm=lstm, peephole=peephole, full_gate=full_gate, plstm=plstm, ulstm=ulstm, gru=gru, rhn=rhn)
STEPS |= dict(peephole=lambda *given: peephole(*given)[:2])
STEPS |= dict(slstm=slstm, min_lstm=min_lstm, min_gru=min_gru, ind_rnn=ind_rnn, skim_lstm=skim_lstm)


MORE = TRANSITIONS


def start_of(carry, n):
    return tuple(np.asarray(slots[n, 0]) for slots in carry.slots)


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        *and_slow(itertools.product(MORE, ["fused", "reference"]), lambda _, how: how == "fused"),
        *itertools.product(["min-lstm", "min-gru"], ["parallel"]),
    ],
)
def test_a_transition_is_its_papers_equations(name, implementation):
    transition = MORE[name]
    recurrence = F.Recurrence(transition=transition)
    params, carry, x, _ = problem(recurrence)
    lengths = np.array(LENGTHS)
    end, out = unroll(params, carry, x, recurrence, seq_lengths=lengths, implementation=implementation)
    p, step = arrays(params.transition), STEPS[transition.name]
    for n in range(BATCH):
        state = start_of(carry, n)
        for t in range(TIME):
            if t < LENGTHS[n]:
                state = step(transition, p, np.asarray(x[n, t]), state)
            expected = state[0] if t < LENGTHS[n] else np.zeros(HIDDEN)
            np.testing.assert_allclose(out.h[n, t], expected, rtol=1e-11, atol=1e-13)
        for slots, array in zip(end.slots, state, strict=True):
            np.testing.assert_allclose(slots[n, 0], array, rtol=1e-11, atol=1e-13)


def test_states_of_an_slstm_mix_without_their_stabilisers():
    rng = np.random.default_rng(0)
    h, c, n, m = rng.normal(size=(4, BATCH, 3, HIDDEN))
    n = np.maximum(n, 0)
    states, weights = F.SLSTM.state(h, c, n, m), np.array([[0.2, 0.5, 0.3], [0, 1, 0], [0.4, 0, 0.6]])
    mixed = compiled(F.SLSTM().average_states)(weights, states)
    share = weights[..., None] * n * np.exp(m)
    total = share.sum(axis=1)
    np.testing.assert_allclose(mixed.h, (weights[..., None] * h).sum(axis=1), rtol=1e-12)
    np.testing.assert_allclose(mixed.n * np.exp(mixed.m), total, rtol=1e-12)
    np.testing.assert_allclose(mixed.c * total, (share * c).sum(axis=1), rtol=1e-10, atol=1e-12)
    first, second = (jax.tree.map(lambda array, k=k: array[:, k], states) for k in (0, 1))
    both = compiled(F.SLSTM().mix_states)(0.3, first, second)
    pair = jax.tree.map(lambda array: array[:, :2], states)
    wanted = compiled(F.SLSTM().average_states)(np.full((BATCH, 2), (0.3, 0.7)), pair)
    for a, b in zip(both, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_gates_of_an_slstm_may_be_huge():
    """Gradients are finite in float32 with exponents of thousands, for empty and for mixed states."""
    recurrence = F.Recurrence(F.Attention(3, 0.5), F.SLSTM())
    params, carry, x, _ = problem(recurrence, jnp.float32)
    carry = carry._replace(slots=jax.tree.map(jnp.zeros_like, carry.slots))

    def total(params, x):
        return jnp.sum(F.unroll(params, carry, x, recurrence)[1].h)

    gradient = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))
    for leaf in jax.tree.leaves(gradient(params, 3000 * x)):
        assert np.isfinite(leaf).all()


def skip_rnn_loop(skip, params, x, state, transition):
    """Run Campos et al. (2018), Eq. 1-5, on one sequence with ũ(1) = 1; return h and u of each step."""
    p, gate = arrays(params.transition), arrays(params.skip)
    cell_state = transition.state._fields.index(transition.cell_state)
    pending, rows = 1.0, []
    for row in np.asarray(x):
        u = round(pending)
        if u:
            state = STEPS[transition.name](transition, p, row, state)
        delta = sigmoid(gate.w @ state[cell_state] + gate.b[0])
        pending = u * delta + (1 - u) * (pending + min(delta, 1 - pending))
        rows.append((state[0], u))
    return rows


@pytest.mark.parametrize(
    ("transition", "implementation"),
    and_slow(
        itertools.product([F.LSTM(), F.GRU()], ["fused", "reference"]),
        lambda transition, implementation: isinstance(transition, F.LSTM) == (implementation == "fused"),
    ),
    ids=str,
)
def test_skip_rnn_is_its_papers_equations(transition, implementation):
    # This bias makes the gate open seldom.
    recurrence = F.Recurrence(F.SkipRNN(update_bias=-1.5), transition)
    params, carry, x, _ = problem(recurrence)
    params = params._replace(skip=params.skip._replace(b=np.array([-1.5])))
    x = np.concatenate([x, -x, x[:, ::-1]], axis=1)
    out = arrays(unroll(params, carry, x, recurrence, implementation=implementation)[1])
    reads = []
    for n in range(BATCH):
        rows = skip_rnn_loop(recurrence.time_skip, params, x[n], start_of(carry, n), transition)
        for t, (h, u) in enumerate(rows):
            np.testing.assert_allclose(out.h[n, t], h, rtol=1e-11, atol=1e-13)
            assert out.decision.update[n, t] == u
            reads.append(u)
    assert 0.1 < np.mean(reads) < 0.9
    assert np.all(out.decision.update[:, 0] == 1)


def test_the_gradient_of_skip_rnns_gate_is_that_of_the_gate_before_rounding():
    """The rounding passes gradients through, dL/dũ = dL/du, so the cost of updates reaches W_p."""
    recurrence = F.Recurrence(F.SkipRNN())
    params, carry, x, _ = problem(recurrence)

    def cost(gate):
        return F.unroll(params._replace(skip=gate), carry, x, recurrence)[1].decision.update[:, 1].sum()

    gradient = jax.jit(jax.grad(cost))(params.skip)
    c = np.asarray(unroll(params, carry, np.asarray(x)[:, :1], recurrence)[0].slots.c)[:, 0]
    delta = sigmoid(c @ np.asarray(params.skip.w) + np.asarray(params.skip.b))
    slope = delta * (1 - delta)  # ũ(2) = Δũ(1), because u(1) = 1
    np.testing.assert_allclose(gradient.b, [slope.sum()], rtol=1e-9)
    np.testing.assert_allclose(gradient.w, slope @ c, rtol=1e-9)


@pytest.mark.parametrize("mode", ["greedy", "soft"])
def test_skim_rnn_is_its_papers_equations(mode):
    recurrence = F.Recurrence(F.SkimRNN(), F.SkimLSTM(2))
    params, carry, x, _ = problem(recurrence)
    x = np.concatenate([x, -x, x[:, ::-1]], axis=1)
    out = arrays(unroll(params, carry, x, recurrence, policy=F.Policy(mode, temperature=0.7))[1])
    p, gate = arrays(params.transition), arrays(params.skip)
    for n in range(BATCH):
        state = start_of(carry, n)
        for t, row in enumerate(x[n]):
            alpha = np.exp(state[0] @ gate.w_h + row @ gate.w_x + gate.b)
            read = float(alpha[0] > alpha[1])
            if mode == "soft":
                read = alpha[0] ** (1 / 0.7) / (alpha ** (1 / 0.7)).sum()
            pairs = zip(skim_lstm(None, p, row, state), skimmed(p, row, state), strict=True)
            state = tuple(read * a + (1 - read) * b for a, b in pairs)
            np.testing.assert_allclose(out.h[n, t], state[0], rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(out.decision.update[n, t], read, rtol=1e-10)
            assert out.decision.action[n, t] == (1 if read > 0.5 else 2)
    assert 0.1 < (out.decision.action == 1).mean() < 0.9


def jump_loop(skip, params, x, state, actions=None):
    """Run Yu et al. (2017), Section 2.1, on one sequence; choose jumps greedily or take them from `actions`.

    Args:
        skip: LSTM-Jump with the limits of reading and jumping.
        params: Weights of the layer.
        x: Inputs, (time, features).
        state: Initial (h, c).
        actions: κ + 1 at each step where a jump is chosen, (time,); None chooses the most likely κ.

    Returns:
        h, whether the word was read, and κ + 1 (0 where no jump was chosen), of each step.
    """
    p, softmax = arrays(params.transition), arrays(params.skip)
    rows = [(state[0], 0, 0)] * len(x)
    position, jumps = 0, 0
    while position < len(x):
        for t in range(position, min(position + skip.read_steps, len(x))):
            state = lstm(F.LSTM(), p, np.asarray(x[t]), state)
            rows[t] = (state[0], 1, rows[t][2])
        last, after = t, t + 1
        if after >= len(x) or jumps == skip.max_jumps:
            break
        logits = state[0] @ softmax.w + softmax.b
        kappa = int(np.argmax(logits)) if actions is None else int(actions[after]) - 1
        jumps += 1
        rows[after] = (state[0], 0, kappa + 1)
        if kappa == 0:
            break
        position = last + kappa
    # The state does not change where nothing is read.
    h, filled = rows[0][0], []
    for row in rows:
        h = row[0] if row[1] else h
        filled.append((h, *row[1:]))
    return filled


@pytest.mark.parametrize(
    ("max_jump", "read_steps", "max_jumps", "greedy", "implementation"),
    and_slow(
        [
            (*sizes, *how)
            for sizes in ((3, 2, 2), (2, 1, 9), (5, 3, 4))
            for how in itertools.product((True, False), ("fused", "reference"))
        ],
        lambda *case: (
            case[::3] in ((3, True), (2, False), (5, False)) and case[3] == (case[4] == "reference")
        ),
    ),
)
def test_lstm_jump_is_its_papers_procedure(max_jump, read_steps, max_jumps, greedy, implementation):
    recurrence = F.Recurrence(F.LSTMJump(max_jump=max_jump, read_steps=read_steps, max_jumps=max_jumps))
    params, carry, x, _ = problem(recurrence)
    x = np.concatenate([x, -x, x[:, ::-1]], axis=1)
    mode = "greedy" if greedy else "sample"
    _, out = unroll(params, carry, x, recurrence, policy=F.Policy(mode), implementation=implementation)
    actions = None if greedy else np.asarray(out.decision.action)
    for n in range(BATCH):
        given = None if actions is None else actions[n]
        rows = jump_loop(recurrence.time_skip, params, x[n], start_of(carry, n), given)
        for t, (h, read, action) in enumerate(rows):
            np.testing.assert_allclose(out.h[n, t], h, rtol=1e-11, atol=1e-13)
            assert (out.decision.update[n, t], out.decision.action[n, t]) == (read, action), (n, t)
    softmax = arrays(params.skip)
    logits = (
        np.concatenate([np.zeros((BATCH, 1, HIDDEN)), np.asarray(out.h)[:, :-1]], axis=1) @ softmax.w
        + softmax.b
    )
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    drawn = np.asarray(out.decision.action) > 0
    kappa = np.maximum(np.asarray(out.decision.action) - 1, 0)
    expected = np.where(drawn, np.take_along_axis(log_probs, kappa[..., None], -1)[..., 0], 0)
    np.testing.assert_allclose(out.decision.log_prob, expected, rtol=1e-10, atol=1e-12)
    assert drawn.any() and (np.asarray(out.decision.update) == 0).any()


@pytest.mark.parametrize(
    ("skip", "mode", "transition"),
    and_slow(
        [
            *itertools.product(
                (F.SkipRNN(), F.LSTMJump(max_jump=3, read_steps=2, max_jumps=2)),
                ("greedy", "sample"),
                (F.GRU(),),
            ),
            (F.SkimRNN(), "greedy", F.SkimLSTM(2)),
            (F.SkipRNN(), "greedy", F.SkimLSTM(2)),
        ],
        lambda skip, mode, transition: (mode == "greedy") != isinstance(skip, F.LSTMJump),
    ),
    ids=str,
)
def test_skipping_the_work_gives_what_the_unroll_gives(skip, mode, transition):
    recurrence = F.Recurrence(skip, transition)
    params, carry, x, _ = problem(recurrence)
    x = np.concatenate([x, -x, x[:, ::-1]], axis=1)
    if skip.name == "skip_rnn":
        params = params._replace(skip=params.skip._replace(b=np.array([-1.5])))
    drops = np.random.default_rng(0).integers(0, 3, (x.shape[0], HIDDEN)) * 1.0
    for lengths, mask in ((np.array((21, 0, 8)), None), (None, drops)):
        carry = carry._replace(recurrent_mask=mask)
        end, out = unroll(params, carry, x, recurrence, seq_lengths=lengths, policy=F.Policy(mode))
        skipped_end, reading = compiled(F.skim)(
            params, carry, x, recurrence, seq_lengths=lengths, policy=F.Policy(mode)
        )
        np.testing.assert_allclose(reading.h, out.h, rtol=1e-12)
        np.testing.assert_array_equal(reading.read, out.decision.update == 1)
        assert 0 < np.asarray(reading.read).sum() < reading.read.size
        for a, b in zip(
            jax.tree.leaves(skipped_end._replace(key=())), jax.tree.leaves(end._replace(key=())), strict=True
        ):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    _, reading = compiled(F.skim)(params, carry, x[:, :0], recurrence)
    assert reading.h.shape == (x.shape[0], 0, HIDDEN) and reading.read.shape == (x.shape[0], 0)


@pytest.mark.parametrize(
    ("skip", "mode", "message"),
    [
        (F.SkimRNN(), "sample", "in the mode 'sample' SkimRNN reads fractions .* choose Policy..greedy"),
        (F.SkimRNN(), "soft", "in the mode 'soft' SkimRNN reads fractions"),
        (F.SkimRNN(), "reinmax", "the carry has no keys"),
        (F.LSTMJump(), "sample", "the carry has no keys"),
    ],
)
def test_skim_refuses_fractions_and_samples_without_keys(skip, mode, message):
    recurrence = F.Recurrence(skip)
    params, carry, x, _ = problem(recurrence, jnp.float32)
    with pytest.raises(UserError, match=message):
        F.skim(params, carry._replace(key=None), x, recurrence, policy=F.Policy(mode))


def test_the_large_step_is_left_out_where_a_token_is_skimmed():
    steps = []

    class Counted(F.SkimLSTM):
        def step(self, *arguments):
            jax.debug.callback(lambda: steps.append(1))
            return super().step(*arguments)

    recurrence = F.Recurrence(F.SkimRNN(), Counted(2))
    params, carry, x, _ = problem(recurrence)
    one = jax.tree.map(lambda leaf: leaf[:1], carry)
    _, reading = compiled(F.skim)(params, one, x[:1], recurrence, policy=F.Policy("greedy"))
    jax.effects_barrier()
    assert 0 < len(steps) == np.asarray(reading.read).sum() < TIME


def test_work_is_skipped_where_nothing_is_read():
    """The transition runs as many times as the row with the most words read requires."""
    steps = []

    class Counted(F.GRU):
        def step(self, *arguments):
            jax.debug.callback(lambda: steps.append(1))
            return super().step(*arguments)

    recurrence = F.Recurrence(F.LSTMJump(max_jump=3, read_steps=2, max_jumps=1), Counted())
    params, carry, x, _ = problem(recurrence)
    _, reading = compiled(F.skim)(params, carry, x, recurrence)
    jax.effects_barrier()
    assert len(steps) == np.asarray(reading.read).sum(axis=1).max() < TIME
    with pytest.raises(UserError, match="leaves words out"):
        F.skim(params, carry, x, F.Recurrence(F.Dynamic(3)))


@pytest.mark.slow
def test_limits_of_the_choices_are_each_other():
    """With λ = 0, K = 1, closed gates or zeros from below, a skip equals the plain transition."""
    for transition in (F.LSTM(), F.GRU(), F.FullGateRecurrence()):
        plain = F.Recurrence(transition=transition)
        params, carry, x, below = problem(F.Recurrence(F.Previous(), transition, F.ToOutput(gated=True)))
        wanted = unroll(params._replace(depth=None), carry, x, plain)[1].h
        # This bias closes the gate.
        closed = params.depth._replace(b_g=jnp.full(HIDDEN, -1e9))
        for depth_skip in (F.ToOutput(gated=True), F.ToInternal(gated=True)):
            recurrence = F.Recurrence(F.Previous(), transition, depth_skip)
            h = unroll(params._replace(depth=closed), carry, x, recurrence, below=below)[1].h
            np.testing.assert_allclose(h, wanted, rtol=1e-12)
        for depth_skip in (F.ToGates(), F.ToInternal(), F.ToOutput()):
            recurrence = F.Recurrence(F.Previous(), transition, depth_skip)
            own = recurrence.init(jax.random.key(0), x.shape[-1], HIDDEN)
            h = unroll(own._replace(transition=params.transition), carry, x, recurrence, below=0 * below)[1].h
            np.testing.assert_allclose(h, wanted, rtol=1e-12)
        for skip in (F.Dynamic(1), F.Attention(1, 0.3), F.Fixed(1), F.Attention(1, agent="content")):
            recurrence = F.Recurrence(skip, transition)
            own = problem(recurrence)[0]._replace(transition=params.transition)
            np.testing.assert_allclose(unroll(own, carry, x, recurrence)[1].h, wanted, rtol=1e-12)
        for skip in (F.Dynamic(3, 0.0), F.Attention(3, 0.0), F.Fixed(3, 0.0)):
            recurrence = F.Recurrence(skip, transition)
            own, slots, _, _ = problem(recurrence)
            slots = slots._replace(slots=jax.tree.map(lambda s: jnp.repeat(s, 3, 1), carry.slots))
            own = own._replace(transition=params.transition)
            np.testing.assert_allclose(unroll(own, slots, x, recurrence)[1].h, wanted, rtol=1e-12)


def depth_loop(depth_skip, params, x, below, state):
    """Run an LSTM with a depth skip of Wu et al. (2016), Eq. 32-50, or of the highway LSTM."""
    p, d = arrays(params.transition), arrays(params.depth)
    rows = []
    for row, under in zip(np.asarray(x), np.asarray(below), strict=True):
        h, c = state
        gates = row @ p.w_x + h @ p.w_h + p.b
        mapped = under
        if getattr(depth_skip, "mapping", "") == "sigmoid":
            mapped = sigmoid(under)
        if getattr(depth_skip, "mapping", "") == "linear" and depth_skip.enters != "gates":
            mapped = under @ d.w_m
        if getattr(depth_skip, "gated", False):
            seen = row if depth_skip.gate_sees == "input" else under
            mapped = sigmoid(seen @ d.w_gx + h @ d.w_gh + d.b_g) * mapped
        if isinstance(depth_skip, F.AttentionToOutput):
            layers = np.split(under, 2)
            scores = np.array([h @ d.w / np.sqrt(np.mean(h**2) + 1e-6) for h in layers])
            weights = np.exp(scores) / np.exp(scores).sum()
            mapped = weights[0] * layers[0] + weights[1] * layers[1]
        if depth_skip.enters == "gates":
            gates = gates + (under @ d.w[0] if depth_skip.mapping == "linear" else np.tile(mapped, 4))
        g, i, f, o = np.split(gates, 4)
        before, c = c, np.tanh(g) * sigmoid(i) + c * sigmoid(f)
        if isinstance(depth_skip, F.ToInternal):
            c = c + mapped
        if isinstance(depth_skip, F.Highway):
            c = c + sigmoid(row @ d.w_x + d.w_c * before + d.w_l * under + d.b) * under
        h = sigmoid(o) * np.tanh(c)
        if depth_skip.enters == "output":
            h = h + mapped
        state = (h, c)
        rows.append(h)
    return rows


MAPPINGS = ("identity", "linear", "sigmoid")
UNMAPPED = ("highway", "dense", "attention")


@pytest.mark.parametrize(
    ("name", "mapping"),
    and_slow(
        [
            (name, mapping)
            for name, mapping in itertools.product(F.DEPTH_SKIPS, MAPPINGS)
            if name not in UNMAPPED or mapping == "identity"
        ],
        lambda name, mapping: name in UNMAPPED or MAPPINGS[list(F.DEPTH_SKIPS).index(name) % 3] == mapping,
    ),
)
def test_a_skip_over_depth_is_its_papers_equations(name, mapping):
    kind = F.DEPTH_SKIPS[name]
    options = [{}] if name in UNMAPPED else [{"mapping": mapping}]
    if "gated" in name:
        options += [{"mapping": mapping, "gate_sees": "below"}]
    for option in options:
        recurrence = F.Recurrence(depth_skip=dataclasses.replace(kind, **option))
        params, carry, x, below = problem(recurrence)
        if option.get("gate_sees") == "below":
            assert params.depth.w_gx.shape == (HIDDEN, HIDDEN)
        out = unroll(params, carry, x, recurrence, below=below)[1]
        for n in range(BATCH):
            rows = depth_loop(recurrence.depth_skip, params, x[n], below[n], start_of(carry, n))
            np.testing.assert_allclose(out.h[n], rows, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: F.GRU("never"), "'before' or 'after'"),
        (lambda: F.RecurrentHighway(0), "depth of at least 1"),
        (lambda: F.SkipRNN(max_skip=3), "leave out max_skip"),
        (lambda: F.SkimRNN(mix=0.5), "leave out max_skip"),
        (lambda: F.SkimLSTM(0), "small size of at least 1"),
        (lambda: F.LSTMJump(max_jump=0), "max_jump of at least 1"),
        (lambda: F.LSTMJump(mix=0.5), "leave out max_skip"),
        (lambda: F.ToOutput(mapping="tanh"), "unknown mapping 'tanh'"),
        (lambda: F.ToOutput(gated=True, gate_sees="above"), "unknown gate_sees 'above'"),
        (lambda: F.DenseToGates(mapping="identity"), "unknown mapping 'identity'"),
        (
            lambda: F.AttentionToOutput().init(jax.random.key(0), 2, 10, 4, (), F.Initializers()),
            "layers of one size, 4, got 10",
        ),
        (lambda: F.parse_transition("lstm:3"), "unknown transition 'lstm:3'"),
        (lambda: F.parse_transition("tree"), "unknown transition 'tree': choose one of .*gru"),
        (lambda: F.parse_depth_skip("sideways"), "unknown skip over depth 'sideways'"),
        (
            lambda: jax.eval_shape(
                lambda: F.Recurrence(depth_skip=F.ToOutput()).init(jax.random.key(0), 2, 4, below=6)
            ),
            "size 6 .*linear",
        ),
    ],
)
def test_choices_that_make_no_sense_are_refused_in_one_line(make, message):
    with pytest.raises(UserError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_transitions_are_read_by_name():
    assert F.parse_transition("rhn:5") == F.RecurrentHighway(5)
    assert F.parse_transition("skim_lstm:3") == F.SkimLSTM(3)
    assert {type(F.parse_transition(name)) for name in F.TRANSITIONS} == set(F.TRANSITIONS.values())
    assert F.parse_depth_skip("gated_output") == F.ToOutput(gated=True)
