"""Stacked recurrent layers, in one or two directions, as one pure function."""

import dataclasses
import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.functional.checks import check_key_of
from dynskip_jax.functional.decisions import DecisionTrace
from dynskip_jax.functional.dropout import dropout, dropout_mask, zoneout
from dynskip_jax.functional.engine.unroll import unroll
from dynskip_jax.functional.keys import example_keys, fold_in_each, split_each
from dynskip_jax.functional.policy import Policy
from dynskip_jax.functional.product import row
from dynskip_jax.functional.sequence import flip_sequences, length_mask, sequence_starts, where_each
from dynskip_jax.functional.serialization import register_node_for_export
from dynskip_jax.functional.sharding import match_batch
from dynskip_jax.functional.step import (
    LayerParams,
    Recurrence,
    SkipCarry,
    SkipOutput,
    initial_carry,
    zero_state,
)

# Numbers that are folded into a call's key. `split(key, n)[i]` equals `fold_in(key, i)`, so they
# must exceed any index of a split.
SHARED = 2**31 - 1
_REKEY = 2**31 - 2


@dataclasses.dataclass(frozen=True)
class LayerSpec:
    """One layer in one direction. Hashable, hence a static argument under `jit`."""

    recurrence: Recurrence  # time skip, transition and depth skip of the layer
    hidden: int  # size of each array of the state
    in_features: int | None = None  # size of the input, for a time skip that observes inputs
    reverse: bool = False  # whether the layer runs from each sequence's end to its start
    # Dropout rate of the h that enters a step, with one mask for all steps
    recurrent_dropout: float = 0.0
    # Dropout rate of entries of the recurrent matrices, with one mask for the whole call
    weight_dropout: float = 0.0
    # One zoneout rate for each array of the state; empty for no zoneout
    zoneout: tuple[float, ...] = ()
    dtype: Any = jnp.float32  # dtype of matrix multiplications
    state_dtype: Any = jnp.float32  # dtype of the state


@dataclasses.dataclass(frozen=True)
class LayersSpec:
    """A stack of layers. Hashable, hence a static argument under `jit`."""

    # Layers, bottom first. With two directions, each layer has two entries: its forward half, then
    # its backward half
    layers: tuple[LayerSpec, ...]
    num_directions: int = 1  # number of directions, 1 or 2
    # Dropout rates of each layer's input and of the last layer's output, bottom first
    dropout: tuple[float, ...] = ()
    variational: bool = False  # whether dropout uses one mask for all steps of a sequence
    implementation: str = "auto"  # implementation of every unroll; see `unroll`

    def sources_below(self, i: int) -> tuple[int, ...]:
        """Return the layers that the depth skip of layer `i` reads from, bottom first."""
        skip = self.layers[i].recurrence.depth_skip
        if skip is None:
            return ()
        # Entries of one direction are `num_directions` apart.
        nearest = i - skip.layers_below * self.num_directions
        lowest = nearest
        if skip.all_below:
            lowest = i % self.num_directions
        return tuple(range(lowest, nearest + 1, self.num_directions))

    def needs_cell_state(self, i: int) -> bool:
        """Return whether a layer above reads the cell state of layer `i`."""
        return any(
            i in self.sources_below(above)
            and self.layers[above].recurrence.depth_skip.source == "cell_state"
            for above in range(i + 1, len(self.layers))
        )

    def is_noncausal(self, i: int) -> bool:
        """Return whether choices of layer `i` affect outputs at steps that it processed earlier.

        This is so with two directions, except in the top layer: a layer above runs in the other
        direction.
        """
        return self.num_directions > 1 and i < len(self.layers) - self.num_directions


class LayersCall(NamedTuple):
    """The arrays of one call of the layers; None if an argument is not given."""

    x: Float[Array, "..."]  # inputs, (*batch, time, in)
    # Carry of each layer to start from; None starts from the initial states
    carry: Sequence[SkipCarry] | None
    seq_lengths: Int[Array, "..."] | None  # true lengths, (*batch,)
    # Ids of the sequences that are packed in a row, (*batch, time)
    segment_ids: Int[Array, "..."] | None
    # True where a sequence begins, (*batch, time)
    resets: Bool[Array, "..."] | None
    # Actions of each layer to replay, (*batch, time); None for a layer that chooses
    actions: tuple[Int[Array, "..."] | None, ...]
    policies: tuple[Policy, ...]  # policy of each layer
    key: Key[Array, "..."] | None  # PRNG key for everything that is sampled, () or (*batch,)
    weight_key: Key[Array, ""] | None  # key for weight dropout; None derives it from `key`


# x(t) and h(t-1) of each layer and direction.
Observations = tuple[tuple[Float[Array, "*batch time in"], Float[Array, "*batch time hidden"]], ...]


class _Outputs(NamedTuple):
    h: Float[Array, "*batch time features"]
    states: Float[Array, "*batch time features"]
    decisions: tuple[DecisionTrace, ...]
    observations: Observations


@register_node_for_export
@jax.tree_util.register_pytree_with_keys_class
class LayersOutput(_Outputs):
    """What layers return: outputs, and the decisions that a loss needs.

    With two directions, tuples alternate: layer 1 forward, layer 1 backward, and so on. In the
    pytree each layer's part has a name, without which `nnx.tabulate` cannot show it.

    Attributes:
        h: Outputs of the top layer after dropout, (*batch, time, features); zeros past the end of a
            sequence. Two directions are concatenated.
        states: Outputs of the top layer before dropout.
        decisions: One trace for each layer and direction, each leaf (*batch, time).
        observations: x(t) and h(t-1) of each layer and direction, (*batch, time, ...), which form
            s(t) in Eq. 1.
    """

    __slots__ = ()

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[()]]:
        """Return all arrays with their names."""
        # `tree_unflatten` knows how many layers there are from the number of parts.
        parts = [("h", self.h), ("states", self.states)]
        parts += [(f"decisions_{i}", trace) for i, trace in enumerate(self.decisions)]
        parts += [(f"observations_{i}", seen) for i, seen in enumerate(self.observations)]
        return [(jax.tree_util.DictKey(name), part) for name, part in parts], ()

    @classmethod
    def tree_unflatten(cls, _: tuple[()], parts: Sequence[Any]) -> "LayersOutput":
        """Return the output of these parts."""
        h, states, *rest = parts
        num_layers = len(rest) // 2
        return cls(h, states, tuple(rest[:num_layers]), tuple(rest[num_layers:]))


@partial(jax.jit, static_argnames=("spec", "deterministic"))
def run_layers(
    spec: LayersSpec, params: tuple[LayerParams, ...], call: LayersCall, *, deterministic: bool
) -> tuple[tuple[SkipCarry, ...], LayersOutput]:
    """Run all layers over a batch of sequences; return the last carries and the outputs.

    The function is compiled for each `spec` and each shape, even if it is called outside of `jit`.
    If `deterministic`, nothing is dropped, and zoneout has its expected values.
    """
    batch_axes = call.x.ndim - 2
    batch_shape = call.x.shape[:batch_axes]
    carry, output = _run_batch(spec, params, _with_one_batch_axis(call, batch_axes), deterministic)
    if batch_axes != 1:
        carry, output = jax.tree.map(
            lambda leaf: leaf.reshape(*batch_shape, *leaf.shape[1:]), (carry, output)
        )
    return carry, output


def _with_one_batch_axis(call: LayersCall, batch_axes: int) -> LayersCall:
    """Return the call with its batch axes, none or several, reshaped into one."""
    if batch_axes == 1:
        return call
    size = math.prod(call.x.shape[:batch_axes])

    def merge(leaf: Array) -> Array:
        return leaf.reshape(size, *leaf.shape[batch_axes:])

    def merge_mask(policy: Policy) -> Policy:
        is_shared = policy.mask is None or policy.mask.ndim == 1
        if is_shared:
            return policy
        return dataclasses.replace(policy, mask=merge(policy.mask))

    if call.key is not None:
        check_key_of(call.key, call.x.shape[:batch_axes])
    # Without a batch axis, a single key is the key of the one example.
    is_shared = call.key is None or (call.key.ndim == 0 and batch_axes > 0)
    key = call.key
    if not is_shared:
        key = merge(key)
    arrays = jax.tree.map(
        merge, (call.x, call.carry, call.seq_lengths, call.segment_ids, call.resets, call.actions)
    )
    policies = tuple(map(merge_mask, call.policies))
    return LayersCall(*arrays, policies, key, call.weight_key)


def _run_batch(
    spec: LayersSpec, params: Sequence[LayerParams], call: LayersCall, deterministic: bool
) -> tuple[tuple[SkipCarry, ...], LayersOutput]:
    """Run all layers on inputs with one batch axis."""
    x = call.x
    batch = x.shape[0]
    ways = spec.num_directions

    # States to start from, and keys for all that is sampled.
    starts = [
        initial_state(layer, own.initial, (batch,), x)
        for layer, own in zip(spec.layers, params, strict=True)
    ]
    params = [own._replace(initial=None) for own in params]  # a step has no use for it
    carries, key = _carries(spec, starts, call)
    dropout_keys, mask_keys, weight_keys = _dropout_keys(
        spec, key, call.weight_key, batch, deterministic
    )
    # Variational dropout has one mask along the time axis.
    same_along = (1,) if spec.variational else ()
    valid = None
    if call.seq_lengths is not None:
        valid = length_mask(call.seq_lengths, x.shape[1])

    # Run the layers. Those of two directions read the same x, which then becomes both outputs.
    ends = []
    outputs = []
    observations = []
    traces = []
    for i, layer in enumerate(spec.layers):
        place, direction = divmod(i, ways)
        if direction == 0:
            x = dropout(dropout_keys[place], spec.dropout[place], x, same_along)
        carry = _with_mask(layer, carries[i], mask_keys[i], deterministic)
        end, output = unroll(
            _prepared(layer, params[i], weight_keys[i]),
            carry,
            x,
            layer.recurrence,
            below=_below(spec, i, outputs),
            seq_lengths=call.seq_lengths,
            reverse=layer.reverse,
            segment_ids=call.segment_ids,
            resets=call.resets,
            initial=starts[i],
            zoneout_mask=zoneout_mask(layer, carry, x.shape[1], deterministic=deterministic),
            actions=call.actions[i],
            policy=call.policies[i],
            return_cell_state=spec.needs_cell_state(i),
            implementation=spec.implementation,
        )
        ends.append(end._replace(recurrent_mask=carries[i].recurrent_mask))
        outputs.append(output)
        # What is computed from observations must meet no NaN of padding.
        seen = x
        if valid is not None:
            seen = where_each(valid, x, 0)
        observations.append((seen, _h_before(layer, carry, starts[i], output, call)))
        traces.append(_trace_of(spec, i, call, output, valid))
        if direction == ways - 1:
            x = _side_by_side([output.h for output in outputs[-ways:]])
    h = dropout(dropout_keys[-1], spec.dropout[-1], x, same_along)
    return tuple(ends), LayersOutput(h, x, tuple(traces), tuple(observations))


def _trace_of(
    spec: LayersSpec,
    i: int,
    call: LayersCall,
    output: SkipOutput,
    valid: Bool[Array, "batch time"] | None,
) -> DecisionTrace:
    """Return the trace of the decisions of layer `i`."""
    layer = spec.layers[i]
    return DecisionTrace.of(
        output.decision,
        layer.recurrence.time_skip,
        valid,
        mode=call.policies[i].mode,
        replayed=call.actions[i] is not None,
        reverse=layer.reverse,
        noncausal=spec.is_noncausal(i),
    )


def _side_by_side(arrays: Sequence[Array]) -> Array:
    if len(arrays) == 1:
        return arrays[0]
    return jnp.concatenate(arrays, axis=-1)


# Initial states and carries.


def initial_state(
    layer: LayerSpec, learned: Any, batch: tuple[int, ...], like: Float[Array, "..."] | None = None
) -> Any:
    """Return `learned`, or zeros, for every sequence, sharded like the batch of `like`."""
    shape = (*batch, layer.hidden)
    zeros = zero_state(layer.recurrence.transition, shape, layer.state_dtype, like=like)
    if learned is None:
        return zeros
    return jax.tree.map(
        lambda zero, array: zero + row(array, zero).astype(zero.dtype), zeros, learned
    )


def _carries(
    spec: LayersSpec, starts: Sequence[Any], call: LayersCall
) -> tuple[tuple[SkipCarry, ...], Key[Array, "..."] | None]:
    """Return the carries to start from, and the key for all else that is sampled."""
    key = call.key
    if call.carry is not None:
        return _with_keys(match_batch(call.carry, call.x), key), key
    carry_key = None
    if key is not None:
        carry_key, key = split_each(key, 2)
    return initial_carries(spec.layers, starts, carry_key), key


def initial_carries(
    layers: Sequence[LayerSpec], starts: Sequence[Any], key: Key[Array, "..."] | None
) -> tuple[SkipCarry, ...]:
    """Return the initial carry of each layer from its initial state.

    `key` is one PRNG key, or one for each example; None makes carries without keys.
    """
    keys = (None,) * len(layers)
    if key is not None:
        # The number of parts, of which the first is for choices, decides what a seed draws: it
        # stays.
        keys = [split_each(each, 3)[0] for each in split_each(key, len(layers))]
    return tuple(
        initial_carry(each, layer.recurrence, start, layer.in_features)
        for each, layer, start in zip(keys, layers, starts, strict=True)
    )


def _with_keys(
    carries: Sequence[SkipCarry], key: Key[Array, "..."] | None
) -> tuple[SkipCarry, ...]:
    """Return the carries with keys derived from `key` where they have none, as after evaluation."""
    if key is None or all(carry.key is not None for carry in carries):
        return carries
    # Keys of their own, which no other use of the call's key repeats.
    batch = carries[0].step.shape
    own_keys = split_each(example_keys(fold_in_each(key, _REKEY), batch), len(carries))

    def with_key(carry: SkipCarry, own: Key[Array, " batch"]) -> SkipCarry:
        if carry.key is not None:
            return carry
        return carry._replace(key=match_batch(own, carry.step))

    return tuple(map(with_key, carries, own_keys))


# Dropout masks and other randomness of a call.


def _dropout_keys(
    spec: LayersSpec,
    key: Key[Array, "..."] | None,
    weight_key: Key[Array, ""] | None,
    batch: int,
    deterministic: bool,
) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
    """Return the keys for dropout on inputs and output, for recurrent masks, and for weights.

    The keys for weights are single ones, the others (batch,); None where nothing is dropped.
    """
    places = len(spec.dropout)
    layers = len(spec.layers)
    keys = (None,) * (places + layers)
    weight_keys = (None,) * layers
    drops = any(spec.dropout) or any(layer.recurrent_dropout for layer in spec.layers)
    if not deterministic and key is not None and drops:
        keys = split_each(example_keys(key, (batch,)), places + layers)
    if not deterministic and any(layer.weight_dropout for layer in spec.layers):
        if weight_key is None:
            weight_key = shared_key(key)
        weight_keys = jax.random.split(weight_key, layers)
    return keys[:places], keys[places:], weight_keys


def shared_key(keys: Key[Array, "..."]) -> Key[Array, ""]:
    """Return a key for masks that all examples share, derived from the first of a call's keys."""
    first = jax.random.key(0)
    if keys.size:
        first = keys.reshape(-1)[0]
    return jax.random.fold_in(first, SHARED)


def _with_mask(
    layer: LayerSpec, carry: SkipCarry, key: Key[Array, " batch"] | None, deterministic: bool
) -> SkipCarry:
    """Return the carry with its recurrent dropout mask, or a new one; None if nothing drops."""
    if deterministic or layer.recurrent_dropout == 0.0:
        return carry._replace(recurrent_mask=None)
    if carry.recurrent_mask is not None:
        return carry
    return draw_recurrent_mask(layer, carry, key)


def draw_recurrent_mask(
    layer: LayerSpec, carry: SkipCarry, keys: Key[Array, "*batch"]
) -> SkipCarry:
    """Return the carry with a new recurrent dropout mask, sampled with one key for each example."""
    shape = (*carry.step.shape, layer.hidden)
    mask = dropout_mask(keys, layer.recurrent_dropout, shape, layer.state_dtype)
    return carry._replace(recurrent_mask=mask)


def zoneout_mask(
    layer: LayerSpec, carry: SkipCarry, steps: int | None = None, *, deterministic: bool
) -> Any:
    """Return the zoneout masks of the steps after a carry, one for each array of the state.

    `steps` is the size of a time axis after the batch; None for one step without this axis. If
    `deterministic`, the masks are expected values, which need no keys. The result is None for a
    layer without zoneout.
    """
    if not any(layer.zoneout):
        return None
    keys = carry.key
    step = carry.step
    # Only evaluation has no keys, and draws nothing with this one.
    if keys is None:
        keys = jax.random.key(0)
    elif steps is not None:
        keys = keys[:, None]
    if steps is not None:
        step = step[:, None] + jnp.arange(steps)[None]
    return zoneout(
        keys, step, layer.zoneout, layer.hidden, layer.state_dtype, deterministic=deterministic
    )


def _prepared(layer: LayerSpec, params: LayerParams, key: Key[Array, ""] | None) -> LayerParams:
    """Return the weights, with matrices in the layer's `dtype`.

    With a key, weight dropout is applied.
    """
    params = cast_matrices(params, layer.dtype)
    if key is None or layer.weight_dropout == 0.0:
        return params
    recurrent = layer.recurrence.transition.recurrent
    dropped = drop_recurrent_weights(params.transition, recurrent, key, layer.weight_dropout)
    return params._replace(transition=dropped)


def cast_matrices(params: Any, dtype: Any) -> Any:
    """Return a tree of weights with matrices cast to `dtype` and vectors unchanged."""

    def cast(leaf: Any) -> Array:
        return leaf.astype(dtype) if leaf.ndim > 1 else leaf

    return jax.tree.map(cast, params)


def drop_recurrent_weights(
    weights: Any, recurrent: Sequence[str], key: Key[Array, ""], rate: float
) -> Any:
    """Drop entries of the matrices in `Transition.recurrent` (DropConnect)."""
    # The path of a leaf begins with the field of the params that it belongs to.
    leaves, structure = jax.tree_util.tree_flatten_with_path(weights)
    keys = jax.random.split(key, len(leaves))

    def drop(path, leaf, key):
        if leaf.ndim > 1 and path[0].name in recurrent:
            return dropout(key, rate, leaf)
        return leaf

    return structure.unflatten(
        [drop(path, leaf, k) for (path, leaf), k in zip(leaves, keys, strict=True)]
    )


# Inputs of depth skips, and outputs for the caller.


def _below(
    spec: LayersSpec, i: int, outputs: Sequence[SkipOutput]
) -> Float[Array, "batch time below"] | None:
    """Return the input of the depth skip of layer `i`, from its direction; None without a skip."""
    sources = [outputs[source] for source in spec.sources_below(i)]
    if not sources:
        return None
    if spec.layers[i].recurrence.depth_skip.source == "output":
        return _side_by_side([source.h for source in sources])
    return _side_by_side([source.cell_state for source in sources])


def _h_before(
    layer: LayerSpec, carry: SkipCarry, start: Any, output: SkipOutput, call: LayersCall
) -> Float[Array, "batch time hidden"]:
    """Return the previous h of each step, in the order of the inputs.

    In reverse, it is that of step t+1.
    """
    reverse = layer.reverse
    lengths = call.seq_lengths

    def flip(array: Array) -> Array:
        """Exchange the order of the inputs and that of the steps."""
        if not reverse:
            return array
        return flip_sequences(array, lengths)

    # In the order of the steps, the h before a step is that of the step before.
    shifted = jnp.concatenate([carry.state.h[:, None], flip(output.h)[:, :-1]], axis=1)
    before = flip(shifted[:, : call.x.shape[1]])
    begins = sequence_starts(call.segment_ids, call.resets, reverse=reverse, seq_lengths=lengths)
    if begins is None:
        return before
    return jnp.where(flip(begins)[..., None], start.h[:, None], before)
