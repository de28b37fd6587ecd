"""The fused unroll: a scan over time with a derivative that passes over memory a few times only.

All arrays of the loop have the time axis first. `problem.py` prepares the loop, `step.py` has the
step of both loops, and `forward.py` and `backward.py` run them; `backward.py` says how it differs
from JAX's own derivative of the scan. Choices' log-probabilities and entropies are computed for all
steps after the loop.
"""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import CustomVJPPrimal, SymbolicZero
from jaxtyping import Array, Float

from dynskip_jax.functional.engine import history as hist
from dynskip_jax.functional.engine.backward import Residuals, ResultCotangents, run_backward
from dynskip_jax.functional.engine.forward import (
    Result,
    followed_of_all,
    observations_of_all,
    run_forward,
)
from dynskip_jax.functional.engine.problem import (
    Arguments,
    Clock,
    Flags,
    Layer,
    make_clock,
    prepare,
)
from dynskip_jax.functional.engine.trees import swap_time_and_batch
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.step import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    StepInputs,
    in_dtype,
    in_dtype_of,
    mix_of,
    skip_inputs,
)
from dynskip_jax.functional.time_skips import Previous, SkipInputs, TimeSkip
from dynskip_jax.functional.time_skips.calls import decide, make_choice


def fused_unroll(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    *,
    initial: Any = None,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    return_cell_state: bool = False,
) -> tuple[SkipCarry, SkipOutput]:
    """Compute the results of a scan of `recurrent_step` over `inputs`.

    Reverse-mode derivatives of any order work, and so does forward mode over reverse mode
    (`jax.hessian`, or `jax.jvp` of `jax.grad`). Forward mode alone (`jax.jvp`, `jax.jacfwd`) needs
    the reference unroll.

    `inputs` are those of all steps, at least one, (time, batch, ...). Outputs are (batch, time,
    ...). See `unroll` for the other arguments. A transition that calls `dense` inside another
    program, or with other arrays than (batch, features), raises `OutOfReach`.
    """
    skip = recurrence.time_skip
    dtype = carry.dtype

    # What needs no state, for all steps at once.
    inputs = in_dtype_of(carry, inputs)
    mix = in_dtype(mix_of(skip, policy), dtype)
    clock = make_clock(carry, inputs, skip.max_skip)
    given = skip_inputs(recurrence, inputs, clock.step, clock.key, dtype, policy)

    # With λ = 0 no choice changes a state: the loop is that of a layer without a skip, and choices
    # are made for all steps after it.
    inert = _is_inert(recurrence, mix, carry)
    params_of_loop = params
    recurrence_of_loop = recurrence
    given_of_loop = given
    if inert:
        params_of_loop = params._replace(skip=None)
        without_skip = Previous(max_skip=skip.max_skip)
        recurrence_of_loop = dataclasses.replace(recurrence, time_skip=without_skip)
        given_of_loop = SkipInputs(step=clock.step)
    layer, args = prepare(
        params_of_loop,
        carry,
        inputs,
        recurrence_of_loop,
        given_of_loop,
        mix=mix,
        initial=initial,
        clock=clock,
        mode=policy.mode,
    )
    recent_inputs_RBF = _recent_inputs(skip, carry, inputs)
    if not inert:
        args = args._replace(recent_inputs=recent_inputs_RBF)
    result = _run(layer, args)

    # The decisions of all steps, from what each observed. Here, outside the loop, log π has its
    # gradient.
    histories_RBH = result.histories
    observations = observations_of_all(recurrence, args, histories_RBH)
    given, before, choices = swap_time_and_batch((given, result.before, result.choices))
    given = given._replace(followed=followed_of_all(recent_inputs_RBF, skip.max_skip, clock.alive))
    if inert:
        choices, _ = make_choice(skip, params.skip, given, observations, before, policy.mode)
    decision = decide(skip, params.skip, given, observations, choices, policy.mode)

    # Outputs, and the carry after the last step. Row K + t of a history is State(t).
    cell_state_RBH = None
    if return_cell_state:
        cell_state_RBH = getattr(histories_RBH, recurrence.transition.cell_state)
    states_TBH = jax.tree.map(lambda rows: rows[layer.K :], (histories_RBH[0], cell_state_RBH))
    h, cell_state = swap_time_and_batch(states_TBH)
    output = SkipOutput(h, decision, cell_state)
    if inputs.valid is not None:
        output = where_each(swap_time_and_batch(inputs.valid), output, 0)
    last_inputs = None
    if recent_inputs_RBF is not None:
        last_inputs = _last_inputs(args.flags, recent_inputs_RBF, skip.max_skip, clock)
    return _end(layer, args, carry, result, clock, last_inputs), output


def _is_inert(recurrence: Recurrence, mix: Any, carry: SkipCarry) -> bool:
    """Return whether choices change no state, because λ is the constant 0."""
    if not isinstance(mix, int | float) or mix != 0:
        return False
    skip = recurrence.time_skip
    keeps_order = skip.writes_all and not skip.forgets_carried
    return keeps_order and skip.fixed_slot is None and not jax.tree.leaves(carry.skip_state)


# The loop with its own derivative.


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _run(layer: Layer, args: Arguments) -> Result:
    result, _ = run_forward(layer, args)
    return result


def _forward(layer: Layer, args: Arguments) -> tuple[Result, Residuals]:
    # With `symbolic_zeros`, JAX wraps each argument.
    def is_primal(leaf: Any) -> bool:
        return isinstance(leaf, CustomVJPPrimal)

    args = jax.tree.map(lambda primal: primal.value, args, is_leaf=is_primal)
    result, kept = run_forward(layer, args)
    args = args._replace(inputs=kept.inputs)
    return result, Residuals(args, result, kept.results, kept.entering)


def _backward(layer: Layer, residuals: Residuals, d_result: Result) -> tuple[Arguments]:
    def none_if_zero(leaf: Any) -> Any:
        if isinstance(leaf, SymbolicZero) or leaf.dtype == jax.dtypes.float0:
            return None
        return leaf

    d_result = jax.tree.map(none_if_zero, d_result)
    return (run_backward(layer, residuals, ResultCotangents(*d_result)),)


_run.defvjp(_forward, _backward, symbolic_zeros=True)


# Inputs that choices observe, and the next carry.


def _recent_inputs(
    skip: TimeSkip, carry: SkipCarry, inputs: StepInputs
) -> Float[Array, "rows batch in"] | None:
    """Return the inputs that choices observe, oldest first; None if they observe none."""
    if inputs.x is None:
        return None
    earlier = carry.recent_inputs
    if skip.is_stochastic:
        earlier = jax.lax.stop_gradient(earlier)
    earlier_KBF = jnp.flip(jnp.moveaxis(earlier, 1, 0), axis=0)
    return jnp.concatenate([earlier_KBF, inputs.x])


def _last_inputs(
    flags: Flags, recent_inputs_RBF: Float[Array, "rows batch in"], K: int, clock: Clock
) -> Float[Array, "batch K_less_one in"]:
    """Return the last K - 1 inputs of each sequence, newest first, for the next carry."""
    lengths = hist.lengths_of(flags.valid, jnp.int32)
    rows_KBF = hist.last_rows(recent_inputs_RBF, lengths, K - 1)
    if clock.last is not None:
        _, _, alive = clock.last
        rows_KBF = hist.living(rows_KBF, alive, jnp.zeros_like(recent_inputs_RBF[0]))
    return jnp.moveaxis(jnp.flip(rows_KBF, 0), 0, 1)


def _end(
    layer: Layer,
    args: Arguments,
    carry: SkipCarry,
    result: Result,
    clock: Clock,
    recent_inputs: Float[Array, "batch K_less_one in"] | None,
) -> SkipCarry:
    """Return the carry after the last step of each sequence, which has these `recent_inputs`."""
    lengths = hist.lengths_of(args.flags.valid, carry.step.dtype)

    def last_rows(history_RBH: Array) -> Array:
        return hist.last_rows(history_RBH, lengths, layer.K)

    def newest_first(slots_KBH: Array) -> Array:
        return jnp.moveaxis(jnp.flip(slots_KBH, 0), 0, 1)

    slots_KBH = jax.tree.map(last_rows, result.histories)
    count = lengths
    if lengths is None:
        count = args.time
    step = carry.step + count
    key = carry.key
    if clock.last is not None:
        step, key, alive = clock.last
        slots_KBH = jax.tree.map(
            lambda rows, initial: hist.living(rows, alive, initial), slots_KBH, args.initial
        )
    slots = jax.tree.map(newest_first, slots_KBH)
    end = carry.with_slots(slots, recent_inputs)
    return end._replace(step=step, key=key, skip_state=result.last)
