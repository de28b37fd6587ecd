"""The fused unroll: a scan of `recurrent_step` with a custom derivative and fewer passes over memory.

It runs any transition, time skip and depth skip by calling their equations. `fused_loop.py` has the loop
over time, `fused_step.py` one step, and `fused_states.py` the reads of earlier states. They differ from a
plain scan in where matrices are multiplied and which results are stored for the backward pass:

* Products: A step multiplies only through `dense`. The forward loop stores the result of each product,
  after its activation. The backward loop differentiates the step with `jax.vjp`, uses the stored result in
  place of the product, and sends d wᵀ to the product's operand, where d is the gradient of the product. The
  gradient of each matrix is one product after the loop, instead of a sum inside it. The gradient of a
  vector that is only added to products is also one sum after the loop.
* Memory: If a projected input is only added to one product, the result overwrites the input, and the
  gradient later overwrites the result. Other results have separate buffers. Per step, the loop stores
  nothing whose size grows with K, except the weights of choices that average all K states.
* Sampled choices: A sampled agent gets its gradient only from its log-probabilities, and `stop_gradient`
  keeps this gradient from the states. So the loop stores only the choices. The log-probabilities and
  entropies of all steps are computed at once after the loop.
* λ = 0: No choice changes a state. So the loop is that of a layer without a skip, and all choices are made
  at once after the loop.
* Writes in place: XLA copies a whole array if a loop writes to it and still reads the old version. So each
  iteration writes first, and then reads the rows that the next iteration needs.
* Activations: σ(x) = (1 + tanh(x / 2)) / 2, so one tanh computes all gates of a product.

A history, below, is one array of the state over time, oldest first, (batch, K + time, hidden). It has the K
states before the first step, and then one state per step. State(t-k) is row t + K - k.
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
    """Compute the results of a scan of `recurrent_step` over `inputs`.

    Reverse-mode derivatives of any order work, and so does forward mode over reverse mode (`jax.hessian`, or
    `jax.jvp` of `jax.grad`). Forward mode without reverse mode (`jax.jvp`, `jax.jacfwd`) needs the reference
    unroll.

    Args:
        params: Weights of the layer.
        carry: State to start from.
        inputs: Result of `project_inputs` for all steps, (batch, time, ...); there is at least one step.
        recurrence: Time skip, transition and depth skip of the layer.
        seq_lengths: True lengths, (batch,), from which `inputs.valid` was computed; None if all sequences
            have `time` steps.
        policy: How choices are made.
        return_cell_state: Whether to return the cell state of each step in the outputs.
        scan_unroll: Steps per iteration of the compiled loops.

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).

    Raises:
        ProductsOutOfReach: If the transition calls `dense` inside `jax.checkpoint`, `lax.scan` or `jax.jit`.
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
    """Return the inputs of the choices at all steps that need no state."""
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
    """Return the arguments of the loop, `run`."""
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
    """Return the last carry and the outputs, computed from the result of the loop."""
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
    """Run the layer as one without a time skip, then make the choices of all steps at once."""
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
    """Return whether choices change no state because λ is the constant 0: they can be made after the loop."""
    is_zero = isinstance(mix, int | float) and mix == 0
    keeps_order = skip.writes_all and not skip.forgets_carried and not jax.tree.leaves(carry.skip_state)
    return is_zero and keeps_order and skip.fixed_slot is None
