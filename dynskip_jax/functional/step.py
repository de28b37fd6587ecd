"""Step of a recurrent layer with any transition, time skip and depth skip, and its carry.

`recurrent_step` is the function that `jax.lax.scan` runs. It computes Gui et al. (2019), Eq. 1 and
2, and is the reference definition of a layer: tests compare the fused unroll with it.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import choice_noise
from dynskip_jax.functional.carry import SkipCarry, where_carry
from dynskip_jax.functional.depth_skips import DepthSkip
from dynskip_jax.functional.keys import example_keys, fold_in_each
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.relaxation import bounded_temperature
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.sharding import features_together, match_batch, zeros_like_batch
from dynskip_jax.functional.time_skips import Choice, Decision, Previous, SkipInputs, TimeSkip
from dynskip_jax.functional.time_skips.calls import decide, make_choice
from dynskip_jax.functional.transitions import LSTM, Dense, Initializers, Transition, dense


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """The three choices that define a recurrent layer.

    It is hashable, hence a static argument under `jit`.

    Attributes:
        time_skip: Choice of the earlier state that enters a step.
        transition: Function from an input and a state to the new state.
        depth_skip: Input from a layer further below in a stack; None for no depth skip.
    """

    time_skip: TimeSkip = Previous()  # noqa: RUF009 (immutable)
    transition: Transition = LSTM()  # noqa: RUF009 (immutable)
    depth_skip: DepthSkip | None = None

    def init(
        self,
        key: Key[Array, ""],
        in_features: int,
        hidden: int,
        *,
        below: int | None = None,
        agent_features: int = 50,
        init: Initializers = Initializers(),  # noqa: B008 (immutable)
        agent_init: Initializers | None = None,
    ) -> "LayerParams":
        """Draw all weights of a layer.

        `below` is the size of the depth skip's input, by default `hidden`, and `agent_features` the
        number of hidden units of an agent. `agent_init`, by default `init`, draws the time skip's
        parameters.
        """
        transition_key, skip_key, depth_key = jax.random.split(key, 3)
        params = self.transition.init(transition_key, in_features, hidden, init)
        skip = self.time_skip.init(
            skip_key, in_features, hidden, agent_features, agent_init or init
        )
        depth = None
        if self.depth_skip is not None:
            x = jax.ShapeDtypeStruct((1, in_features), init.dtype)
            widths = [
                leaf.shape[-1]
                for leaf in jax.tree.leaves(jax.eval_shape(self.transition.project, params, x))
            ]
            if below is None:
                below = hidden
            self.depth_skip.check_below(below, hidden)
            self.depth_skip.check_transition(self.transition)
            depth = self.depth_skip.init(depth_key, in_features, below, hidden, widths, init)
        return LayerParams(params, skip, depth)

    def init_carry(
        self,
        key: Key[Array, "*batch"] | None,
        batch: int | tuple[int, ...],
        in_features: int,
        hidden: int,
        dtype: Any = jnp.float32,
    ) -> "SkipCarry":
        """Return a carry of zeros, which needs no parameters; see `initial_carry` for `key`."""
        if isinstance(batch, int):
            batch = (batch,)
        return initial_carry(
            key, self, zero_state(self.transition, (*batch, hidden), dtype), in_features
        )


@register_for_export
class LayerParams(NamedTuple):
    """Weights of one layer; None for a part that it does not have, or that has none."""

    transition: Any
    skip: Any = None
    depth: Any = None
    initial: Any = None  # learned initial state, each array (hidden,); zeros if None


class StepInputs(NamedTuple):
    """Inputs of a step that need no state: they are computed for all steps before the loop.

    Attributes:
        transition: `Transition.project` of x(t).
        skip: `TimeSkip.project` of x(t).
        depth: `DepthSkip.project` of x(t) and the input from below.
        zoneout_mask: Fraction of State(t-1) that zoneout keeps, (*batch, hidden) for each array of
            the state; see `dropout.zoneout`. None without zoneout.
        action: Action to replay instead of choosing, (*batch,); None to choose.
        valid: False past the end of a sequence, (*batch,); None without padding.
        restart: True where the next sequence packed into a row begins, (*batch,); None if no row is
            packed.
        x: The input x(t) itself, (*batch, in), for a time skip that observes inputs; otherwise
            None.
    """

    transition: Any
    skip: Any = None
    depth: Any = None
    zoneout_mask: Any = None
    action: Int[Array, "*batch"] | None = None
    valid: Bool[Array, "*batch"] | None = None
    restart: Bool[Array, "*batch"] | None = None
    x: Float[Array, "*batch in"] | None = None


@register_for_export
class SkipOutput(NamedTuple):
    """Output of a step.

    Attributes:
        h: Hidden state h(t), (*batch, hidden); zeros past the end of a sequence.
        cell_state: Cell state of step t (`Transition.cell_state`), (*batch, hidden); None unless
            `return_cell_state` is set.
    """

    h: Float[Array, "*batch hidden"]
    decision: Decision
    cell_state: Float[Array, "*batch hidden"] | None = None


def initial_carry(
    key: Key[Array, "*batch"] | None,
    recurrence: Recurrence,
    state: Any,
    in_features: int | None = None,
) -> SkipCarry:
    """Return a carry whose K slots all contain `state`, each array (*batch, hidden).

    A single `key` is split into one for each example. It may be None where nothing is sampled.
    `in_features` is the size of the layer's input, which only a time skip that observes inputs
    needs.
    """
    batch = state[0].shape[:-1]
    if key is not None:
        key = match_batch(example_keys(key, batch), state[0])
    K = recurrence.time_skip.max_skip
    ring = jax.tree.map(lambda array: jnp.repeat(array[..., None, :], K, axis=-2), state)
    skip_state = match_batch(recurrence.time_skip.init_skip_state(batch, state[0].dtype), state[0])
    inputs = None
    if recurrence.time_skip.observes_inputs:
        if in_features is None:
            raise UserError("this time skip observes inputs: call initial_carry with in_features")
        inputs = zeros_like_batch(state[0], (*batch, K, in_features), state[0].dtype)
    step = zeros_like_batch(state[0], batch, jnp.int32)
    return SkipCarry(ring, step, step + K, step, key, skip_state, inputs=inputs)


def zero_state(
    transition: Transition,
    shape: tuple[int, ...],
    dtype: Any = jnp.float32,
    like: Float[Array, "*batch features"] | None = None,
) -> Any:
    """Return a state of zeros, each (*batch, hidden), sharded like the first axis of `like`."""
    if like is None:
        like = jnp.zeros(())
    return transition.state(
        *(zeros_like_batch(like, shape, dtype) for _ in transition.state._fields)
    )


def restart_carry(carry: SkipCarry, recurrence: Recurrence, initial: Any) -> SkipCarry:
    """Return a carry that keeps only the newest state: the initial state replaces the other K-1.

    The released language model of Gui et al. (2019) does this at each segment. The step counter
    starts again at 0. The PRNG keys change, so that later steps do not repeat the noise of earlier
    ones.
    """
    restarted = reset_carry(carry, recurrence, initial).pushed(carry.state)
    return restarted._replace(inputs=jax.tree.map(jnp.zeros_like, carry.inputs))


def reset_carry(
    carry: SkipCarry,
    recurrence: Recurrence,
    initial: Any,
    where: Bool[Array, "*batch"] | None = None,
) -> SkipCarry:
    """Return the carry of the next sequence or episode, of all examples or `where` it begins.

    The PRNG keys change, so that no sequence repeats the noise of an earlier one: a saved initial
    carry with keys would repeat it. The recurrent dropout mask stays the same.
    """
    key = carry.key
    if key is not None:
        key = fold_in_each(key, carry.step)
    newest = initial
    if where is not None:
        newest = where_each(where, initial, carry.state)
    skip_state = recurrence.time_skip.init_skip_state(carry.step.shape, carry.dtype)
    begun = carry.with_newest(newest)._replace(
        filled=jnp.ones_like(carry.filled),
        step=jnp.zeros_like(carry.step),
        key=key,
        skip_state=match_batch(skip_state, carry.step),
    )
    if where is None:
        return begun
    return where_carry(where, begun, carry)


def project_inputs(
    params: LayerParams,
    x: Float[Array, "*batch in"],
    recurrence: Recurrence,
    *,
    below: Float[Array, "*batch below"] | None = None,
    action: Int[Array, "*batch"] | None = None,
    valid: Bool[Array, "*batch"] | None = None,
) -> StepInputs:
    """Compute the inputs of a step that need no state; `*batch` may contain the time axis.

    Where `valid` is False, `x` and `below` are replaced by zeros, so that padding, even NaN, has no
    effect.
    """
    if valid is not None:
        x = jnp.where(valid[..., None], x, 0)
        if below is not None:
            below = jnp.where(valid[..., None], below, 0)
    inputs = recurrence.transition.project(params.transition, x)
    depth = None
    if recurrence.depth_skip is not None:
        if below is None:
            raise UserError(f"{type(recurrence.depth_skip).__name__} needs what comes from below")
        if recurrence.depth_skip.enters == "gates":
            inputs = recurrence.depth_skip.into_gates(params.depth, below, inputs)
        depth = recurrence.depth_skip.project(params.depth, x, below)
    inputs = recurrence.transition.prepared(inputs)
    time_skip = recurrence.time_skip
    skip = time_skip.project(params.skip, x)
    observed_x = None
    if time_skip.observes_inputs:
        # An agent that samples sends no gradient into the network; see `PolicySkip.project`.
        observed_x = features_together(x)
        if time_skip.is_stochastic:
            observed_x = jax.lax.stop_gradient(observed_x)
    return StepInputs(inputs, skip, depth, action=action, valid=valid, x=observed_x)


def skip_inputs(
    recurrence: Recurrence,
    inputs: StepInputs,
    step: Int[Array, "*batch"],
    key: Key[Array, "*batch"] | None,
    dtype: Any,
    policy: Policy,
) -> SkipInputs:
    """Return the inputs of a choice that need no state, at one step or at all.

    `step` counts the steps before.
    """
    skip = recurrence.time_skip
    draws = skip.draws(policy.mode, inputs.action is not None)
    if key is None and draws:
        raise UserError(
            "choices are drawn, and the carry has no keys: make it with initial_carry(key, …)"
        )
    mask = policy.mask
    # A mask for each example gets the time axis before the batch.
    if mask is not None and 1 < mask.ndim <= step.ndim:
        mask = mask[None]
    allowed = skip.allowed(step, mask)

    projected = jax.tree.map(lambda leaf: leaf.astype(dtype), inputs.skip)
    noise = None
    if draws:
        noise = choice_noise(key, step, skip.num_choices, dtype)
    if allowed is not None:
        allowed = jnp.broadcast_to(allowed, (*step.shape, allowed.shape[-1]))
    return SkipInputs(
        projected=projected,
        step=step,
        noise=noise,
        allowed=allowed,
        action=inputs.action,
        temperature=bounded_temperature(policy.temperature, dtype),
    )


def mix_of(skip: TimeSkip, policy: Policy) -> Any:
    """Return the skip weight λ: the policy's, or the time skip's where it has none."""
    if policy.mix is None:
        return skip.mix
    return policy.mix


def in_dtype(number: Any, dtype: Any) -> Any:
    """Return a Python number unchanged, and an array in `dtype`: it must not widen states."""
    if isinstance(number, int | float):
        return number
    return jnp.asarray(number, dtype)


def in_dtype_of(carry: SkipCarry, inputs: StepInputs) -> StepInputs:
    """Return `inputs` in the dtype of the states in `carry`: wider ones would widen them.

    `skip_inputs` casts the inputs of the time skip.
    """
    dtype = carry.dtype
    floats = (inputs.transition, inputs.depth, inputs.zoneout_mask, inputs.x)
    floats = jax.tree.map(lambda leaf: leaf.astype(dtype), floats)
    transition, depth, zoneout_mask, x = floats
    return inputs._replace(transition=transition, depth=depth, zoneout_mask=zoneout_mask, x=x)


def recurrent_step(
    params: LayerParams,
    carry: SkipCarry,
    inputs: StepInputs,
    recurrence: Recurrence,
    policy: Policy = Policy(),  # noqa: B008 (immutable)
    *,
    initial: Any = None,
    return_cell_state: bool = False,
) -> tuple[SkipCarry, SkipOutput]:
    """Compute one step, Eq. 1 and 2; `jax.lax.scan` runs this function.

    The stages are: the choice of k, the state that enters, the cell, and the ring of K states.
    `inputs` is the result of `project_inputs(params, x(t), recurrence)`. `initial` is the initial
    state of the sequences that begin where `inputs.restart` is True.
    """
    skip = recurrence.time_skip
    transition = recurrence.transition
    before = carry
    inputs = in_dtype_of(carry, inputs)

    # Where the next sequence of a packed row begins, its carry is a new one.
    if inputs.restart is not None:
        restart = inputs.restart
        if inputs.valid is not None:
            restart = restart & inputs.valid
        carry = reset_carry(carry, recurrence, initial, restart)
    newest = carry.state

    # Choose k, Eq. 1, by what the agent sees of x(t) and of the last K states.
    seen = skip_inputs(recurrence, inputs, carry.step, carry.key, carry.dtype, policy)
    if skip.observes_inputs:
        earlier = carry.inputs
        if skip.is_stochastic:
            earlier = jax.lax.stop_gradient(earlier)
        carry = carry.with_input(earlier, inputs.x)
        seen = seen._replace(followed=carry.followed)
    observation = observation_of(recurrence, newest)
    if skip.observation_kind != "previous":
        memory = carry.memory_of(observation_of(recurrence, carry.ring))
        observation = memory.as_observation(skip.observation_kind)
    choice, skip_state = make_choice(
        skip, params.skip, seen, observation, carry.skip_state, policy.mode
    )
    decision = decide(skip, params.skip, seen, observation, choice, policy.mode)

    # The state that enters, λ State(t-k) + (1 - λ) State(t-1), Eq. 2. A carried state that is
    # forgotten afterwards enters the first step in any case.
    first = None
    if skip.forgets_carried:
        first = carry.step == 0
    entering = newest
    if skip.fixed_slot != 0:
        mix = in_dtype(mix_of(skip, policy), carry.dtype)
        selected = _read(transition, carry, choice, skip.fixed_slot)
        entering = mixed(transition, mix, selected, entering)
    if first is not None:
        entering = where_each(first, newest, entering)

    # The cell, with the projected x(t).
    mask = carry.recurrent_mask
    entering = dropped(entering, mask, transition)
    new = cell_step(params, inputs, entering, newest, choice.update, recurrence, mask, dense)

    # The new state takes the place of the oldest one.
    kept = None
    if first is not None:
        # Before the first step, all slots but the newest contain the initial state.
        oldest = carry.states_at(jnp.full_like(carry.step, skip.max_skip - 1))
        kept = where_each(first, oldest, newest)
    after = carry.pushed(new, newest=kept, valid=inputs.valid)
    after = after._replace(step=carry.step + 1, skip_state=skip_state)
    cell_state = None
    if return_cell_state:
        cell_state = getattr(new, transition.cell_state)
    output = SkipOutput(new[0], decision, cell_state)

    # Past the end of a sequence nothing changes.
    if inputs.valid is None:
        return after, output
    return where_carry(inputs.valid, after, before), where_each(inputs.valid, output, 0)


def observation_of(recurrence: Recurrence, state: Any) -> Float[Array, "... observed"]:
    """Return the arrays of a state that choices observe, side by side."""
    names = recurrence.time_skip.observation_arrays(recurrence.transition)
    arrays = [getattr(state, name) for name in names]
    if len(arrays) == 1:
        return arrays[0]
    return jnp.concatenate(arrays, axis=-1)


def cell_step(
    params: LayerParams,
    inputs: StepInputs,
    entering: Any,
    previous: Any,
    update: Float[Array, "*batch"] | None,
    recurrence: Recurrence,
    recurrent_mask: Float[Array, "*batch hidden"] | None,
    dense: Dense,
) -> Any:
    """Compute the new state of a step.

    `entering` is the state that enters, after `dropped`, and `previous` is State(t-1). `update` is
    the fraction of the new state that is written; None writes all of it. `dense` multiplies by a
    matrix.
    """
    transition = recurrence.transition
    depth = recurrence.depth_skip
    # Of a state that is h only, dropout must not touch the h that is carried on; see `dropped`.
    if recurrent_mask is not None and not transition.carries_cell:
        dense = _masked(dense, recurrent_mask)

    # The transition, to whose new cell state a depth skip may add.
    cell_entered = []

    def cell_hook(cell_state):
        cell_entered.append(True)
        if depth is None or depth.enters != "cell":
            return cell_state
        before = getattr(entering, transition.cell_state)
        return depth.add(params.depth, inputs.depth, before, entering.h, cell_state, dense)

    new = transition.step(params.transition, inputs.transition, entering, dense, cell_hook)
    if depth is not None and depth.enters == "cell" and not cell_entered:
        raise UserError(
            f"{type(transition).__name__} calls no cell_hook: "
            "a skip over depth to the internal state has nowhere to go"
        )

    # A depth skip to the output.
    if depth is not None and depth.enters == "output":
        h = depth.add(params.depth, inputs.depth, entering.h, entering.h, new.h, dense)
        new = new._replace(h=h)

    # Zoneout keeps a part of State(t-1), which need not be the state that entered.
    if inputs.zoneout_mask is not None:
        kept = transition.state(*inputs.zoneout_mask)
        new = jax.tree.map(lambda new, old, mask: new + mask * (old - new), new, previous, kept)

    # A token that is read in part: the new state and that of an unread token, mixed.
    if update is None:
        return new
    unread = transition.unread_state(
        params.transition, inputs.transition, entering, previous, dense
    )
    return transition.mix_states(update[..., None], new, unread)


def dropped(
    entering: Any, recurrent_mask: Float[Array, "*batch hidden"] | None, transition: Transition
) -> Any:
    """Return the state that enters a step, with recurrent dropout applied to its h.

    If h is the cell state, the state is returned unchanged: `cell_step` then masks the operands of
    products.
    """
    if recurrent_mask is None or not transition.carries_cell:
        return entering
    return entering._replace(h=entering.h * recurrent_mask)


def mixed(
    transition: Transition, mix: float | Float[Array, ""], selected: Any, previous: Any
) -> Any:
    """Return both states mixed with λ = `mix`.

    If λ is the Python number 1, that is `selected` unchanged.
    """
    if isinstance(mix, int | float) and mix == 1:
        return selected
    return transition.mix_states(mix, selected, previous)


def _masked(dense: Dense, mask: Float[Array, "*batch hidden"]) -> Dense:
    """Return `dense` with `mask` on the operand of each product; the state keeps its h."""

    def masked(w, x, *addends, activations=("linear",)):
        return dense(w, x * mask, *addends, activations=activations)

    return masked


def _read(transition: Transition, carry: SkipCarry, choice: Choice, fixed_slot: int | None) -> Any:
    """Return the chosen state, or an average of states, each (*batch, hidden)."""
    if fixed_slot is not None:
        return carry.states_at(jnp.full_like(carry.step, fixed_slot))
    # One chosen state.
    if choice.weights is None:
        return carry.states_at(choice.slot)
    # A weighted average of the states in some slots, or of all K states.
    if choice.slot is not None:
        return transition.average_states(choice.weights, carry.states_at(choice.slot))
    return transition.average_states(carry.weights_of_rows(choice.weights), carry.ring)
