"""The LSTM with `Previous`, `Fixed` or `Dynamic` as one kernel for TPUs, forward and backward.

Its state of proof: equal to the reference in simulation, and compiled for a TPU v5e. It has not run
on a TPU yet, and nobody has timed it. So `implementation="auto"` does not choose it.

The scan of a layer reads W_h from main memory at every step, and runs half a dozen operations per
step. Here one Pallas kernel runs all steps: W_h, the agent's matrices and the last K states stay in
fast memory, and only the projected inputs and the results of a step move. States are rows of a
history, oldest first: the K states before the first step, then one per step. State(t-k) of Eq. 2 is
row t + K - k, and row r is kept at place r mod K. Arrays are time-major, (time, batch, features).
Widths are padded to whole registers: units to a multiple of 128, batches to one of 8. Padded units
stay 0, and padded sequences are cut off.

The backward kernel goes through the steps in reverse with the gates that the forward kernel has
stored. It sends d State(t) to the row that entered, and returns the gradient of each step's
products. The gradient of W_h is one product after it. A sampled agent has no gradient through the
states, so its log-probabilities are computed for all steps at once after the kernel.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.engine.product import row
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.step import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    StepInputs,
    in_dtype_of,
    mix_of,
    skip_inputs,
)
from dynskip_jax.functional.time_skips import Choice, Dynamic, Every, Fixed, Previous
from dynskip_jax.functional.time_skips.calls import decide
from dynskip_jax.functional.transitions import LSTM, LSTMState

LANES = 128  # width of a register, in units
ROWS = 8  # sequences in a register
FAST_MEMORY = 100 * 2**20  # bytes of the 128 MiB of a v5e that a kernel may use
ANYWHERE = False  # whether to trace it without a TPU: to compile it for one, or to simulate it
_NEVER = -1e9  # score of a skip that may not be chosen


class Plan(NamedTuple):
    """What is known before the program runs."""

    max_skip: int  # K
    slot: int | None  # State(t-1-slot) enters; None if it is chosen
    asks_agent: bool  # whether a choice depends on the agent's logits; a replayed one does not
    mix: float  # λ


def misfit(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    policy: Policy,
) -> str | None:
    """Return the reason why the kernel cannot run this call of `unroll`; None if it can."""
    skip = recurrence.time_skip
    chosen = type(skip) is Dynamic
    reasons = {
        "runs only the LSTM, with an output gate and the usual activations": recurrence.transition
        != LSTM(),
        "runs only Previous, Fixed and Dynamic": type(skip) not in (Previous, Fixed, Dynamic),
        "has no skips over depth": recurrence.depth_skip is not None,
        "has neither segment_ids, zoneout nor recurrent dropout": inputs.restart is not None
        or inputs.zoneout_mask is not None
        or carry.recurrent_mask is not None,
        "starts with a chosen state, not with first_step='carried'": skip.forgets_carried,
        "runs only mlp agents that see h(t-1), among all K states": chosen
        and (skip.agent != "mlp" or skip.agent_input != "previous" or skip.among != Every()),
        f"chooses among at most {LANES} states": chosen and skip.max_skip > LANES,
        "has no relaxed choices": chosen and policy.mode not in ("sample", "greedy"),
        "takes λ as a number, not as an array": not isinstance(mix_of(skip, policy), int | float),
        "computes states in float32, with weights in float32 or bfloat16": carry.slots[0].dtype
        != jnp.float32
        or any(w.dtype not in (jnp.float32, jnp.bfloat16) for w in jax.tree.leaves(params)),
        "needs at least one step and one sequence": 0
        in jax.tree.leaves(inputs.transition)[0].shape,
        f"needs a TPU, not a {jax.default_backend()}": jax.default_backend() != "tpu"
        and not ANYWHERE,
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def tpu_unroll(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    *,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
) -> tuple[SkipCarry, SkipOutput]:
    """Compute the results of a scan of `recurrent_step` over `inputs`, (time, batch, ...).

    It has derivatives in reverse mode, of first order. Under `vmap` the mapped calls run one after
    another. It does not divide its batch over devices: use `jax.shard_map`. A `UserError` says why
    it cannot run a call (`misfit`), or that a layer does not fit a TPU's fast memory.
    """
    reason = misfit(params, carry, inputs, recurrence, policy)
    if reason is not None:
        raise UserError(f"implementation 'tpu_kernel' {reason}: use 'auto'")
    skip = recurrence.time_skip
    inputs = in_dtype_of(carry, inputs)
    time, batch = inputs.transition.shape[:2]
    steps = carry.step[None] + jnp.arange(time)[:, None]
    keys = None
    if carry.key is not None:
        keys = jnp.broadcast_to(carry.key, (time, batch))
    seen = skip_inputs(recurrence, inputs, steps, keys, jnp.float32, policy)
    # The kernel draws nothing: the noise, the masks and the actions come as scores.
    chooses = type(skip) is Dynamic
    plan = Plan(
        skip.max_skip, skip.fixed_slot, chooses and inputs.action is None, mix_of(skip, policy)
    )
    scores = a = agent = None
    if chooses:
        if plan.asks_agent:
            a = seen.projected
            agent = (params.skip.w_h, params.skip.w_out)
            scores = jnp.broadcast_to(
                params.skip.b_out.astype(jnp.float32), (time, batch, skip.max_skip)
            )
            if seen.noise is not None:
                # The largest of logits / τ + noise is that of logits + τ noise.
                scores = scores + seen.temperature * seen.noise
            if seen.allowed is not None:
                scores = jnp.where(seen.allowed, scores, _NEVER)
        else:
            scores = jax.nn.one_hot(skip.slot_of(inputs.action), skip.max_skip)

    # The loop. No gradient flows through a choice.
    z = inputs.transition + row(params.transition.b, inputs.transition)
    start = jax.tree.map(lambda slots: jnp.moveaxis(slots[:, ::-1], 1, 0), carry.slots)
    stopped = jax.lax.stop_gradient((a, scores, agent))
    h, c, slot = _padded_states(plan, z, start, params.transition.w_h, *stopped)

    # The last K states of each sequence, newest first, for the next carry.
    ends = jnp.full(batch, time)
    if inputs.valid is not None:
        ends = inputs.valid.sum(axis=0)
    histories = [jnp.concatenate([old, new]) for old, new in zip(start, (h, c), strict=True)]
    rows = ends[None] + skip.max_skip - 1 - jnp.arange(skip.max_skip)[:, None]
    slots = [jnp.moveaxis(_rows(history, rows), 0, 1) for history in histories]

    # Decisions, from the h before each step, and outputs.
    before = histories[0][skip.max_skip - 1 : -1]
    choice = Choice()
    if chooses:
        choice = Choice(slot)
    decision = decide(skip, params.skip, seen, before, choice, policy.mode)
    output = SkipOutput(h, decision)
    if return_cell_state:
        output = output._replace(cell_state=c)
    if inputs.valid is not None:
        output = where_each(inputs.valid, output, 0)
    carry = carry._replace(slots=LSTMState(*slots), step=carry.step + ends.astype(carry.step.dtype))
    return carry, jax.tree.map(lambda array: jnp.moveaxis(array, 0, 1), output)


def _rows(history: Float[Array, "rows batch hidden"], rows: Int[Array, "n batch"]) -> Array:
    return history[rows, jnp.arange(history.shape[1])[None]]


def _padded_states(plan: Plan, z, start, w_h, a, scores, agent) -> tuple[Array, Array, Array]:
    """Return h, c and the chosen slots, (time, batch, ...), of `_states` on whole registers.

    `z` is W_x x + b, (time, batch, 4 * hidden), and `start` has the K states before the first step,
    oldest first, (K, batch, hidden). If the agent is asked, `a` is its projected input, (time,
    batch, units), and `agent` its W_h and W_out. `scores`, (time, batch, K), are added to its
    logits; None if the slot is fixed.
    """
    batch = z.shape[1]
    hidden = w_h.shape[0]
    rows = -batch % ROWS
    units = -hidden % LANES

    def pad(array: Array, *widths: int, value: float = 0.0) -> Array:
        return jnp.pad(array, [(0, width) for width in widths], constant_values=value)

    def pad_gates(array: Array, *widths: int) -> Array:
        gates = pad(array.reshape(*array.shape[:-1], 4, hidden), *widths, 0, units)
        return gates.reshape(*gates.shape[:-2], -1)

    if scores is not None:
        scores = pad(scores, 0, rows, -scores.shape[-1] % LANES, value=_NEVER)
    if agent is not None:
        more = -a.shape[-1] % LANES
        a = pad(a, 0, rows, more)
        agent = pad(agent[0], units, more), pad(agent[1], more, -agent[1].shape[-1] % LANES)
    start = jax.tree.map(lambda array: pad(array, 0, rows, units), start)
    h, c, slot = _states(
        plan, pad_gates(z, 0, rows), *start, pad_gates(w_h, units), a, scores, agent
    )
    return h[:, :batch, :hidden], c[:, :batch, :hidden], slot[:, :batch, 0].astype(jnp.int32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _states(plan, z, h_0, c_0, w_h, a, scores, agent):
    """Return h, c and the slots of all steps; see `_padded_states`."""
    return _forward(plan, z, h_0, c_0, w_h, a, scores, agent)[0]


def _forward(plan, z, h_0, c_0, w_h, a, scores, agent):
    hidden = h_0.shape[-1]
    agent_h, agent_out = agent or (None, None)
    result = _run(
        partial(_forward_step, plan),
        by_step=dict(z=z, a=a, scores=scores),
        whole=dict(w_h=w_h, agent_h=agent_h, agent_out=agent_out, h_0=h_0, c_0=c_0),
        results=dict(h=hidden, c=hidden, gates=4 * hidden, slot=LANES),
        scratch=dict(past_h=h_0.shape, past_c=c_0.shape),
        name="lstm_forward",
    )
    states = result.h, result.c, result.slot
    return states, (*states, result.gates, h_0, c_0, w_h, a, scores, agent)


def _forward_step(plan: Plan, ref: SimpleNamespace) -> None:
    """Run step t of Eq. 1 and 2; `ref` has the references of `_forward`."""
    t = pl.program_id(0)
    K = plan.max_skip

    @pl.when(t == 0)
    def _():
        ref.past_h[...] = ref.h_0[...]
        ref.past_c[...] = ref.c_0[...]

    # The choice, and the state that enters.
    h = _at(ref.past_h, t + K - 1, K)
    c = _at(ref.past_c, t + K - 1, K)
    if plan.slot is None:
        scores = ref.scores[0]
        if plan.asks_agent:
            units = jnp.tanh(ref.a[0] + _product(h, ref.agent_h[...]))
            scores += _product(units, ref.agent_out[...])
        lane = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 1)
        best = scores == jnp.max(scores, axis=1, keepdims=True)
        # The first of the best.
        slot = jnp.min(jnp.where(best, lane, LANES - 1), axis=1, keepdims=True)
        place = jax.lax.rem(t + K - 1 - slot, K)

        # Examples choose different rows, and registers have no gather: look at all K.
        def read(j: Any, found: tuple[Array, Array]) -> tuple[Array, Array]:
            is_here = place == j
            new = _at(ref.past_h, j, K), _at(ref.past_c, j, K)
            return tuple(jnp.where(is_here, *each) for each in zip(new, found, strict=True))

        h_in, c_in = jax.lax.fori_loop(0, K, read, (h, c), unroll=K <= 8)
        ref.slot[0] = jnp.broadcast_to(slot.astype(jnp.float32), ref.slot.shape[1:])
    else:
        h_in, c_in = (_at(past, t + K - 1 - plan.slot, K) for past in (ref.past_h, ref.past_c))
        ref.slot[0] = jnp.full(ref.slot.shape[1:], plan.slot, jnp.float32)
    if plan.mix != 1:
        mix = plan.mix
        h_in = mix * h_in + (1 - mix) * h
        c_in = mix * c_in + (1 - mix) * c

    # The cell.
    g, i, f, o = jnp.split(ref.z[0] + _product(h_in, ref.w_h[...]), 4, axis=1)
    g = jnp.tanh(g)
    i = jax.nn.sigmoid(i)
    f = jax.nn.sigmoid(f)
    o = jax.nn.sigmoid(o)
    c = g * i + c_in * f
    h = o * jnp.tanh(c)

    # Results, and the state for later steps.
    ref.h[0] = h
    ref.c[0] = c
    ref.gates[0] = jnp.concatenate([g, i, f, o], axis=1)
    here = pl.ds(jax.lax.rem(t, K), 1)
    ref.past_h[here] = h[None]
    ref.past_c[here] = c[None]


def _backward(plan, residuals, gradients):
    h, c, slot, gates, h_0, c_0, w_h, a, scores, agent = residuals
    time = h.shape[0]
    K = plan.max_skip
    rows = jnp.arange(time)[:, None] + K - 1 - slot[..., 0].astype(jnp.int32)

    def entered(start: Array, states: Array) -> Array:
        """Return the state that entered each step, (time, batch, hidden)."""
        history = jnp.concatenate([start, states])
        chosen = _rows(history, rows)
        return plan.mix * chosen + (1 - plan.mix) * history[K - 1 : -1]

    result = _run(
        partial(_backward_step, plan, time),
        by_step=dict(
            dh=gradients[0], dc=gradients[1], gates=gates, c_in=entered(c_0, c), c=c, slot=slot
        ),
        whole=dict(w_h=w_h),
        results=dict(dz=gates.shape[-1]),
        results_whole=dict(dh_0=h_0.shape, dc_0=c_0.shape),
        scratch=dict(past_dh=h_0.shape, past_dc=c_0.shape),
        name="lstm_backward",
        reverse=True,
    )
    # The gradient of W_h, from all steps at once.
    flat = (entered(h_0, h).astype(w_h.dtype), result.dz.astype(w_h.dtype))
    dw_h = jnp.einsum("tbh,tbz->hz", *flat, preferred_element_type=jnp.float32).astype(w_h.dtype)
    none = jax.tree.map(jnp.zeros_like, (a, scores, agent))
    return result.dz, result.dh_0, result.dc_0, dw_h, *none


_states.defvjp(_forward, _backward)


def _backward_step(plan: Plan, time: int, ref: SimpleNamespace) -> None:
    """Run the derivative of step t; `ref` has the references of `_backward`."""
    t = time - 1 - pl.program_id(0)
    K = plan.max_skip

    @pl.when(t == time - 1)
    def _():
        ref.past_dh[...] = jnp.zeros(ref.past_dh.shape)
        ref.past_dc[...] = jnp.zeros(ref.past_dc.shape)

    dh = ref.dh[0] + _at(ref.past_dh, t, K)
    dc = ref.dc[0] + _at(ref.past_dc, t, K)
    # The place is now that of State(t-K), to which later steps sent nothing.
    here = pl.ds(jax.lax.rem(t, K), 1)
    ref.past_dh[here] = ref.past_dc[here] = jnp.zeros((1, *dh.shape), jnp.float32)

    # The cell.
    g, i, f, o = jnp.split(ref.gates[0], 4, axis=1)
    tanh_c = jnp.tanh(ref.c[0])
    dc += dh * o * (1 - tanh_c * tanh_c)
    dg = dc * i * (1 - g * g)
    di = dc * g * i * (1 - i)
    df = dc * ref.c_in[0]
    do = dh * tanh_c * o * (1 - o)
    dz = jnp.concatenate([dg, di, df * f * (1 - f), do], axis=1)
    ref.dz[0] = dz
    transposed = dict(
        dimension_numbers=(((1,), (1,)), ((), ())), preferred_element_type=jnp.float32
    )
    d_in = [jax.lax.dot_general(dz.astype(ref.w_h.dtype), ref.w_h[...], **transposed), dc * f]

    # The states that entered.
    pasts = ref.past_dh, ref.past_dc
    if plan.mix != 1:
        mix = plan.mix
        newest = pl.ds(jax.lax.rem(t + K - 1, K), 1)
        for past, d in zip(pasts, d_in, strict=True):
            past[newest] += (1 - mix) * d[None]
        d_in = [mix * d for d in d_in]
    if plan.slot is None:
        place = jax.lax.rem(t + K - 1 - ref.slot[0][:, :1].astype(jnp.int32), K)

        def send(j: int, _: None) -> None:
            for past, d in zip(pasts, d_in, strict=True):
                past[pl.ds(j, 1)] += jnp.where(place == j, d, 0.0)[None]

        jax.lax.fori_loop(0, K, send, None, unroll=K <= 8)
    else:
        there = pl.ds(jax.lax.rem(t + K - 1 - plan.slot, K), 1)
        for past, d in zip(pasts, d_in, strict=True):
            past[there] += d[None]

    @pl.when(t == 0)
    def _():
        ref.dh_0[...] = ref.past_dh[...]
        ref.dc_0[...] = ref.past_dc[...]


def _at(past: Any, row: Any, K: int) -> Float[Array, "batch hidden"]:
    return past[pl.ds(jax.lax.rem(row, K), 1)][0]


def _product(x: Float[Array, "batch in"], w: Float[Array, "in out"]) -> Float[Array, "batch out"]:
    """Return x w, multiplied in the dtype of `w` and summed in float32."""
    return jnp.dot(x.astype(w.dtype), w, preferred_element_type=jnp.float32)


def _run(
    step: Callable[[SimpleNamespace], None],
    *,
    by_step: Mapping[str, Array | None],
    whole: Mapping[str, Array | None],
    results: Mapping[str, int],
    scratch: Mapping[str, tuple[int, ...]],
    name: str,
    results_whole: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
    reverse: bool = False,
) -> SimpleNamespace:
    """Run `step` once for each step, one after another; return the results by name, in float32.

    Args:
        step: Function of the references of all arrays, by name.
        by_step: Inputs of which a step sees its own part, (time, batch, width).
        whole: Inputs that stay in fast memory for all steps.
        results: Width of each result, (time, batch, width).
        scratch: Shape of the float32 arrays that pass from one step to the next.
        name: Name of the kernel in profiles.
        results_whole: Shape of the results that all steps share.
        reverse: Whether to begin with the last step.
    """
    by_step, whole = ({k: v for k, v in each.items() if v is not None} for each in (by_step, whole))
    time, batch = next(iter(by_step.values())).shape[:2]
    widths = {**{name: array.shape[-1] for name, array in by_step.items()}, **results}
    shared = [*results_whole.values(), *scratch.values()]
    size = sum(array.size * array.dtype.itemsize for array in whole.values())
    # Two parts of each array of steps are there at once.
    size += 4 * (2 * batch * sum(widths.values()) + sum(map(math.prod, shared)))
    if size > FAST_MEMORY:
        raise UserError(
            f"implementation 'tpu_kernel' has {FAST_MEMORY >> 20} MiB of fast memory, and this "
            f"layer needs {size >> 20}: use 'auto', or fewer units, sequences or states"
        )

    def index(t: Any) -> tuple[Any, int, int]:
        """Return the place of the block of an array of steps that step t of the grid sees."""
        return (time - 1 - t if reverse else t), 0, 0

    rows = {name: pl.BlockSpec((1, batch, width), index) for name, width in widths.items()}
    resident = pl.BlockSpec(memory_space=pltpu.VMEM)
    names = (*by_step, *whole, *results, *results_whole, *scratch)
    shapes = [*((time, batch, width) for width in results.values()), *results_whole.values()]

    def kernel(*refs: Any) -> None:
        step(SimpleNamespace(**dict(zip(names, refs, strict=True))))

    outputs = pl.pallas_call(
        kernel,
        grid=(time,),
        name=name,
        in_specs=[*(rows[name] for name in by_step), *(resident for _ in whole)],
        out_specs=[*(rows[name] for name in results), *(resident for _ in results_whole)],
        out_shape=[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes],
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
        compiler_params=pltpu.CompilerParams(vmem_limit_bytes=FAST_MEMORY + 20 * 2**20),
    )(*by_step.values(), *whole.values())
    return SimpleNamespace(**dict(zip((*results, *results_whole), outputs, strict=True)))
