"""The fused unroll: what scanning `recurrent_step` means, with a derivative of its own and fewer passes over
memory.

For any transition, skip over time and skip over depth. The equations are those of the pieces themselves; what
stands here is where products are taken and what is kept:

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
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from dynskip_jax.functional.fused_loop import Loop, Plan, last_rows, observe_all_steps, run
from dynskip_jax.functional.fused_step import plan_step
from dynskip_jax.functional.layout import as_varying
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.recurrence import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    StepInputs,
    in_dtype,
    in_dtype_of,
    select_state,
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
) -> tuple[SkipCarry, SkipOutput]:
    """Does what scanning `recurrent_step` over `inputs` does.

    Reverse-mode derivatives only: forward mode (`jax.jvp`) needs the reference unroll.

    Args:
        params: the layer's weights.
        carry: the state to start from.
        inputs: `project_inputs` of all steps, (batch, time, ...), at least one.
        recurrence: what the layer computes.
        seq_lengths: true lengths, (batch,), that `inputs.valid` was made of.
        policy: how choices are made.
        return_cell_state: put the internal states into the output.

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).
    """
    skip, transition = recurrence.time_skip, recurrence.transition
    inputs = in_dtype_of(carry, inputs)
    projected = jax.tree.leaves((inputs.transition, inputs.depth, inputs.zoneout_mask))
    batch, time = projected[0].shape[:2]
    dtype = carry.slots[0].dtype
    mix = in_dtype(skip.mix if policy.mix is None else policy.mix, dtype)
    steps = carry.step[:, None] + jnp.arange(time)[None, :]
    keys = None if carry.key is None else jnp.broadcast_to(carry.key[:, None], (batch, time))
    mask = policy.mask
    if mask is not None and mask.ndim == 2:
        mask = mask[:, None]
    at_all = dataclasses.replace(policy, temperature=jnp.asarray(policy.temperature, dtype), mask=mask)
    seen = skip_inputs(recurrence, inputs, steps, keys, dtype, at_all)

    fields = transition.state._fields
    observed = fields.index(skip.observed_array(transition))
    if observed == 0 and _moves_nothing(skip, mix, carry):
        return _choices_behind(
            params, carry, inputs, recurrence, seen, policy.mode, seq_lengths, return_cell_state
        )

    # The first choice is the reference's; the loop makes the choices from the second step on.
    at_first = jax.tree.map(lambda leaf: leaf[:, 0], inputs)
    entered, choice, _, skip_state = select_state(params, carry, at_first, recurrence, policy)
    first = (carry.step == 0) if skip.forgets_carried else None
    if first is not None and seq_lengths is not None:
        first = first & (seq_lengths > 0)
    whole = {0, observed} | ({fields.index(transition.cell_state)} if return_cell_state else set())
    step_plan = plan_step(recurrence, params, inputs, entered, choice.update, carry.recurrent_mask)
    plan = Plan(
        step=step_plan,
        mode=policy.mode,
        mix=float(mix) if isinstance(mix, int | float) else 1.0,
        differentiable=skip.differentiable(policy.mode, inputs.action is not None),
        observed=observed,
        whole=tuple(sorted(whole)),
    )
    matrices, vectors = step_plan.split(params)
    loop = Loop(
        inputs=tuple(projected),
        matrices=matrices,
        vectors=vectors,
        entered=entered,
        previous=None if skip.writes_all and inputs.zoneout_mask is None else carry.state,
        slots=jax.tree.map(partial(oldest_first, first=first), carry.slots),
        choice=choice,
        skip_state=skip_state,
        skip=params.skip,
        seen=seen,
        mix=None if isinstance(mix, int | float) else mix,
        recurrent_mask=carry.recurrent_mask,
        seq_lengths=seq_lengths,
    )
    result = run(plan, as_varying(loop, carry.step))

    histories = dict(zip(plan.whole, result.whole, strict=True))
    lasts = dict(zip(plan.others, result.last, strict=True))
    lasts |= {i: last_rows(history, seq_lengths, plan.K) for i, history in histories.items()}
    taken = time if seq_lengths is None else seq_lengths.astype(carry.step.dtype)
    end = carry._replace(
        slots=transition.state(*(jnp.flip(lasts[i], 1) for i in range(len(fields)))),
        step=carry.step + taken,
        skip_state=jax.tree.map(partial(_at_end, seq_lengths), result.skip_states, carry.skip_state),
    )
    observations = observe_all_steps(plan, histories[observed], time)
    before = jax.tree.map(
        lambda skip_state, skip_states: jnp.concatenate([skip_state[:, None], skip_states[:, :-1]], 1),
        carry.skip_state,
        result.skip_states,
    )
    decision = skip.decide(params.skip, seen, observations, before, result.choices, policy.mode)
    cell_state = histories[fields.index(transition.cell_state)][:, plan.K :] if return_cell_state else None
    output = SkipOutput(histories[0][:, plan.K :], decision, cell_state)
    if inputs.valid is not None:
        output = where_each(inputs.valid, output, 0)
    return end, output


def _choices_behind(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    seen: SkipInputs,
    mode: str,
    seq_lengths: Int[Array, " batch"] | None,
    return_cell_state: bool,
) -> tuple[SkipCarry, SkipOutput]:
    """What `fused_unroll` returns where no choice moves a state: a plain layer, then all choices at once."""
    skip = recurrence.time_skip
    end, output = fused_unroll(
        params._replace(skip=None),
        carry,
        inputs._replace(skip=None, action=None),
        dataclasses.replace(recurrence, time_skip=Previous(max_skip=skip.max_skip)),
        seq_lengths=seq_lengths,
        return_cell_state=return_cell_state,
    )
    history = jnp.concatenate([oldest_first(carry.slots[0], None), output.h], axis=1)
    observations = observed_in(history, skip.observed, skip.max_skip, output.h.shape[1])
    choices, _ = skip.choose(params.skip, seen, observations, carry.skip_state, mode)
    decision = skip.decide(params.skip, seen, observations, carry.skip_state, choices, mode)
    if inputs.valid is not None:
        decision = where_each(inputs.valid, decision, 0)
    return end, output._replace(decision=decision)


def _moves_nothing(skip: TimeSkip, mix: Any, carry: SkipCarry) -> bool:
    """Whether no choice changes any state, so that all can be made behind the loop: λ is 0 for good."""
    is_zero = isinstance(mix, int | float) and mix == 0
    keeps_order = skip.writes_all and not skip.forgets_carried and not jax.tree.leaves(carry.skip_state)
    return is_zero and keeps_order and skip.fixed_slot is None


def _at_end(seq_lengths: Int[Array, " batch"] | None, skip_states: Array, before: Array) -> Array:
    """What the time skip carries after each sequence's last step."""
    if seq_lengths is None:
        return skip_states[:, -1]
    rows = jnp.maximum(seq_lengths - 1, 0).reshape((-1,) + (1,) * (skip_states.ndim - 1))
    last = jnp.take_along_axis(skip_states, rows, axis=1)[:, 0]
    return where_each(seq_lengths > 0, last, before)
