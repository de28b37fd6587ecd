"""NumPy float64 loops written from the papers: each transition, time skip and depth skip."""

from typing import NamedTuple

import jax
import numpy as np

from dynskip_jax import functional as F


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def entropy(p):
    return -sum(q * np.log(q) for q in p if q > 0)


# --- Transitions: (transition, params, x, state, cell) -> state, where `cell` may add to the cell
# state. States are tuples that begin with h.


def lstm(t, p, x, state, cell):
    h, c = state
    g, i, f, *o = np.split(x @ p.w_x + h @ p.w_h + p.b, 4 if t.output_gate else 3)
    c = cell(np.tanh(g) * sigmoid(i) + c * sigmoid(f))
    return (sigmoid(o[0]) if o else 1) * np.tanh(c), c


def peephole(t, p, x, state, cell, r=(0, 0, 0)):
    h, c = state
    g, i, f, o = np.split(x @ p.w_x + h @ p.w_h + p.b, 4)
    i, f = sigmoid(i + p.p_i * c + r[0]), sigmoid(f + p.p_f * c + r[1])
    c = cell(i * np.tanh(g) + f * c)
    o = sigmoid(o + p.p_o * c + r[2])
    return o * np.tanh(c), c, i, f, o


def full_gate(t, p, x, state, cell):
    h, c, *before = state
    # R[b][a] maps gate b of the previous step to gate a of this step.
    R = [np.split(rows, 3, axis=1) for rows in np.split(p.r, 3)]
    r = [sum(gate @ R[b][a] for b, gate in enumerate(before)) for a in range(3)]
    return peephole(t, p, x, (h, c), cell, r)


def plstm(t, p, x, state, cell):
    h, c = state
    g, i, f, *o = np.split(x @ p.w_x + h @ p.w_h + p.b, 4 if t.output_gate else 3)
    c = cell(sigmoid(i) * np.tanh(g + p.p_g * c) + sigmoid(f) * c)
    return (sigmoid(o[0]) if o else 1) * np.tanh(c), c


def ulstm(t, p, x, state, cell):
    h, c = state
    i, f, z, *o = map(sigmoid, np.split(x @ p.w_x + h @ p.w_h + p.b, 4 if t.output_gate else 3))
    n = np.tanh(x @ p.w_xn + (z * np.tanh(c)) @ p.w_n + p.b_n)
    c = cell(i * n + f * c)
    return (o[0] if o else 1) * np.tanh(c), c


def gru(t, p, x, state, cell):
    (h,) = state
    r, z = map(sigmoid, np.split(x @ p.w_x + h @ p.w_h + p.b, 2))
    inside = (r * h) @ p.w_n if t.reset == "before" else r * (h @ p.w_n + p.b_hn)
    return (cell((1 - z) * np.tanh(x @ p.w_xn + p.b_n + inside) + z * h),)


def rhn(t, p, x, state, cell):
    (s,) = state
    for layer in range(t.depth):
        h, gate = np.split((x @ p.w_x if layer == 0 else 0) + s @ p.r[layer] + p.b[layer], 2)
        s = np.tanh(h) * sigmoid(gate) + s * (1 - sigmoid(gate))
    return (cell(s),)


def min_lstm(t, p, x, state, cell):
    f, i, n = np.split(x @ p.w_x + p.b, 3)
    f, i = sigmoid(f), sigmoid(i)
    return (cell((f * state[0] + i * n) / (f + i)),)


def min_gru(t, p, x, state, cell):
    z, n = np.split(x @ p.w_x + p.b, 2)
    return (cell((1 - sigmoid(z)) * state[0] + sigmoid(z) * n),)


def ind_rnn(t, p, x, state, cell):
    return (cell(np.maximum(x @ p.w_x + p.u * state[0] + p.b, 0)),)


def skimmed(p, x, state):
    """Compute a step of Skim-RNN's small LSTM, which writes the first units and keeps the
    others.
    """
    small = len(p.b_s) // 4
    weights = F.LSTMParams(p.w_xs, p.w_hs, p.b_s)
    new = lstm(F.LSTM(), weights, x, (state[0], state[1][:small]), lambda c: c)
    return tuple(np.concatenate([a, b[small:]]) for a, b in zip(new, state, strict=True))


def slstm(t, p, x, state, cell):
    """Compute Eq. 8-14 of xLSTM without the stabiliser; only the returned n is divided by
    exp(m).
    """
    h, c, n, m = state
    n = np.maximum(n, 0) * np.exp(m)
    g, i, f, o = np.split(x @ p.w_x + h @ p.w_h + p.b, 4)
    f = sigmoid(f)
    m = np.where(n > 0, np.maximum(np.log(f) + m, i), i)
    c, n = f * (c * n) + np.exp(i) * np.tanh(g), f * n + np.exp(i)
    c = cell(c / n)
    return sigmoid(o) * c, c, n * np.exp(-m), m


STEPS = dict(
    lstm=lstm, full_gate=full_gate, plstm=plstm, ulstm=ulstm, gru=gru, rhn=rhn, slstm=slstm
)
STEPS |= dict(min_lstm=min_lstm, min_gru=min_gru, ind_rnn=ind_rnn)
STEPS["peephole"] = lambda *given: peephole(*given)[:2]
STEPS["skim_lstm"] = lambda t, *given: lstm(F.LSTM(), *given)


# --- Skips over depth: (skip, params, x, h, c, below) -> what is added to the gates, the cell state
# or h


# Where each enters, as the papers say: not as the skip itself says.
ENTERS = {F.ToGates: "gates", F.DenseToGates: "gates", F.ToInternal: "cell", F.Highway: "cell"}
ENTERS |= {F.ToOutput: "output", F.AttentionToOutput: "output"}


def added(skip, d, x, h, c, below):
    if isinstance(skip, F.Highway):
        return sigmoid(x @ d.w_x + d.w_c * c + d.w_l * below + d.b) * below
    if isinstance(skip, F.AttentionToOutput):
        layers = np.split(below, len(below) // len(h))
        weights = softmax(np.array([g @ d.w / np.sqrt(np.mean(g**2) + 1e-6) for g in layers]))
        return sum(weight * g for weight, g in zip(weights, layers, strict=True))
    if ENTERS[type(skip)] == "gates" and skip.mapping == "linear":
        return below @ d.w[0]
    mapped = sigmoid(below) if skip.mapping == "sigmoid" else below
    mapped = below @ d.w_m if skip.mapping == "linear" else mapped
    if ENTERS[type(skip)] == "gates":
        return np.tile(mapped, 4)
    if skip.gated:
        return sigmoid(x @ d.w_gx + h @ d.w_gh + d.b_g) * mapped
    return mapped


# --- Skips over time


def candidates(skip, t):
    """Return the slots among which an agent chooses at step t."""
    if isinstance(skip.among, F.LogSpaced):
        return np.array([2**j - 1 for j in range(10) if 2**j <= skip.max_skip])
    if isinstance(skip.among, F.Segments):
        # the state in a slot was the newest one after t - slot steps
        ends = [slot for slot in range(1, skip.max_skip) if (t - slot) % skip.among.size == 0]
        return np.array([0, *ends[: (skip.max_skip - 1) // skip.among.size]])
    return np.arange(0, skip.max_skip, skip.among.size)


def logits_of(skip, p, x, past, t, allowed, read):
    """Return the logits of the K states of an agent, Eq. 1; -inf for those that may not be
    chosen.
    """
    h = [state[0] for state in past[: -skip.max_skip - 1 : -1]]
    seen = np.mean(h, axis=0) if skip.agent == "mlp" and skip.agent_input == "mean" else h[0]
    out = np.tanh(seen @ p.w_h + x @ p.w_x + p.b) @ p.w_out
    slots = candidates(skip, t)
    if skip.agent != "mlp":
        is_followed = skip.agent_keys == "followed"
        ends = np.cumsum([len(h[0]), len(x) if is_followed else 0])
        query, of_inputs, by_distance = np.split(out, ends)
        out = by_distance if skip.agent == "both" else np.zeros(len(slots))
        out = out + np.array([h[slot] @ query for slot in slots]) / np.sqrt(len(h[0]))
        if is_followed:
            followed = read[::-1]  # x(t) followed State(t-1), x(t-1) followed State(t-2), …
            out += np.array([followed[slot] @ of_inputs for slot in slots]) / np.sqrt(len(x))
    logits = np.full(skip.max_skip, -np.inf)
    logits[slots] = out + p.b_out
    if skip.empty_slots == "masked":
        logits[np.arange(skip.max_skip) > t] = -np.inf
    logits[~allowed] = -np.inf
    return logits


class Row(NamedTuple):
    """What a step returns."""

    h: np.ndarray
    action: int = 1
    log_prob: float = 0.0
    entropy: float = 0.0
    update: float | None = None


def chosen(skip, p, x, past, t, action, allowed, mode, temperature, read):
    """Return the weights of the K states, and k, log π(k) and the entropy, of a skip over the last
    K.
    """
    K, one_hot = skip.max_skip, np.eye(skip.max_skip)
    if skip.forgets_carried and t == 0:
        return one_hot[0], 1, 0.0, 0.0
    if isinstance(skip, F.Previous | F.Fixed):
        slot = skip.fixed_slot
        return one_hot[slot], slot + 1, 0.0, 0.0
    if isinstance(skip, F.Mean):
        return np.full(K, 1 / K), K, 0.0, 0.0
    if isinstance(skip, F.Random):
        return one_hot[action - 1], action, 0.0, 0.0
    logits = logits_of(skip, p, x, past, t, allowed, read) / temperature
    pi = softmax(logits)
    if isinstance(skip, F.Dynamic) and mode != "soft":
        k = int(np.argmax(pi)) + 1 if action is None else action
        return one_hot[k - 1], k, np.log(pi[k - 1]), entropy(pi)
    weights = pi
    if isinstance(skip, F.SparseAttention):
        rest = np.sort(np.exp(logits))[::-1][skip.top] if skip.top < K else 0
        weights = np.maximum(np.exp(logits) - rest, 0)
        weights /= weights.sum()
    return weights, int(np.argmax(weights)) + 1, 0.0, entropy(weights)


def buffer_loop(
    recurrence,
    params,
    x,
    past,
    below,
    actions,
    mode,
    temperature,
    allowed=None,
    dropped=None,
    kept=None,
    earlier=(),
):
    """Run Gui et al. (2019), Eq. 1 and 2, with any transition and skip over depth, dropout and
    zoneout.

    `past` lists the states, oldest first. It begins with the K states of the carry and is extended
    in place. `earlier` are the last K - 1 inputs of the carry, newest first.
    """
    allowed = np.ones(len(past), bool) if allowed is None else allowed
    skip, transition, depth = recurrence.time_skip, recurrence.transition, recurrence.depth_skip
    rows = []
    for t, x_t in enumerate(x):
        action = None if actions is None else actions[t]
        read = [*earlier[::-1], *x[: t + 1]]
        weights, *trace = chosen(
            skip, params.skip, x_t, past, t, action, allowed, mode, temperature, read
        )
        slots = past[: -skip.max_skip - 1 : -1]
        state = tuple(
            skip.mix * sum(w * array for w, array in zip(weights, arrays, strict=True))
            + (1 - skip.mix) * arrays[0]
            for arrays in zip(*slots, strict=True)
        )
        if skip.forgets_carried and t == 0:
            past[-1] = past[0]
        state = state if dropped is None else (state[0] * dropped, *state[1:])
        p, cell = params.transition, lambda c: c
        enters = ENTERS.get(type(depth))
        if depth is not None:
            c = state[transition.state._fields.index(transition.cell_state)]
            more = added(depth, params.depth, x_t, state[0], c, below[t])
            p = p._replace(b=p.b + more) if enters == "gates" else p
            cell = (lambda c, more=more: c + more) if enters == "cell" else cell
        state = STEPS[transition.name](transition, p, x_t, state, cell)
        if enters == "output":
            state = (state[0] + more, *state[1:])
        if kept is not None:
            triples = zip(kept, past[-1], state, strict=True)
            state = tuple(rate[t] * old + (1 - rate[t]) * new for rate, old, new in triples)
        past.append(state)
        rows.append(Row(state[0], *trace))
    return rows


def skip_rnn_loop(recurrence, params, x, past, below, actions, mode, temperature):
    """Run Campos et al. (2018), Eq. 1-5, with ũ(1) = 1."""
    transition, gate, pending, rows = recurrence.transition, params.skip, 1.0, []
    place = transition.state._fields.index(transition.cell_state)
    for x_t in x:
        u, state = round(pending), past[-1]
        if u:
            state = STEPS[transition.name](transition, params.transition, x_t, state, lambda c: c)
        past.append(state)
        delta = sigmoid(gate.w @ state[place] + gate.b[0])
        pending = u * delta + (1 - u) * (pending + min(delta, 1 - pending))
        rows.append(Row(state[0], 1 if u else 2, update=u))
    return rows


def skim_rnn_loop(recurrence, params, x, past, below, actions, mode, temperature):
    """Run Seo et al. (2018), Eq. 1-5, in expectation (Eq. 5) if `mode` is soft."""
    p, gate, rows = params.transition, params.skip, []
    for x_t in x:
        state = past[-1]
        alpha = softmax((state[0] @ gate.w_h + x_t @ gate.w_x + gate.b) / temperature)
        read = alpha[0] if mode == "soft" else float(alpha[0] > alpha[1])
        new = STEPS[recurrence.transition.name](recurrence.transition, p, x_t, state, lambda c: c)
        unread = skimmed(p, x_t, state) if recurrence.transition.name == "skim_lstm" else state
        past.append(tuple(read * a + (1 - read) * b for a, b in zip(new, unread, strict=True)))
        rows.append(Row(past[-1][0], 1 if read > 0.5 else 2, update=read))
    return rows


def lstm_jump_loop(recurrence, params, x, past, below, actions, mode, temperature):
    """Run Yu et al. (2017), Section 2.1: read R words, jump κ - 1 words, at most N times."""
    skip, transition, softmax_of_jumps = recurrence.time_skip, recurrence.transition, params.skip
    states, read, traces = [None] * len(x), np.zeros(len(x), int), [(0, 0.0, 0.0)] * len(x)
    state, position, jumps = past[-1], 0, 0
    while position < len(x):
        for t in range(position, min(position + skip.read_steps, len(x))):
            state = STEPS[transition.name](transition, params.transition, x[t], state, lambda c: c)
            states[t], read[t] = state, 1
        last, after = t, t + 1
        if after >= len(x) or jumps == skip.max_jumps:
            break
        pi = softmax((state[0] @ softmax_of_jumps.w + softmax_of_jumps.b) / temperature)
        kappa = int(np.argmax(pi)) if actions is None else int(actions[after]) - 1
        traces[after] = (kappa + 1, np.log(pi[kappa]), entropy(pi))
        jumps += 1
        if kappa == 0:
            break
        position = last + kappa
    rows = []
    for t in range(len(x)):  # the state does not change where nothing is read
        past.append(past[-1] if states[t] is None else states[t])
        rows.append(Row(past[-1][0], *traces[t], update=read[t]))
    return rows


LOOPS = {F.SkipRNN: skip_rnn_loop, F.SkimRNN: skim_rnn_loop, F.LSTMJump: lstm_jump_loop}


def loop(
    recurrence,
    params,
    x,
    slots,
    *,
    below=None,
    actions=None,
    mode="greedy",
    temperature=1.0,
    **options,
):
    """Run one sequence, x (time, in); return the rows of all steps, and the last K states, newest
    first.

    `slots` are the K states of the carry, newest first. Without `actions`, choices are greedy.
    Options are `dropped`, the mask of recurrent dropout, `allowed`, that of the policy, and `kept`,
    that of zoneout.
    """
    params, slots = jax.tree.map(np.asarray, (params, slots))
    K = recurrence.time_skip.max_skip
    past = [tuple(array[slot] for array in slots) for slot in reversed(range(K))]
    run = LOOPS.get(type(recurrence.time_skip), buffer_loop)
    rows = run(recurrence, params, x, past, below, actions, mode, temperature, **options)
    return rows, [np.stack(arrays) for arrays in zip(*past[: -K - 1 : -1], strict=True)]
