"""What is known before a loop runs: static facts (`Layer`) and arrays (`Arguments`).

Names end in the axes of their arrays where a reader must know which one is time: T steps, B
examples, H features, K states before a step, and R = K + T rows of a history. Arrays that begin
with K or R have the oldest state first. Slots, as those of a carry, are counted from the newest.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional.engine import history as hist
from dynskip_jax.functional.engine.deferred import Matrix, Product, find_products
from dynskip_jax.functional.engine.read import Read
from dynskip_jax.functional.keys import fold_in_each
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.step import LayerParams, Recurrence, SkipCarry, StepInputs, cell_step
from dynskip_jax.functional.time_skips import Choice, SkipInputs


class Clock(NamedTuple):
    """Number and key of each step, which start again where a sequence begins inside a row."""

    step: Int[Array, "time batch"]  # number of steps before each step
    key: Any  # PRNG key of each step, (time, batch); None without keys
    alive: Int[Array, "time batch"] | None = None  # see `Flags`
    last: Any = None  # step number, key and `alive` after the last step; None if no row is packed


def make_clock(carry: SkipCarry, inputs: StepInputs, K: int) -> Clock:
    """Count the steps of an unroll that begins with `carry`."""
    time, batch = jax.tree.leaves(inputs.transition)[0].shape[:2]
    if inputs.restart is None:
        step_TB = carry.step[None] + jnp.arange(time, dtype=carry.step.dtype)[:, None]
        key_TB = None
        if carry.key is not None:
            key_TB = jnp.broadcast_to(carry.key, (time, batch))
        return Clock(step_TB, key_TB)

    # In a packed row a sequence begins at step 0 with a new key and no slots of its own, as
    # `reset_carry` makes it. Padding stops the clock.
    def tick(state, x):
        restart, valid = x
        step, key, alive = state
        new_key = None
        if key is not None:
            new_key = fold_in_each(key, step)
        begun = (jnp.zeros_like(step), new_key, jnp.zeros_like(alive))
        step, key, alive = where_each(restart, begun, state)
        after = (step + 1, key, alive + 1)
        return where_each(valid, after, state), (step, key, alive)

    valid_TB = inputs.valid
    if valid_TB is None:
        valid_TB = jnp.ones_like(inputs.restart)
    start = (carry.step, carry.key, jnp.full_like(carry.step, K))
    last, (step_TB, key_TB, alive_TB) = lax.scan(tick, start, (inputs.restart & valid_TB, valid_TB))
    return Clock(step_TB, key_TB, alive_TB, last)


class Flags(NamedTuple):
    """Flags of a step, (batch,), or of all, (time, batch); None where all steps are alike."""

    valid: Bool[Array, "*time batch"] | None = None  # False past the end of a sequence
    # True where the carried state enters and is forgotten afterwards (`TimeSkip.forgets_carried`)
    first: Bool[Array, "*time batch"] | None = None
    # Number of slots with states of the present sequence of a packed row: the number of steps
    # since it began, or K for the first one. The other slots contain the initial state
    alive: Int[Array, "*time batch"] | None = None


class Arguments(NamedTuple):
    """Arrays of an unroll; None for what a layer does not have."""

    inputs: Sequence[Array]  # projected inputs, (time, batch, ...) each
    matrices: tuple[Array, ...]  # matrices that `dense` multiplies by
    params: Any  # parameters of the transition and the depth skip, with a `Matrix` for each matrix
    newest: Any  # State(-1), each array (batch, hidden)
    # The K states before the first step, oldest first, with which the histories begin: each array
    # (K, batch, hidden)
    first_rows: Any
    skip_state: Any  # state of the time skip
    skip: Any  # parameters of the time skip
    given: SkipInputs  # inputs of the choices that need no state, (time, batch, ...)
    mix: Float[Array, ""] | None  # λ as an array; None if it is a number, which is static
    # Recurrent dropout mask of the h that enters a step
    recurrent_mask: Float[Array, "batch hidden"] | None
    initial: Any  # initial state of the sequences that begin inside a packed row
    flags: Flags  # of each step
    # Inputs that choices observe, oldest first: K - 1 before the first step, then one per step
    recent_inputs: Float[Array, "rows batch in"] | None = None

    @property
    def time(self) -> int:
        """Number of steps."""
        return self.given.step.shape[0]


@dataclasses.dataclass(frozen=True)
class Layer:
    """Static facts about an unroll."""

    recurrence: Recurrence  # time skip, transition and depth skip
    mode: str  # mode of the policy
    mix: float | None  # λ; None if it is an array
    differentiable: bool  # whether gradients flow through choices
    inputs: Any  # pytree structure of the projected inputs
    products: tuple[Product, ...] = ()  # calls of `dense` in a step

    @property
    def K(self) -> int:
        """Number of slots."""
        return self.recurrence.time_skip.max_skip

    @property
    def reaches_back(self) -> bool:
        """Whether a step reads a state other than State(t-1)."""
        skip = self.recurrence.time_skip
        return skip.fixed_slot != 0 or skip.observation_kind != "previous"

    @property
    def input_of_product(self) -> dict[int, int]:
        """Index of the projected input that each product owns: nothing else reads this input.

        The forward loop overwrites a row of an owned input by the product's result, which the
        backward loop needs, and the backward loop overwrites that by the input's gradient.
        """
        return {n: product.input for n, product in enumerate(self.products) if product.owns_input}

    def read(self, choice: Choice) -> Read:
        """Return how the states of a choice are read from the histories."""
        slot = self.recurrence.time_skip.fixed_slot
        if slot is None:
            slot = choice.slot
        return Read(self.recurrence.transition, self.K, slot, choice.weights)

    def cell(self, dense, params, inputs, entering, newest, update, recurrent_mask) -> Any:
        """Return the result of `cell_step`, called with a placeholder for each matrix."""
        transition, depth = params
        transition_inputs, depth_inputs, zoneout_mask = jax.tree.unflatten(self.inputs, inputs)
        x = StepInputs(transition_inputs, depth=depth_inputs, zoneout_mask=zoneout_mask)
        params = LayerParams(transition, depth=depth)
        return cell_step(
            params, x, entering, newest, update, self.recurrence, recurrent_mask, dense
        )


def prepare(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    given: SkipInputs,
    *,
    mix: Any,
    initial: Any,
    clock: Clock,
    mode: str,
) -> tuple[Layer, Arguments]:
    """Return the static facts about an unroll, and its arrays."""
    skip = recurrence.time_skip

    # A number λ is a static fact, because λ = 1 saves the mixing. An array is an argument.
    mix_number = mix_array = None
    if isinstance(mix, int | float):
        mix_number = float(mix)
    else:
        mix_array = mix

    matrices, cell_params = _hide_matrices((params.transition, params.depth))

    # Projected inputs are a flat list, so that a product can own one of them.
    projected, input_structure = jax.tree.flatten(
        (inputs.transition, inputs.depth, inputs.zoneout_mask)
    )

    # The carried state of a skip that forgets it is no longer there after the first step.
    is_forgotten = None
    if skip.forgets_carried:
        is_forgotten = carry.step == 0
        if inputs.valid is not None:
            is_forgotten = is_forgotten & inputs.valid[0]

    def oldest_first(slots_BKH: Any) -> Array:
        return jnp.moveaxis(hist.oldest_first(slots_BKH, is_forgotten), 1, 0)

    newest = carry.state
    first_rows_KBH = jax.tree.map(oldest_first, carry.slots)
    first_TB = None
    if skip.forgets_carried:
        first_TB = clock.step == 0
    initial_of_packed = None
    if clock.alive is not None:
        initial_of_packed = initial
    args = Arguments(
        inputs=tuple(projected),
        matrices=matrices,
        params=cell_params,
        newest=newest,
        first_rows=first_rows_KBH,
        skip_state=carry.skip_state,
        skip=params.skip,
        given=given,
        mix=mix_array,
        recurrent_mask=carry.recurrent_mask,
        initial=initial_of_packed,
        flags=Flags(inputs.valid, first_TB, clock.alive),
    )
    layer = Layer(
        recurrence,
        mode,
        mix=mix_number,
        differentiable=skip.differentiable(mode, inputs.action is not None),
        inputs=input_structure,
    )
    return dataclasses.replace(layer, products=_products(layer, args, carry)), args


def _hide_matrices(params: Any) -> tuple[tuple[Array, ...], Any]:
    """Return the matrices of a tree, and the tree with a `Matrix` in the place of each."""
    leaves, structure = jax.tree.flatten(params)
    matrices = []
    for i, leaf in enumerate(leaves):
        if leaf.ndim > 1:
            leaves[i] = Matrix(len(matrices))
            matrices.append(leaf)
    return tuple(matrices), structure.unflatten(leaves)


def _products(layer: Layer, args: Arguments, carry: SkipCarry) -> tuple[Product, ...]:
    """Trace a step with the shapes of its arrays, and return its products."""
    # A skip that writes only a part needs a product for the rest, as `SkimLSTM` does.
    update = None
    if not layer.recurrence.time_skip.writes_all:
        update = jax.ShapeDtypeStruct(carry.step.shape, carry.dtype)
    at_a_step = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in args.inputs]
    params, state, mask = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype),
        (args.params, carry.state, carry.recurrent_mask),
    )
    return find_products(layer.cell, args.matrices, params, at_a_step, state, state, update, mask)
