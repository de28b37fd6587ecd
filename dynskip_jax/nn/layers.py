"""Run stacked recurrent layers with skips, in one or both directions."""

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import (
    check_call,
    check_implementation,
    check_inputs,
    check_key_of,
    check_whole,
)
from dynskip_jax.functional.layers import (
    LayersCall,
    LayersOutput,
    LayersSpec,
    initial_carries,
    run_layers,
)
from dynskip_jax.nn.base import HasModes
from dynskip_jax.nn.calls import (
    Rngs,
    as_key,
    as_rates,
    batch_of,
    check_per_layer,
    policy_or_default,
    require_key,
    stream,
)
from dynskip_jax.nn.cells import SkipCell, check_pieces


class SkipLayers(HasModes):
    """Stacked recurrent layers that run cells over sequences, with dropout between the layers.

    `SkipRNN` makes the cells itself. Use this class for your own cells or for cells from
    `nn.convert`.

    Args:
        cells: Cells, bottom layer first. With two directions: layer 1 forward, layer 1 backward,
            and so on.
        bidirectional: Whether each layer has a forward and a backward cell, whose outputs are
            concatenated (Graves & Schmidhuber 2005).
        reverse: Whether layers read from each sequence's end. Outputs keep the order of the inputs.
        dropout: Dropout rate on every layer's input and on the last layer's output (Zaremba et al.
            2014), or one rate for each of these places, bottom first.
        variational: Whether dropout has one mask for all steps of a sequence (Gal & Ghahramani
            2016).
        implementation: `auto`, `fused`, `reference` (the definition) or `parallel`; see
            `functional.unroll`.
        call_rngs: Source of keys for calls without `rngs=`: a stream, or the `carry` of an
            `nnx.Rngs`.
    """

    def __init__(
        self,
        cells: Sequence[SkipCell],
        *,
        bidirectional: bool = False,
        reverse: bool = False,
        dropout: float | Sequence[float] = 0.0,
        variational: bool = False,
        implementation: str = "auto",
        call_rngs: nnx.Rngs | nnx.RngStream | None = None,
    ):
        for cell in cells:
            if not isinstance(cell, SkipCell):
                raise UserError(
                    f"SkipLayers runs SkipCells, got {type(cell).__name__}: nnx.RNN runs other "
                    "cells, and nn.from_flax makes a SkipCell of Flax's"
                )
        self.num_directions = 2 if bidirectional else 1
        if not cells or len(cells) % self.num_directions:
            raise UserError(
                f"expected a cell for each layer and direction, at least one, got {len(cells)}"
            )
        check_implementation(implementation)
        if bidirectional and reverse:
            raise UserError(
                "reverse is for one direction: leave it out where bidirectional is True"
            )

        # Below each layer, and after the last one.
        depth = len(cells) // self.num_directions
        rates = as_rates(dropout, depth + 1)
        if len(rates) != depth + 1:
            raise UserError(
                f"{depth} layers have {depth + 1} places for dropout, got {len(rates)} rates"
            )
        _check_sizes(cells, self.num_directions)

        self.cells = nnx.List(list(cells))
        self.reverse = reverse
        self.dropout = rates
        self.variational = variational
        self.implementation = implementation
        self.deterministic = False

        # A fork of an `nnx.Rngs` is the layers' own, but a stream is shared with its owner.
        calls = stream(call_rngs)
        if isinstance(call_rngs, nnx.Rngs):
            calls = calls.fork()
        self.call_rngs = nnx.data(calls)

    @property
    def skips(self) -> tuple[F.TimeSkip, ...]:
        """Time skip of each layer and direction."""
        return tuple(cell.skip for cell in self.cells)

    @property
    def reads_reverse(self) -> tuple[bool, ...]:
        """Whether each layer and direction reads from the end of a sequence."""
        # Of two directions, the second one reads from the end.
        return tuple(self.reverse or i % self.num_directions == 1 for i in range(len(self.cells)))

    @property
    def spec(self) -> LayersSpec:
        """Static description of the layers."""
        cells = zip(self.cells, self.reads_reverse, strict=True)
        return LayersSpec(
            layers=tuple(dataclasses.replace(cell.spec, reverse=way) for cell, way in cells),
            num_directions=self.num_directions,
            dropout=self.dropout,
            variational=self.variational,
            implementation=self.implementation,
        )

    def initialize_carry(
        self, input_shape: int | tuple[int, ...], rngs: Rngs = None
    ) -> tuple[F.SkipCarry, ...]:
        """Return the initial carry of each layer and direction.

        Args:
            input_shape: Shape of one step's input, (*batch, in_features), or the number of
                sequences.
            rngs: As in `SkipCell.initialize_carry`.
        """
        batch = batch_of(input_shape, self.cells[0].in_features)
        starts = [cell.initial_state(batch) for cell in self.cells]
        return initial_carries(self.spec.layers, starts, as_key(rngs))

    def restart_carry(self, carry: tuple[F.SkipCarry, ...]) -> tuple[F.SkipCarry, ...]:
        """Return the carries that `SkipCell.restart_carry` makes of those of all layers."""
        return tuple(cell.restart_carry(each) for cell, each in zip(self.cells, carry, strict=True))

    def __call__(
        self,
        inputs: Float[Array | np.ndarray, "..."],
        *,
        initial_carry: Sequence[F.SkipCarry] | None = None,
        seq_lengths: Int[Array | np.ndarray, "*batch"] | None = None,
        segment_ids: Int[Array, "..."] | None = None,
        resets: Bool[Array | np.ndarray, "..."] | None = None,
        actions: Sequence[Int[Array | np.ndarray, "..."] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: Rngs = None,
        weight_key: Key[Array, ""] | None = None,
        deterministic: bool | None = None,
        return_carry: bool = False,
    ) -> LayersOutput | tuple[tuple[F.SkipCarry, ...], LayersOutput]:
        """Run the layers over a batch of sequences.

        Args:
            inputs: Input sequences, (*batch, time, in).
            initial_carry: One carry for each layer and direction; the initial state by default. If
                the carries have keys, choices are drawn with them.
            seq_lengths: True length of each sequence, (*batch,); None if all have full length.
            segment_ids: Ids of the sequences that are packed in each row, with the inputs' batch
                and time axes. Where the id changes, the next sequence begins from the initial
                state.
            resets: Another way to say where sequences begin, with the same axes: True at the first
                step of each, such as that of an episode. A sequence that begins at the first step
                does not use `initial_carry`, whose keys it changes: no sequence repeats the noise
                of an earlier one.
            actions: Actions to replay for each layer and direction, with the inputs' batch and time
                axes; None for a layer that chooses. Traced actions out of range are clipped. Those
                that the policy's mask forbids have a log π of -1e9, and the losses of `rl` are NaN.
            policy: How choices are made. By default greedy in evaluation and sampled in training. λ
                and masks apply only to layers with an agent. A tuple of masks has one for each
                layer and direction.
            rngs: Source of keys for everything that is not drawn with the keys of `initial_carry`
                or with `weight_key`: an `nnx.Rngs`, a stream, or a PRNG key, which is split into
                one for each sequence. One key for each sequence, (*batch,), is used as it is: such
                a call equals `jax.vmap` of the call for one sequence and its key.
            weight_key: PRNG key for the cells' `weight_dropout`; by default it is derived from
                `rngs`.
            deterministic: Overrides the mode set by `.train()` and `.eval()`.
            return_carry: Whether to return `(carry, output)`, with the last carries as one tuple.
        """
        if deterministic is None:
            deterministic = self.deterministic
        policy = policy_or_default(policy, deterministic)
        check_per_layer(len(self.cells), initial_carry=initial_carry, actions=actions)
        if actions is None:
            actions = (None,) * len(self.cells)
        if initial_carry is not None:
            initial_carry = tuple(initial_carry)
        if weight_key is not None:
            check_key_of(weight_key, ())
        call = LayersCall(
            x=inputs,
            carry=initial_carry,
            seq_lengths=seq_lengths,
            segment_ids=segment_ids,
            resets=resets,
            actions=tuple(actions),
            policies=policy_of_each(policy, self.skips),
            key=None,
            weight_key=weight_key,
        )
        self._check(call)  # before it is traced, because errors inside of `jit` name no argument

        samples = _samples(self, policy, actions, deterministic)
        if needs_key(
            self,
            policy,
            initial_carry=initial_carry,
            actions=actions,
            weight_key=weight_key,
            deterministic=deterministic,
        ):
            call = call._replace(key=self.require_key(rngs))
        elif samples and rngs is not None:
            raise UserError(
                "rngs= has no effect: choices continue with the keys of initial_carry, and nothing "
                "else is drawn. Leave it out, or drop the keys: carry._replace(key=None)"
            )

        # One compiled program casts the parameters and runs all layers.
        params = tuple(cell.raw_params() for cell in self.cells)
        carry, output = run_layers(self.spec, params, call, deterministic=deterministic)
        if return_carry:
            return carry, output
        return output

    def require_key(self, rngs: Rngs, what: str = "this layer") -> Key[Array, "..."]:
        """Return the PRNG key of a call with `rngs=`, by default from `call_rngs`."""
        if rngs is None:
            rngs = self.call_rngs
        return require_key(rngs, what)

    def _check(self, call: LayersCall) -> None:
        """Raise a `UserError` if the arguments of a call do not fit."""
        check_inputs(call.x, "(*batch, time, in)", self.cells[0].in_features)
        check_call(
            [cell.recurrence for cell in self.cells],
            call.x,
            carry=call.carry,
            hidden=[cell.hidden_features for cell in self.cells],
            policies=call.policies,
            seq_lengths=call.seq_lengths,
            segment_ids=call.segment_ids,
            resets=call.resets,
            actions=call.actions,
        )


def needs_key(
    layers: SkipLayers,
    policy: F.Policy,
    *,
    initial_carry: Sequence[F.SkipCarry] | None,
    actions: Sequence[Any] | None,
    weight_key: Key[Array, ""] | None,
    deterministic: bool,
) -> bool:
    """Return whether a call of `layers` with these arguments draws anything with `rngs=`.

    Choices and zoneout use the keys of `initial_carry` if it has keys. Dropout uses `rngs=`, except
    for recurrent masks that the carry already contains and for weight dropout with `weight_key`.
    """

    def is_missing(name: str) -> bool:
        if initial_carry is None:
            return True
        return any(getattr(carry, name) is None for carry in initial_carry)

    if is_missing("key") and _samples(layers, policy, actions, deterministic):
        return True
    if deterministic:
        return False

    # Dropout of layers is drawn in every call.
    rates = [*layers.dropout]
    if is_missing("recurrent_mask"):
        rates += [cell.recurrent_dropout for cell in layers.cells]
    if weight_key is None:
        rates += [cell.weight_dropout for cell in layers.cells]
    return any(rates)


def _samples(
    layers: SkipLayers, policy: F.Policy, actions: Sequence[Any] | None, deterministic: bool
) -> bool:
    """Return whether a call samples choices or zoneout masks."""
    if actions is None:
        actions = (None,) * len(layers.cells)
    for cell, action in zip(layers.cells, actions, strict=True):
        if cell.skip.draws(policy.mode, action is not None):
            return True
        # In evaluation, zoneout is the expected value of the state.
        if any(cell.zoneout) and not deterministic:
            return True
    return False


def _check_sizes(cells: Sequence[SkipCell], num_directions: int) -> None:
    """Raise a `UserError` if a cell does not fit the layers below it."""
    # The cells of each layer: one, or the forward and the backward one.
    starts = range(0, len(cells), num_directions)
    layers = [cells[start : start + num_directions] for start in starts]
    for index, layer in enumerate(layers):
        for direction, cell in enumerate(layer):
            skip = cell.recurrence.depth_skip
            if skip is not None and index < skip.layers_below:
                raise UserError(
                    f"layer {index + 1} has a skip over depth, which comes from "
                    f"{skip.layers_below} layers below, and there is no such layer: make this cell "
                    "without depth_skip"
                )
            if index > 0:
                _check_in_features(index, cell, layers[index - 1])
            if skip is not None:
                below = layers[: index - skip.layers_below + 1]
                _check_depth_skip(index, cell, [cells_of[direction] for cells_of in below])


def _check_in_features(index: int, cell: SkipCell, below: Sequence[SkipCell]) -> None:
    """Check the input of a cell, which is the output of both directions of the layer below."""
    size = sum(each.hidden_features for each in below)
    if cell.in_features != size:
        raise UserError(
            f"layer {index + 1} has in_features={cell.in_features}, and the layer below "
            f"returns {size}"
        )


def _check_depth_skip(index: int, cell: SkipCell, below: Sequence[SkipCell]) -> None:
    """Check what enters a depth skip; `below` are the cells from layer 1 to the nearest source."""
    skip = cell.recurrence.depth_skip
    if not skip.all_below:
        below = below[-1:]
    sizes = [each.hidden_features for each in below]
    if sum(sizes) != cell.below_features:
        raise UserError(
            f"layer {index + 1} has below_features={cell.below_features}, and its skip over depth "
            f"comes from {sum(sizes)}"
        )
    if skip.same_size and {*sizes} != {cell.hidden_features}:
        raise UserError(
            f"layer {index + 1}: this skip over depth needs layers of one size, got {sizes}"
        )


def policy_of_each(policy: F.Policy, skips: Sequence[F.TimeSkip]) -> tuple[F.Policy, ...]:
    """Return the policy of each layer; only layers with an agent keep λ and masks."""
    masks = policy.mask
    if not isinstance(masks, tuple):  # one mask for all layers
        masks = (masks,) * len(skips)
    if len(masks) != len(skips):
        raise UserError(f"{len(skips)} layers and directions need as many masks, got {len(masks)}")
    return tuple(
        dataclasses.replace(policy, mask=mask) if skip.has_agent else policy.without_agent()
        for mask, skip in zip(masks, skips, strict=True)
    )


class SkipRNN(SkipLayers):
    """Stacked recurrent layers of any transition, with skips over time and depth.

    Args:
        hidden_features: Size of every layer's state, or one size for each layer.
        num_layers: Number of layers. By default the length of `skip` or `hidden_features` if one of
            them is a sequence, and 1 otherwise.
        skip: Time skip of every layer, or one for each layer, bottom first. The default is no skip.
        transition: How a state and an input become the new state, such as `functional.GRU()`; one
            for all layers, or one for each.
        depth_skip: What each layer receives from layers further below in the same direction (Wu et
            al. 2016). The lowest layers, which have no such layer below them, have no depth skip;
            at least one layer must have it.
        bidirectional: See `SkipLayers`, like all options down to `call_rngs`.
        cell: More options of the cells of each layer, such as `[{}, dict(zoneout=0.1)]`, or of all
            layers.
        **cell_options: Options of every `SkipCell`: `recurrent_dropout`, `weight_dropout`,
            `zoneout`, `learnable_carry`, `forget_bias`, `agent_features`, `dtype`, and
            initializers.

    Example::

        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax import functional as F
        >>> how = dict(num_layers=2, skip=F.Dynamic(5), bidirectional=True)
        >>> rnn = SkipRNN(3, 8, transition=F.GRU(), **how, rngs=nnx.Rngs(0))
        >>> out = rnn(jnp.ones((2, 7, 3)), rngs=jax.random.key(1))
        >>> out.h.shape, len(out.decisions), out.decisions[0].action.shape
        ((2, 7, 16), 4, (2, 7))
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | Sequence[int],
        *,
        num_layers: int | None = None,
        skip: F.TimeSkip | Sequence[F.TimeSkip] = F.Previous(),  # noqa: B008 (immutable)
        transition: F.Transition | Sequence[F.Transition] = F.LSTM(),  # noqa: B008 (immutable)
        depth_skip: F.DepthSkip | None = None,
        bidirectional: bool = False,
        reverse: bool = False,
        dropout: float | Sequence[float] = 0.0,
        variational: bool = False,
        implementation: str = "auto",
        call_rngs: nnx.Rngs | nnx.RngStream | None = None,
        cell: Mapping[str, Any] | Sequence[Mapping[str, Any]] = types.MappingProxyType({}),
        rngs: nnx.Rngs,
        **cell_options: Any,
    ):
        check_pieces(depth_skip=depth_skip)
        depth = count_layers(num_layers, skip=skip, hidden_features=hidden_features)
        if depth_skip is not None and depth <= depth_skip.layers_below:
            raise UserError(
                f"depth_skip={depth_skip} has no effect in {depth} layers: it begins at layer "
                f"{depth_skip.layers_below + 1}. Add layers, or leave it out"
            )
        # Options of each layer, bottom first.
        sizes = _each("hidden_features", hidden_features, depth)
        skips = _each("skip", skip, depth)
        transitions = _each("transition", transition, depth)
        cell_options_of = _each("cell", cell, depth)

        # A layer reads both directions of the layer below.
        num_directions = 2 if bidirectional else 1
        cells = []
        width = in_features  # of the input of layer i
        for i in range(depth):
            options = {**cell_options, **cell_options_of[i]}
            pieces = dict(skip=skips[i], transition=transitions[i], **_below(depth_skip, i, sizes))
            for _ in range(num_directions):
                cells.append(SkipCell(width, sizes[i], **pieces, **options, rngs=rngs))
            width = sizes[i] * num_directions
        super().__init__(
            cells,
            bidirectional=bidirectional,
            reverse=reverse,
            dropout=dropout,
            variational=variational,
            implementation=implementation,
            call_rngs=call_rngs,
        )


class SkipLSTM(SkipRNN):
    """A `SkipRNN` under the name of its default transition."""


def _below(depth_skip: F.DepthSkip | None, i: int, sizes: Sequence[int]) -> dict[str, Any]:
    """Return the options of the cells of layer `i` for its depth skip; none if it has no source."""
    if depth_skip is None or i < depth_skip.layers_below:
        return {}
    # From the lowest layer to the nearest one that is far enough below.
    sources = sizes[: i - depth_skip.layers_below + 1]
    if not depth_skip.all_below:
        sources = sources[-1:]
    return dict(depth_skip=depth_skip, below_features=sum(sources))


def count_layers(num_layers: int | None, **per_layer: Any) -> int:
    """Return the number of layers: `num_layers`, or the length of per-layer arguments, or 1.

    Each sequence among `per_layer` has one entry for each layer; other values are ignored.
    """
    counts = {name: len(value) for name, value in per_layer.items() if _is_list(value)}
    if num_layers is not None:
        counts["num_layers"] = check_whole("num_layers", num_layers)
    if min(counts.values(), default=1) < 1:
        raise UserError(
            "expected at least one layer: raise num_layers, or give a skip for each layer"
        )
    if len(set(counts.values())) > 1:
        given = ", ".join(f"{name} for {count}" for name, count in counts.items())
        raise UserError(f"arguments disagree about the number of layers: {given}")
    return next(iter(counts.values()), 1)


def _each(name: str, value: Any, count: int) -> tuple[Any, ...]:
    """Return one value for each layer, repeating a single one."""
    if not _is_list(value):
        return (value,) * count
    values = tuple(value)
    if len(values) != count:
        raise UserError(f"expected one {name} or {count}, one for each layer, got {len(values)}")
    return values


def _is_list(value: Any) -> bool:
    """Return whether a value has an entry for each layer; a name, such as `dynamic:5`, has not."""
    return isinstance(value, Sequence) and not isinstance(value, str)
