"""The unroll with a derivative of its own: what `skip_lstm_step` means, in fewer passes over memory.

The same equations, arranged for speed:

* W_h's gradient is one product after the loop instead of a sum inside it, and so are the agent's.
* The sampled agent learns from its log-probabilities alone (`stop_gradient`), so the loop only has to know
  what was chosen; log-probabilities and entropies of all steps are computed at once behind it.
* Every array that the loop fills is written in place. XLA copies a whole array whenever a loop still reads
  an old version of it, so each iteration writes first and then reads what the next one needs.
* The gates' activations take the place of their projections, and the gates' gradients that of the
  activations. Nothing that is kept for the backward pass grows with K.
* σ(x) = (1 + tanh(x / 2)) / 2: one tanh for all four gates, of which only the tanh is kept.

`history` below is the list of states oldest first along the time axis, (batch, K + time, hidden): the K
states that were there before, then one per step, so that State(t - k) is row t + K - k.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional.agent import (
    ActionMode,
    AgentParams,
    agent_log_probs,
    agent_logits,
    choice_noise,
    choose,
)
from dynskip_jax.functional.lstm import product
from dynskip_jax.functional.relaxation import draws_noise, relaxed_weights
from dynskip_jax.functional.time_skip import (
    Decision,
    SkipCarry,
    SkipLSTMParams,
    SkipOutput,
    StepInputs,
    TimeSkip,
    agent_view,
    allowed_skips,
    certain_trace,
    entering_state,
    is_first_step,
    mixed,
    relaxation_of,
    slot_of,
    trace,
    weighted_trace,
    without_choice,
)


@dataclasses.dataclass(frozen=True)
class _Skip(TimeSkip):
    """What is static about an unroll: which state enters, and how they are weighed if none is chosen."""

    relaxation: str | None = None

    @property
    def is_weighted(self) -> bool:
        """Whether a mean over all K states enters."""
        return self.relaxation is not None

    @property
    def is_chosen(self) -> bool:
        """Whether one of the K states is chosen."""
        return self.is_stochastic and not self.is_weighted

    @property
    def draws_noise(self) -> bool:
        """Whether the weights are random."""
        return self.is_weighted and draws_noise(self.relaxation)


class _Loop(NamedTuple):
    """What enters the loop; None where a skip does without.

    Attributes:
        gates: projections of the inputs, (batch, time, 4 * hidden).
        w_h: (hidden, 4 * hidden).
        b: (4 * hidden,).
        h_in: the state that enters the first step, (batch, hidden).
        c_in: the same of the cell state.
        h_slots: the last K states, oldest first, (batch, K, hidden).
        c_slots: the same of the cell state.
        mix: λ as an array; None if it is a number, which is static.
        recurrent_mask: factor on the state that enters the gates, (batch, hidden).
        agent: weights of Eq. 1.
        units: projections of the inputs for the agent, (batch, time, units).
        allowed: skips that may be chosen, (batch_or_1, time_or_1, K).
        noise: of the choices or weights, (batch, time, K); None takes the most probable one.
        temperature: of the weights, if all states are weighed; no gradient is given for it.
        slots: choices to be replayed, (batch, time).
        seq_lengths: (batch,).
    """

    gates: Float[Array, "batch time gates"]
    w_h: Float[Array, "hidden gates"]
    b: Float[Array, " gates"]
    h_in: Float[Array, "batch hidden"]
    c_in: Float[Array, "batch hidden"]
    h_slots: Float[Array, "batch K hidden"]
    c_slots: Float[Array, "batch K hidden"]
    mix: Float[Array, ""] | None = None
    recurrent_mask: Float[Array, "batch hidden"] | None = None
    agent: AgentParams | None = None
    units: Float[Array, "batch time units"] | None = None
    allowed: Bool[Array, "batch_or_1 time_or_1 K"] | None = None
    noise: Float[Array, "batch time K"] | None = None
    temperature: Float[Array, ""] | None = None
    slots: Int[Array, "batch time"] | None = None
    seq_lengths: Int[Array, " batch"] | None = None


def fused_unroll(
    params: SkipLSTMParams,
    carry: SkipCarry,
    inputs: StepInputs,
    skip: TimeSkip,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
    mode: ActionMode = "sample",
    temperature: float | Float[Array, ""] = 1.0,
    mix: float | Float[Array, ""] | None = None,
    policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
) -> tuple[SkipCarry, SkipOutput]:
    """Does what scanning `skip_lstm_step` over `inputs` does.

    Reverse-mode derivatives only: forward mode (`jax.jvp`) and second derivatives need the readable unroll.

    Args:
        params: the layer's weights.
        carry: the state to start from.
        inputs: `project_inputs` of all steps, (batch, time, ...).
        skip: which state enters each step.
        seq_lengths: true lengths, (batch,), that `inputs.valid` was made of.
        mode: see `skip_lstm_step`, as for `temperature`, `mix` and `policy_mask`.
        temperature: τ.
        mix: λ.
        policy_mask: (K,) or (batch, K).

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).
    """
    batch, time = inputs.gates.shape[:2]
    K, dtype = skip.max_skip, carry.h.dtype
    mix = skip.mix if mix is None else mix
    relaxation = relaxation_of(skip, mode, inputs.action is not None)
    plan = _Skip(**vars(skip), relaxation=relaxation)
    if isinstance(mix, int | float):
        plan, mix = dataclasses.replace(plan, mix=float(mix)), None
    first = is_first_step(carry, skip)
    if first is not None and seq_lengths is not None:
        first = first & (seq_lengths > 0)

    # The first step is taken from the readable definition; the loop makes the choices from the second on.
    h_in, c_in, _ = entering_state(
        params,
        carry,
        jax.tree.map(lambda leaf: leaf[:, 0], inputs),
        plan,
        mode=mode,
        temperature=temperature,
        mix=mix,
        policy_mask=policy_mask,
    )
    loop = _Loop(
        gates=inputs.gates.astype(dtype),
        w_h=params.lstm.w_h,
        b=params.lstm.b,
        h_in=h_in,
        c_in=c_in,
        h_slots=_oldest_first(carry.h, first),
        c_slots=_oldest_first(carry.c, first),
        mix=mix,
        recurrent_mask=carry.recurrent_mask,
        seq_lengths=seq_lengths,
    )
    if params.agent is not None:
        steps = carry.step[:, None] + jnp.arange(time)[None, :]
        if policy_mask is not None and policy_mask.ndim == 2:
            policy_mask = policy_mask[:, None]
        loop = loop._replace(
            agent=params.agent,
            units=inputs.agent.astype(dtype),
            allowed=allowed_skips(steps, skip, policy_mask),
        )
        if plan.is_weighted:
            loop = loop._replace(temperature=jnp.asarray(temperature, dtype))
        if plan.is_chosen and inputs.action is not None:
            loop = loop._replace(slots=slot_of(inputs.action, K))
        elif plan.draws_noise or (plan.is_chosen and mode == "sample"):
            keys = jnp.broadcast_to(carry.key[:, None], (batch, time))
            loop = loop._replace(noise=choice_noise(keys, steps, K, dtype))

    history, c_last, slots = _run(plan, loop)

    h = history[:, K:]
    if seq_lengths is None:
        h_last, taken = history[:, time:], time
    else:
        h_last, taken = _last_rows(history, seq_lengths, K), seq_lengths.astype(carry.step.dtype)
    end = carry._replace(h=jnp.flip(h_last, 1), c=jnp.flip(c_last, 1), step=carry.step + taken)

    decision = _decisions(plan, loop, history, slots)
    if first is not None:
        start = jnp.arange(time)[None, :] == 0
        decision = without_choice(decision, first[:, None] & start)
    if inputs.valid is not None:
        h = jnp.where(inputs.valid[..., None], h, 0)
        decision = Decision(*(jnp.where(inputs.valid, leaf, 0) for leaf in decision))
    return end, SkipOutput(h, decision)


def _oldest_first(
    slots: Float[Array, "batch K hidden"], forget_newest: Bool[Array, " batch"] | None
) -> Float[Array, "batch K hidden"]:
    """The buffer turned round; the state that entered the first step is forgotten where so asked."""
    if forget_newest is not None and slots.shape[1] > 1:
        slots = slots.at[:, 0].set(jnp.where(forget_newest[:, None], 0, slots[:, 0]))
    return jnp.flip(slots, axis=1)


def _last_rows(
    history: Float[Array, "batch rows hidden"], seq_lengths: Int[Array, " batch"], max_skip: int
) -> Float[Array, "batch K hidden"]:
    """The last K states of each sequence."""
    rows = seq_lengths[:, None] + jnp.arange(max_skip)[None, :]
    return jnp.take_along_axis(history, rows[..., None], axis=1)


def _decisions(
    skip: _Skip,
    loop: _Loop,
    history: Float[Array, "batch rows hidden"],
    slots: Int[Array, "batch time"] | None,
) -> Decision:
    """The traces of all steps; what the loop chose after its own first step, and here what came before."""
    batch, time = loop.gates.shape[:2]
    if loop.agent is None:
        return certain_trace((batch, time), skip.max_skip, history.dtype)
    seen = agent_view(_seen_at_all_steps(skip, history, time), skip)
    log_probs = agent_log_probs(loop.agent, loop.units, seen, loop.allowed)
    if skip.is_weighted:
        weights = relaxed_weights(log_probs, loop.noise, skip.relaxation, loop.temperature)
        return weighted_trace(weights, log_probs)
    if loop.slots is not None:
        return trace(log_probs, loop.slots)
    start = choose(log_probs[:, :1], None if loop.noise is None else loop.noise[:, :1])
    return trace(log_probs, jnp.concatenate([start, slots], axis=1))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(
    skip: _Skip, loop: _Loop
) -> tuple[
    Float[Array, "batch rows hidden"], Float[Array, "batch K hidden"], Int[Array, "batch time_but_one"] | None
]:
    """Returns the history of h, the last K cell states (oldest first), and the slots chosen after step 0."""
    h, c, _, slots = _forward(skip, loop, keep=False)
    return h, _last_cells(skip, loop, c), slots


def _run_forward(skip: _Skip, loop: _Loop):
    """`_run`, and what its transpose needs."""
    h, c, activations, slots = _forward(skip, loop, keep=True)
    kept = loop._replace(gates=activations, h_slots=None, c_slots=None)
    if not skip.draws_noise:
        kept = kept._replace(noise=None)  # the choices themselves are kept
    return (h, _last_cells(skip, loop, c), slots), (kept, h, c, slots)


def _forward(skip: _Skip, loop: _Loop, keep: bool):
    """Runs all steps; returns the histories of h and c, the activations (if kept) and the choices."""
    time, K = loop.gates.shape[1], skip.max_skip
    scale = _gate_scale(loop.h_in)

    def step(state, t):
        gates, h_history, c_history, h_in, c_in = state
        entering = h_in if loop.recurrent_mask is None else h_in * loop.recurrent_mask
        activation = jnp.tanh((_at(gates, t) + product(entering, loop.w_h) + loop.b[None]) * scale)
        g, i, f, o = _gate_values(activation, scale)
        c = g * i + c_in * f
        h = o * jnp.tanh(c)
        if keep:
            gates = _put(gates, t, activation)
        h_history, c_history = _put(h_history, t + K, h), _put(c_history, t + K, c)
        choice = _choose_at(skip, loop, h_history, t + 1, h)
        h_in = _entering(skip, loop.mix, h_history, t + 1, choice, h)
        c_in = _entering(skip, loop.mix, c_history, t + 1, choice, c)
        return (gates, h_history, c_history, h_in, c_in), choice if skip.is_chosen else None

    grow = ((0, 0), (0, time), (0, 0))
    start = (loop.gates, jnp.pad(loop.h_slots, grow), jnp.pad(loop.c_slots, grow), loop.h_in, loop.c_in)
    (gates, h, c, _, _), slots = lax.scan(step, start, jnp.arange(time))
    return h, c, gates, None if slots is None else slots[:-1].T


def _run_backward(skip: _Skip, residuals, cotangents):
    """The transpose of `_forward`, last step first.

    Row K + t of the two adjoint arrays collects what the steps after t send back to State(t); when step t is
    reached it is complete. dh and dc are these complete adjoints of h(t) and c(t).
    """
    loop, h_history, c_history, slots = residuals
    h_adjoint, c_last_adjoint, _ = cotangents
    time, hidden, K = loop.gates.shape[1], loop.h_in.shape[1], skip.max_skip
    scale = _gate_scale(loop.h_in)
    times_transposed = _times_transposed(loop.w_h, len(loop.h_in))
    choices = _choices(skip, loop, h_history, slots)
    c_entered = _entered(skip, loop, c_history, loop.c_in, choices)
    c_adjoint = _cell_adjoint(skip, loop, c_history, c_last_adjoint)

    def complete(t, activation, dh, dc, adjoints):
        dh = dh + _at(adjoints[0], K + t)
        if adjoints[1] is not None:
            dc = dc + _at(adjoints[1], K + t)
        # h(t) = o tanh c(t)
        tanh_c = jnp.tanh(_at(c_history, K + t))
        o = 0.5 + 0.5 * activation[:, 3 * hidden :]
        return dh, dc + dh * o * (1 - tanh_c * tanh_c)

    def undo_transition(t, activation, dh, dc, c_in):
        """From the adjoints of a step's results to those of its projections and of what entered it."""
        g, i, f, _ = _gate_values(activation, scale)
        tanh_c = jnp.tanh(_at(c_history, K + t))
        d_gates = jnp.concatenate([dc * i, dc * g, dc * c_in, dh * tanh_c], axis=-1)
        d_gates = d_gates * ((1 - activation * activation) * (scale * scale))
        return d_gates, times_transposed(d_gates), dc * f

    def undo_step(state, t):
        gates, activation, dh, dc, adjoints, d_mask, d_mix = state
        choice = None if choices is None else _at(choices, t)
        h_before = _at(h_history, K + t - 1)
        d_gates, dh_in, dc_in = undo_transition(t, activation, dh, dc, _at(c_entered, t))
        gates = _put(gates, t, d_gates)
        if loop.recurrent_mask is not None:
            h_in = _entering(skip, loop.mix, h_history, t, choice, h_before)
            d_mask = d_mask + dh_in * jnp.where(t > 0, h_in, loop.h_in)
            dh_in = dh_in * loop.recurrent_mask

        # What entered the first step is an argument of its own, so nothing is sent back from there.
        dh, dc, d_weights = dh_in, dc_in, None
        if reaches:
            mix = skip.mix if loop.mix is None else loop.mix
            sent = jnp.where(t > 0, mix, 0).astype(dh.dtype)
            adjoints = (
                _send_back(skip, adjoints[0], t, choice, sent * dh_in),
                _send_back(skip, adjoints[1], t, choice, sent * dc_in),
            )
            dh, dc = (1 - mix) * dh_in, (1 - mix) * dc_in
            if loop.mix is not None:
                moved = dh_in * (_fetch(skip, h_history, t, choice) - h_before)
                moved = moved + dc_in * (_fetch(skip, c_history, t, choice) - _at(c_history, K + t - 1))
                d_mix = d_mix + jnp.where(t > 0, jnp.sum(moved), 0)
            if skip.is_weighted:
                d_weights = sent * _weights_adjoint(skip, h_history, c_history, t, dh_in, dc_in)
            if skip.kind == "attention":
                d_seen = _seen_adjoint(skip, loop, h_history, t, h_before, d_weights)
                if skip.agent_input == "mean":
                    adjoints = (_add(adjoints[0], t, jnp.repeat(d_seen[:, None] / K, K, axis=1)), adjoints[1])
                else:
                    dh = dh + d_seen
        activation = _at(gates, t - 1)
        dh, dc = complete(t - 1, activation, dh, dc, adjoints)
        dh, dc = jnp.where(t > 0, dh, dh_in), jnp.where(t > 0, dc, dc_in)
        return (gates, activation, dh, dc, adjoints, d_mask, d_mix), d_weights

    reaches = _reaches_back(skip)
    adjoints = (h_adjoint, c_adjoint)
    activation = _at(loop.gates, time - 1)
    zero = jnp.zeros_like(loop.h_in)
    dc = zero if c_adjoint is not None else c_last_adjoint[:, 0]
    dh, dc = complete(time - 1, activation, zero, dc, adjoints)
    d_mask = None if loop.recurrent_mask is None else zero
    d_mix = None if loop.mix is None else jnp.zeros_like(loop.mix)
    state = (loop.gates, activation, dh, dc, adjoints, d_mask, d_mix)
    state, d_weights = lax.scan(undo_step, state, jnp.arange(time), reverse=True)
    gates, _, dh, dc, adjoints, d_mask, d_mix = state

    h_entered = _entered(skip, loop, h_history, loop.h_in, choices)
    if loop.recurrent_mask is not None:
        h_entered = h_entered * loop.recurrent_mask[:, None]
    d_agent = d_units = None
    if d_weights is not None:
        d_agent, d_units = _agent_adjoint(skip, loop, h_history, jnp.moveaxis(d_weights, 0, 1))
    return (
        _Loop(
            gates=gates,
            w_h=_outer_products(h_entered, gates, loop.w_h.dtype),
            b=jnp.sum(gates, axis=(0, 1)).astype(loop.b.dtype),
            h_in=dh,
            c_in=dc,
            h_slots=adjoints[0][:, :K],
            c_slots=jnp.zeros_like(zero)[:, None] if c_adjoint is None else adjoints[1][:, :K],
            mix=d_mix,
            recurrent_mask=d_mask,
            agent=d_agent,
            units=d_units,
        ),
    )


_run.defvjp(_run_forward, _run_backward)


# Which states enter a step, and the transpose of that. The choice at a step is a slot of each example
# (dynamic), its weights (weighted), or nothing (fixed).


def _reaches_back(skip: _Skip) -> bool:
    """Whether any other state than the previous one can enter."""
    return not (skip.kind == "fixed" and skip.max_skip == 1)


def _entering(
    skip: _Skip,
    mix: Float[Array, ""] | None,
    history: Float[Array, "batch rows hidden"],
    t: Int[Array, ""],
    choice: Array | None,
    previous: Float[Array, "batch hidden"],
) -> Float[Array, "batch hidden"]:
    """What enters step t: λ State(t-k) + (1 - λ) State(t-1)."""
    if not _reaches_back(skip):
        return previous
    return mixed(skip.mix if mix is None else mix, _fetch(skip, history, t, choice), previous)


def _fetch(
    skip: _Skip, history: Float[Array, "batch rows hidden"], t: Int[Array, ""], choice: Array | None
) -> Float[Array, "batch hidden"]:
    """State(t-k), or the weighted mean over k."""
    K = skip.max_skip
    if skip.kind == "fixed":
        return _at(history, t)
    if skip.is_weighted:
        return sum(choice[:, k - 1, None] * _at(history, t + K - k) for k in range(1, K + 1))
    # By `vmap`, so that a batch divided among devices stays where it is.
    read = jax.vmap(lambda rows, row: rows.at[row].get(mode="promise_in_bounds"))
    return read(history, t + K - 1 - choice)


def _send_back(
    skip: _Skip,
    adjoint: Float[Array, "batch rows hidden"],
    t: Int[Array, ""],
    choice: Array | None,
    d_fetched: Float[Array, "batch hidden"],
) -> Float[Array, "batch rows hidden"]:
    """The transpose of `_fetch`: adds an adjoint to the rows that were read."""
    K = skip.max_skip
    if skip.kind == "fixed":
        return _add(adjoint, t, d_fetched[:, None])
    if skip.is_weighted:
        return _add(adjoint, t, jnp.flip(choice, axis=1)[..., None] * d_fetched[:, None])
    add = jax.vmap(lambda rows, row, d: rows.at[row].add(d, mode="promise_in_bounds", unique_indices=True))
    return add(adjoint, t + K - 1 - choice, d_fetched)


def _choose_at(
    skip: _Skip,
    loop: _Loop,
    h_history: Float[Array, "batch rows hidden"],
    t: Int[Array, ""],
    previous: Float[Array, "batch hidden"],
) -> Array | None:
    """The choice at step t, which may be one past the end: then it is of no consequence."""
    if skip.kind == "fixed":
        return None
    if loop.slots is not None:
        return _at(loop.slots, t)
    seen = _seen_at(skip, h_history, t, previous)
    if skip.is_weighted:
        return _weights(skip, loop, t, seen)
    logits = agent_logits(loop.agent, _at(loop.units, t), seen, _allowed_at(loop, t))
    return choose(logits, None if loop.noise is None else _at(loop.noise, t))


def _weights(
    skip: _Skip, loop: _Loop, t: Int[Array, ""], seen: Float[Array, "batch hidden"]
) -> Float[Array, "batch K"]:
    """The weights of all states at step t."""
    log_probs = agent_log_probs(loop.agent, _at(loop.units, t), seen, _allowed_at(loop, t))
    noise = None if loop.noise is None else _at(loop.noise, t)
    return relaxed_weights(log_probs, noise, skip.relaxation, loop.temperature)


def _weights_adjoint(
    skip: _Skip,
    h_history: Float[Array, "batch rows hidden"],
    c_history: Float[Array, "batch rows hidden"],
    t: Int[Array, ""],
    dh: Float[Array, "batch hidden"],
    dc: Float[Array, "batch hidden"],
) -> Float[Array, "batch K"]:
    """The adjoint of the weights, from those of the two means."""
    K = skip.max_skip
    rows = [(_at(h_history, t + K - k), _at(c_history, t + K - k)) for k in range(1, K + 1)]
    return jnp.stack([jnp.sum(dh * h + dc * c, axis=-1) for h, c in rows], axis=-1)


def _seen_adjoint(
    skip: _Skip,
    loop: _Loop,
    h_history: Float[Array, "batch rows hidden"],
    t: Int[Array, ""],
    previous: Float[Array, "batch hidden"],
    d_weights: Float[Array, "batch K"],
) -> Float[Array, "batch hidden"]:
    """The adjoint of the state that attention looked at."""
    seen = _seen_at(skip, h_history, t, previous)
    _, undo = jax.vjp(lambda seen: _weights(skip, loop, t, seen), seen)
    return undo(d_weights)[0]


def _seen_at(
    skip: _Skip,
    h_history: Float[Array, "batch rows hidden"],
    t: Int[Array, ""],
    previous: Float[Array, "batch hidden"],
) -> Float[Array, "batch hidden"]:
    """The state that the agent looks at before step t."""
    if skip.agent_input == "mean":
        return sum(_at(h_history, t + row) for row in range(skip.max_skip)) / skip.max_skip
    return previous


def _allowed_at(loop: _Loop, t: Int[Array, ""]) -> Bool[Array, "batch_or_1 K"] | None:
    if loop.allowed is None:
        return None
    return loop.allowed[:, 0] if loop.allowed.shape[1] == 1 else _at(loop.allowed, t)


# The same for all steps at once, after the loop.


def _seen_at_all_steps(
    skip: _Skip, h_history: Float[Array, "batch rows hidden"], time: int
) -> Float[Array, "batch time hidden"]:
    """The state that the agent looks at before each step."""
    K = skip.max_skip
    if skip.agent_input == "mean":
        return sum(h_history[:, row : row + time] for row in range(K)) / K
    return h_history[:, K - 1 : K - 1 + time]


def _weights_at_all_steps(
    skip: _Skip,
    loop: _Loop,
    h_history: Float[Array, "batch rows hidden"],
    agent: AgentParams,
    units: Float[Array, "batch time units"],
) -> Float[Array, "batch time K"]:
    seen = _seen_at_all_steps(skip, h_history, units.shape[1])
    log_probs = agent_log_probs(agent, units, seen, loop.allowed)
    return relaxed_weights(log_probs, loop.noise, skip.relaxation, loop.temperature)


def _choices(
    skip: _Skip,
    loop: _Loop,
    h_history: Float[Array, "batch rows hidden"],
    slots: Int[Array, "batch time_but_one"] | None,
) -> Array | None:
    """What entered each step, (batch, time) or (batch, time, K); of no meaning at step 0."""
    if skip.kind == "fixed":
        return None
    if skip.is_weighted:
        return _weights_at_all_steps(skip, loop, h_history, loop.agent, loop.units)
    return jnp.pad(slots, ((0, 0), (1, 0)))


def _entered(
    skip: _Skip,
    loop: _Loop,
    history: Float[Array, "batch rows hidden"],
    start: Float[Array, "batch hidden"],
    choices: Array | None,
) -> Float[Array, "batch time hidden"]:
    """What entered each step, computed once more instead of kept; `start` is what entered the first."""
    time, K = loop.gates.shape[1], skip.max_skip
    previous = history[:, K - 1 : K - 1 + time]
    if not _reaches_back(skip):
        return previous
    if skip.kind == "fixed":
        fetched = history[:, :time]
    elif skip.is_weighted:
        rows = [(choices[:, :, k - 1, None], history[:, K - k : K - k + time]) for k in range(1, K + 1)]
        fetched = sum(weight * row for weight, row in rows)
    else:
        rows = jnp.arange(time)[None, :] + (K - 1) - choices
        fetched = jnp.take_along_axis(history, rows[..., None], axis=1, mode="promise_in_bounds")
    entered = mixed(skip.mix if loop.mix is None else loop.mix, fetched, previous)
    return jnp.where(jnp.arange(time)[None, :, None] > 0, entered, start[:, None])


def _agent_adjoint(
    skip: _Skip,
    loop: _Loop,
    h_history: Float[Array, "batch rows hidden"],
    d_weights: Float[Array, "batch time K"],
) -> tuple[AgentParams, Float[Array, "batch time units"]]:
    """The gradients of the agent's weights and of its inputs' projections."""
    weights = partial(_weights_at_all_steps, skip, loop, h_history)
    _, undo = jax.vjp(weights, loop.agent, loop.units)
    return undo(d_weights)


def _last_cells(
    skip: _Skip, loop: _Loop, c_history: Float[Array, "batch rows hidden"]
) -> Float[Array, "batch K hidden"]:
    if loop.seq_lengths is None:
        return c_history[:, loop.gates.shape[1] :]
    return _last_rows(c_history, loop.seq_lengths, skip.max_skip)


def _cell_adjoint(
    skip: _Skip,
    loop: _Loop,
    c_history: Float[Array, "batch rows hidden"],
    c_last_adjoint: Float[Array, "batch K hidden"],
) -> Float[Array, "batch rows hidden"] | None:
    """The transpose of `_last_cells`; None where nobody but step t + 1 and the caller ever reads c(t)."""
    if loop.seq_lengths is not None:
        rows = loop.seq_lengths[:, None] + jnp.arange(skip.max_skip)[None, :]
        add = jax.vmap(lambda adjoint, rows, d: adjoint.at[rows].add(d, unique_indices=True))
        return add(jnp.zeros_like(c_history), rows, c_last_adjoint)
    if _reaches_back(skip):
        return jnp.zeros_like(c_history).at[:, loop.gates.shape[1] :].set(c_last_adjoint)
    return None


# Arithmetic of the gates and places in arrays.


def _gate_scale(state: Float[Array, "batch hidden"]) -> Float[Array, "1 gates"]:
    """s such that a gate is s tanh(s z) + 1 - s: 1 for g, which is a tanh, and ½ for the sigmoids i, f, o."""
    ones = jnp.ones((1, state.shape[1]), state.dtype)
    return jnp.concatenate([ones, 0.5 * ones, 0.5 * ones, 0.5 * ones], axis=1)


def _gate_values(activation: Float[Array, "batch gates"], scale: Float[Array, "1 gates"]) -> list[Array]:
    """g, i, f, o from tanh(s z)."""
    return jnp.split(activation * scale + (1 - scale), 4, axis=-1)


def _times_transposed(w: Float[Array, "hidden gates"], rows: int) -> Callable[[Array], Array]:
    """Returns d -> d wᵀ in the weights' dtype (see `product`), for d of (rows, gates), as a loop repeats it.

    Which way to write it is fastest depends on the size (XLA's CPU backend, two cores). Where the product
    is small, a copy of wᵀ pays. A little larger, it is shared so badly between threads that a product for
    each gate takes less time, (50, 512) x (512, 128) half of it. Beyond, w had better be read as it is.
    """
    size = rows * w.shape[0]
    if size <= 4096:
        parts, axis = [w.T], 0
    elif size <= 8192:
        parts, axis = [gate.T for gate in jnp.split(w, 4, axis=1)], 0
    else:
        parts, axis = [w], 1

    def times(d: Float[Array, "rows gates"]) -> Float[Array, "rows hidden"]:
        wider = jnp.promote_types(d.dtype, w.dtype)
        d_parts = jnp.split(d.astype(w.dtype), len(parts), axis=1)
        products = [
            lax.dot_general(d_part, part, (((1,), (axis,)), ((), ())), preferred_element_type=wider)
            for d_part, part in zip(d_parts, parts, strict=True)
        ]
        return sum(products[1:], products[0])

    return times


def _outer_products(
    x: Float[Array, "*examples hidden"], d: Float[Array, "*examples gates"], dtype
) -> Float[Array, "hidden gates"]:
    """The sum of x dᵀ over examples and steps, multiplied in and returned as `dtype`."""
    x, d = (array.reshape(-1, array.shape[-1]) for array in (x, d))
    total = lax.dot_general(
        x.astype(dtype), d.astype(dtype), (((0,), (0,)), ((), ())), preferred_element_type=x.dtype
    )
    return total.astype(dtype)


def _at(array: Array, t: Int[Array, ""] | int) -> Array:
    """Row t of the time axis, which is the second one."""
    return lax.dynamic_index_in_dim(array, t, axis=1, keepdims=False)


def _put(array: Array, t: Int[Array, ""] | int, row: Array) -> Array:
    return lax.dynamic_update_index_in_dim(array, row, t, axis=1)


def _add(array: Array, t: Int[Array, ""], rows: Array) -> Array:
    """Adds to the rows from t on."""
    old = lax.dynamic_slice_in_dim(array, t, rows.shape[1], axis=1)
    return lax.dynamic_update_slice_in_dim(array, old + rows, t, axis=1)
