"""The fused unroll: a scan of `recurrent_step` with a derivative of its own and fewer passes over memory.

It runs any transition, skip over time and skip over depth by calling their equations. This module decides
where matrices are multiplied and which results are stored for the backward pass:

* A step multiplies through `dense` alone. The forward loop keeps each result, after its activation; the
  backward loop differentiates the step with `jax.vjp`, a kept result standing for each product, and sends d
  wᵀ to what was multiplied. The gradient of every matrix is one product after the loop, instead of a sum
  inside it; so is that of a vector that is only added to products.
* A result takes the place of the projected input it was added to, and its gradient takes the place of the
  result. Other results have arrays of their own. But for the weights of choices that weigh all K
  states, nothing that is kept for the backward pass grows with K.
* A sampled agent learns from its log-probabilities alone (`stop_gradient`), so the loop only has to know
  what was chosen; log-probabilities and entropies of all steps are computed at once behind it.
* With λ = 0 no choice changes a state: the loop is that of a plain layer, and all choices are made at once
  behind it.
* Every array that the loop fills is written in place. XLA copies a whole array whenever a loop still reads
  an old version of it, so each iteration writes first and then reads what the next one needs.
* σ(x) = (1 + tanh(x / 2)) / 2: one tanh for all gates of a product.

A history below lists one array of the states, oldest first along the time axis, (batch, K + time, hidden):
the K states that were there before, then one per step, so that State(t - k) is row t + K - k.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.fused_loop import Loop, Plan, Result, run
from dynskip_jax.functional.fused_states import last_rows
from dynskip_jax.functional.fused_step import plan_step
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.recurrence import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    StepInputs,
    in_dtype,
    in_dtype_of,
    skip_inputs,
)
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.stored import observed_in, oldest_first
from dynskip_jax.functional.time_skips import Previous, SkipInputs, TimeSkip


def fused_unroll(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
    scan_unroll: int = 1,
) -> tuple[SkipCarry, SkipOutput]:
    """Compute what a scan of `recurrent_step` over `inputs` computes.

    It has reverse-mode derivatives of any order, and forward mode over them (`jax.hessian`, or `jax.jvp` of
    `jax.grad`). Forward mode on its own (`jax.jvp`, `jax.jacfwd`) needs the reference unroll.

    Args:
        params: the layer's weights.
        carry: the state to start from.
        inputs: `project_inputs` of all steps, (batch, time, ...), at least one.
        recurrence: what the layer computes.
        seq_lengths: true lengths, (batch,), from which `inputs.valid` was made.
        policy: how choices are made.
        return_cell_state: put the internal states into the output.
        scan_unroll: steps per iteration of the compiled loops.

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).

    Raises:
        ProductsOutOfReach: the transition calls `dense` inside a transformation of its own.
    """
    skip, transition = recurrence.time_skip, recurrence.transition
    inputs = in_dtype_of(carry, inputs)
    mix = in_dtype(skip.mix if policy.mix is None else policy.mix, carry.slots[0].dtype)
    for_choices = _inputs_of_choices(recurrence, inputs, carry, policy)
    options = dict(seq_lengths=seq_lengths, return_cell_state=return_cell_state, scan_unroll=scan_unroll)
    observed = transition.state._fields.index(skip.observed_array(transition))
    if observed == 0 and _choices_are_inert(skip, mix, carry):
        return _unroll_without_skip(params, carry, inputs, recurrence, for_choices, policy.mode, **options)

    full_histories = {0, observed}
    if return_cell_state:
        full_histories.add(transition.state._fields.index(transition.cell_state))
    step_plan = plan_step(recurrence, params, inputs, carry.state, not skip.writes_all, carry.recurrent_mask)
    plan = Plan(
        step=step_plan,
        mode=policy.mode,
        mix=float(mix) if isinstance(mix, int | float) else None,
        differentiable=skip.differentiable(policy.mode, inputs.action is not None),
        reads_previous=not skip.writes_all or inputs.zoneout_mask is not None,
        observed=observed,
        full_histories=tuple(sorted(full_histories)),
        scan_unroll=scan_unroll,
    )
    result = run(plan, _arguments(plan, params, carry, inputs, for_choices, mix, seq_lengths))
    return _collect(plan, params, carry, inputs, for_choices, result, seq_lengths, return_cell_state)


def _inputs_of_choices(
    recurrence: Recurrence, inputs: StepInputs, carry: SkipCarry, policy: Policy
) -> SkipInputs:
    """Return what the choices of all steps need besides states."""
    batch, time = jax.tree.leaves(inputs.transition)[0].shape[:2]
    dtype = carry.slots[0].dtype
    steps = carry.step[:, None] + jnp.arange(time)[None, :]
    keys = None if carry.key is None else jnp.broadcast_to(carry.key[:, None], (batch, time))
    mask = policy.mask
    if mask is not None and mask.ndim == 2:
        mask = mask[:, None]
    policy = dataclasses.replace(policy, temperature=jnp.asarray(policy.temperature, dtype), mask=mask)
    return skip_inputs(recurrence, inputs, steps, keys, dtype, policy)


def _arguments(
    plan: Plan,
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    for_choices: SkipInputs,
    mix: float | Float[Array, ""],
    seq_lengths: Int[Array, " batch"] | None,
) -> Loop:
    """Return the arguments of the loop."""
    matrices, vectors = plan.step.split(params)
    first = (carry.step == 0) if plan.skip.forgets_carried else None
    slots_first = first if first is None or seq_lengths is None else first & (seq_lengths > 0)
    return Loop(
        inputs=tuple(jax.tree.leaves((inputs.transition, inputs.depth, inputs.zoneout_mask))),
        matrices=matrices,
        vectors=vectors,
        newest=carry.state,
        slots=jax.tree.map(lambda slots: oldest_first(slots, slots_first), carry.slots),
        skip_state=carry.skip_state,
        skip=params.skip,
        skip_inputs=for_choices,
        mix=None if plan.mix is not None else mix,
        recurrent_mask=carry.recurrent_mask,
        seq_lengths=seq_lengths,
        first=first,
    )


def _collect(
    plan: Plan,
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    for_choices: SkipInputs,
    result: Result,
    seq_lengths: Int[Array, " batch"] | None,
    return_cell_state: bool,
) -> tuple[SkipCarry, SkipOutput]:
    """Return the last carry and the outputs, from what the loop returned."""
    skip, fields, K = plan.skip, plan.transition.state._fields, plan.K
    time = result.full_histories[0].shape[1] - K
    histories = dict(zip(plan.full_histories, result.full_histories, strict=True))
    tails = dict(zip(plan.tails, result.tails, strict=True))
    tails |= {i: last_rows(history, seq_lengths, K) for i, history in histories.items()}
    end = carry._replace(
        slots=plan.transition.state(*(jnp.flip(tails[i], 1) for i in range(len(fields)))),
        step=carry.step + (time if seq_lengths is None else seq_lengths.astype(carry.step.dtype)),
        skip_state=jax.tree.map(lambda leaf: last_rows(leaf, seq_lengths, 1)[:, 0], result.skip_states),
    )
    observations = observed_in(histories[plan.observed], skip.observed, K, time)
    before = jax.tree.map(lambda leaf: leaf[:, :-1], result.skip_states)
    decision = skip.decide(params.skip, for_choices, observations, before, result.choices, plan.mode)
    cell_state = histories[fields.index(plan.transition.cell_state)][:, K:] if return_cell_state else None
    output = SkipOutput(histories[0][:, K:], decision, cell_state)
    if inputs.valid is not None:
        output = where_each(inputs.valid, output, 0)
    return end, output


def _unroll_without_skip(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    for_choices: SkipInputs,
    mode: str,
    **options: Any,
) -> tuple[SkipCarry, SkipOutput]:
    """Run a layer without a skip, then make all choices at once."""
    skip = recurrence.time_skip
    end, output = fused_unroll(
        params._replace(skip=None),
        carry,
        inputs._replace(skip=None, action=None),
        dataclasses.replace(recurrence, time_skip=Previous(max_skip=skip.max_skip)),
        **options,
    )
    history = jnp.concatenate([oldest_first(carry.slots[0], None), output.h], axis=1)
    observations = observed_in(history, skip.observed, skip.max_skip, output.h.shape[1])
    choices, _ = skip.choose(params.skip, for_choices, observations, carry.skip_state, mode)
    decision = skip.decide(params.skip, for_choices, observations, carry.skip_state, choices, mode)
    if inputs.valid is not None:
        decision = where_each(inputs.valid, decision, 0)
    return end, output._replace(decision=decision)


def _choices_are_inert(skip: TimeSkip, mix: Any, carry: SkipCarry) -> bool:
    """Return whether no choice changes any state, so that all can be made after the loop: λ is always 0."""
    is_zero = isinstance(mix, int | float) and mix == 0
    keeps_order = skip.writes_all and not skip.forgets_carried and not jax.tree.leaves(carry.skip_state)
    return is_zero and keeps_order and skip.fixed_slot is None
