"""Stacked recurrent layers with skips, in one or both directions: the main classes of the library."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import check_actions, check_range, check_whole_numbers, known_values
from dynskip_jax.functional.layers import initial_carries
from dynskip_jax.nn.calls import Rngs, as_key, as_rates, check_inputs, policy_or_default, require_key
from dynskip_jax.nn.cells import SkipCell
from dynskip_jax.nn.modes import HasModes

# Arguments of cells that layers set themselves, and the argument of `SkipLSTM` that determines each.
_DECIDED_ELSEWHERE = {
    "in_features": "in_features",
    "hidden_features": "hidden_features",
    "skip": "skip",
    "transition": "transition",
    "depth_skip": "depth_skip",
    "below_features": "hidden_features",
    "return_decision": None,
    "rngs": "rngs",
}


class SkipLayers(HasModes):
    """Stacked recurrent layers that run cells over sequences, with dropout between the layers.

    `SkipLSTM` makes the cells itself. Use this class for your own cells or for cells from `nn.convert`.

    Args:
        cells: Cells, bottom layer first. With two directions: layer 1 forward, layer 1 backward, and so on.
        bidirectional: Whether each layer has a forward and a backward cell, whose outputs are concatenated
            (Graves & Schmidhuber 2005).
        reverse: Whether layers with one direction read from each sequence's end. Outputs keep the order of
            the inputs.
        dropout: Dropout rate on every layer's input and on the last layer's output (Zaremba et al. 2014), or
            one rate for each of these places, bottom first.
        variational: Whether dropout drops the same features at all steps of a sequence (Gal & Ghahramani
            2016).
        time_major: Whether inputs and outputs are (time, *batch, ...) instead of (*batch, time, ...).
        implementation: `auto`, `fused`, `reference` (the definition), `cudnn` or `parallel`; see
            `functional.unroll`.
        scan_unroll: Number of steps per iteration of the compiled loops over time.
        call_rngs: Source of keys for calls without `rngs=`: an `nnx.Rngs`, whose `carry` stream is used, or a
            stream. None requires `rngs=` in every call that needs a key.

    Attributes:
        cells: One `SkipCell` for each layer and direction.
        deterministic: Whether choices are greedy by default and nothing is dropped. Set by `.train()`,
            `.eval()` and `nnx.view`.
    """

    def __init__(
        self,
        cells: Sequence[SkipCell],
        *,
        bidirectional: bool = False,
        reverse: bool = False,
        dropout: float | Sequence[float] = 0.0,
        variational: bool = False,
        time_major: bool = False,
        implementation: str = "auto",
        scan_unroll: int = 1,
        call_rngs: nnx.Rngs | nnx.RngStream | None = None,
    ):
        for cell in cells:
            if not isinstance(cell, SkipCell):
                raise UserError(
                    f"SkipLayers runs SkipCells, got {type(cell).__name__}: nnx.RNN runs other cells, and "
                    "nn.from_flax makes a SkipCell of Flax's"
                )
        self.num_directions = 2 if bidirectional else 1
        if not cells or len(cells) % self.num_directions:
            raise UserError(f"expected a cell for each layer and direction, at least one, got {len(cells)}")
        if bidirectional and reverse:
            raise UserError("reverse is for one direction: leave it out where bidirectional is True")
        depth = len(cells) // self.num_directions
        rates = as_rates(dropout, depth + 1)
        if len(rates) != depth + 1:
            raise UserError(f"{depth} layers have {depth + 1} places for dropout, got {len(rates)} rates")
        for i, cell in enumerate(cells):
            _check_sources(cell.recurrence.depth_skip, i // self.num_directions)
        self.cells = nnx.List(list(cells))
        self.reverse = reverse
        self.dropout = rates
        self.variational = variational
        self.time_major = time_major
        self.implementation = implementation
        self.scan_unroll = scan_unroll
        self.call_rngs = nnx.data(call_rngs.carry.fork() if isinstance(call_rngs, nnx.Rngs) else call_rngs)
        self.deterministic = False

    @property
    def skips(self) -> tuple[F.TimeSkip, ...]:
        """Time skip of each layer and direction."""
        return tuple(cell.skip for cell in self.cells)

    @property
    def reads_reverse(self) -> tuple[bool, ...]:
        """Whether each layer and direction reads from the end of a sequence."""
        if self.num_directions == 1:
            return (self.reverse,) * len(self.cells)
        return (False, True) * (len(self.cells) // 2)

    @property
    def spec(self) -> F.LayersSpec:
        """Static description of the layers."""
        specs = (
            dataclasses.replace(cell.spec, reverse=back)
            for cell, back in zip(self.cells, self.reads_reverse, strict=True)
        )
        return F.LayersSpec(
            tuple(specs),
            self.num_directions,
            self.dropout,
            self.variational,
            self.time_major,
            self.implementation,
            self.scan_unroll,
        )

    def initialize_carry(
        self, batch_size: int | tuple[int, ...], rngs: Rngs = None
    ) -> tuple[F.SkipCarry, ...]:
        """Return the initial carry of each layer and direction.

        Args:
            batch_size: Number of sequences, or sizes of several batch axes.
            rngs: A PRNG key, one key for each sequence, an `nnx.Rngs` or a stream. If None, the carries have
                no keys, and a later call that needs a key requires `rngs=`.
        """
        batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
        starts = [cell.initial_state(batch) for cell in self.cells]
        return initial_carries(self.spec.layers, starts, as_key(rngs))

    def restart_carry(self, carry: tuple[F.SkipCarry, ...]) -> tuple[F.SkipCarry, ...]:
        """Return each layer's carry with only its newest state kept; see `SkipCell.restart_carry`."""
        return tuple(cell.restart_carry(each) for cell, each in zip(self.cells, carry, strict=True))

    def __call__(
        self,
        inputs: Float[Array, "..."],
        *,
        initial_carry: Sequence[F.SkipCarry] | None = None,
        seq_lengths: Int[Array, "*batch"] | None = None,
        segment_ids: Int[Array, "..."] | None = None,
        actions: Sequence[Int[Array, "..."] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: Rngs = None,
        weight_key: Key[Array, ""] | None = None,
        deterministic: bool | None = None,
        return_carry: bool = False,
    ) -> Any:
        """Run the layers over a batch of sequences.

        Args:
            inputs: Input sequences, (*batch, time, in), or (time, *batch, in) with `time_major`. There may be
                no, one or several batch axes.
            initial_carry: One carry for each layer and direction; the initial state by default. If the
                carries have keys, choices are drawn with them.
            seq_lengths: True length of each sequence, (*batch,); None if all have full length.
            segment_ids: Ids of the sequences that are packed in each row, with the inputs' batch and time
                axes. Where the id changes, the next sequence begins from the initial state.
            actions: Actions to replay for each layer and direction, with the inputs' batch and time axes;
                None for a layer that chooses, or for all. A layer whose skip does not choose, such as
                attention, ignores them.
            policy: How choices are made. By default greedy in evaluation and sampled in training. λ and masks
                apply only to layers with an agent. A tuple of masks has one for each layer and direction.
            rngs: Source of keys for everything that is not drawn with the keys of `initial_carry` or with
                `weight_key`: a PRNG key, one key for each sequence, an `nnx.Rngs` or a stream.
            weight_key: PRNG key for the cells' `weight_dropout`; by default it is derived from `rngs`.
            deterministic: Overrides the mode set by `.train()` and `.eval()`.
            return_carry: Whether to return `(carry, output)` instead of the output.

        Returns:
            `functional.LayersOutput`; with `return_carry` a pair of the last carry of each layer and
            direction, and this output.

        Raises:
            UserError: An argument does not fit, a key is missing, or `rngs` has no effect.
        """
        deterministic = self.deterministic if deterministic is None else deterministic
        spec = self.spec
        policies = _policies(policy_or_default(policy, deterministic), self.skips)
        layout = "(time, *batch, in)" if self.time_major else "(*batch, time, in)"
        check_inputs(inputs, self.cells[0].in_features, layout, 2)
        self._check_per_layer(initial_carry=initial_carry, actions=actions)
        actions = (None,) * len(self.cells) if actions is None else tuple(actions)
        initial_carry = None if initial_carry is None else tuple(initial_carry)
        self._check_values(inputs, initial_carry, seq_lengths, segment_ids, actions, policies)
        key = None
        arguments = dict(initial_carry=initial_carry, actions=actions, weight_key=weight_key)
        if needs_key(self, policy, **arguments, deterministic=deterministic):
            key = require_key(self.call_rngs if rngs is None else rngs, "this layer")
        elif rngs is not None and _samples(self, policies, actions, deterministic):
            raise UserError(
                "rngs= has no effect: choices continue with the keys of initial_carry, and nothing else is "
                "drawn. Leave it out, or drop the keys: carry._replace(key=None)"
            )
        carry, output = F.run_layers(
            spec,
            tuple(cell.raw_params() for cell in self.cells),
            tuple(cell.learned_state() for cell in self.cells),
            F.LayersCall(inputs, initial_carry, seq_lengths, segment_ids, actions, policies, key, weight_key),
            deterministic=deterministic,
        )
        return (carry, output) if return_carry else output

    def _check_per_layer(self, **given: Any) -> None:
        """Check that arguments have an entry for each layer and direction."""
        for name, values in given.items():
            if values is None:
                continue
            if not isinstance(values, tuple | list) or isinstance(values, F.SkipCarry):
                raise UserError(f"{name} is a tuple, one for each layer and direction")
            if len(values) != len(self.cells):
                raise UserError(
                    f"{len(self.cells)} layers and directions need as many of {name}, got {len(values)}"
                )

    def _check_values(
        self,
        inputs: Array,
        carry: Sequence[F.SkipCarry] | None,
        seq_lengths: Any,
        segment_ids: Any,
        actions: Sequence[Any],
        policies: Sequence[F.Policy],
    ) -> None:
        """Check shapes, and values that are not traced, before anything is compiled."""
        lead = inputs.shape[:-1]
        batch, time = (lead[1:], lead[0]) if self.time_major else (lead[:-1], lead[-1])
        lengths = np.asarray(time)
        if seq_lengths is not None:
            check_whole_numbers("seq_lengths", seq_lengths, batch, "(batch,)")
            lengths = known_values(seq_lengths)
            if lengths is not None:
                check_range("seq_lengths", lengths, 0, time)
        steps = "(time, batch)" if self.time_major else "(batch, time)"
        if segment_ids is not None:
            check_whole_numbers("segment_ids", segment_ids, lead, steps)
        for cell, action in zip(self.cells, actions, strict=True):
            if action is None:
                continue
            valid = None
            if lengths is not None:
                valid = np.broadcast_to(np.arange(time) < lengths[..., None], (*batch, time))
                valid = np.moveaxis(valid, -1, 0) if self.time_major else valid
            check_actions(cell.skip, action, lead, steps, valid)
        for cell, each in zip(self.cells, carry or (), strict=bool(carry)):
            F.check_carry(cell.recurrence, each, batch, cell.hidden_features)
        for cell, policy in zip(self.cells, policies, strict=True):
            F.check_policy(policy, cell.skip.max_skip, batch)


def _check_sources(depth_skip: F.DepthSkip | None, layer: int) -> None:
    """Raise a `UserError` if the depth skip of the layer with this index has no source in the stack."""
    if depth_skip is not None and layer < depth_skip.layers_below:
        raise UserError(
            f"layer {layer + 1} has a skip over depth, which comes from {depth_skip.layers_below} layers "
            "below, and there is no such layer: make this cell without depth_skip"
        )


def needs_key(
    layers: SkipLayers,
    policy: F.Policy | None = None,
    *,
    initial_carry: Sequence[F.SkipCarry] | None = None,
    actions: Sequence[Any] | None = None,
    weight_key: Key[Array, ""] | None = None,
    deterministic: bool | None = None,
) -> bool:
    """Return whether a call of `layers` with these arguments draws anything with `rngs=`.

    Choices and zoneout use the keys of `initial_carry` if it has keys. Dropout uses `rngs=`, except for
    recurrent masks that the carry already contains and for weight dropout with `weight_key`.

    Args:
        layers: Layers to call.
        policy: See `SkipLayers.__call__`.
        initial_carry: See `SkipLayers.__call__`.
        actions: See `SkipLayers.__call__`.
        weight_key: See `SkipLayers.__call__`.
        deterministic: See `SkipLayers.__call__`.
    """
    deterministic = layers.deterministic if deterministic is None else deterministic
    policies = _policies(policy_or_default(policy, deterministic), layers.skips)
    if not deterministic:
        has_masks = _all_have("recurrent_mask", initial_carry)
        drops_h = any(cell.recurrent_dropout for cell in layers.cells) and not has_masks
        drops_weights = weight_key is None and any(cell.weight_dropout for cell in layers.cells)
        if any(layers.dropout) or drops_h or drops_weights:
            return True
    return _samples(layers, policies, actions, deterministic) and not _all_have("key", initial_carry)


def _samples(
    layers: SkipLayers, policies: Sequence[F.Policy], actions: Sequence[Any] | None, deterministic: bool
) -> bool:
    """Return whether a call samples choices or zoneout masks."""
    actions = (None,) * len(layers.cells) if actions is None else actions
    return any(
        cell.skip.draws(policy.mode, action is not None) or (any(cell.zoneout) and not deterministic)
        for cell, policy, action in zip(layers.cells, policies, actions, strict=True)
    )


def _all_have(name: str, carry: Sequence[F.SkipCarry] | None) -> bool:
    """Return whether `carry` is given and the carry of every layer has the field `name`."""
    return carry is not None and all(getattr(each, name) is not None for each in carry)


def _policies(policy: F.Policy, skips: Sequence[F.TimeSkip]) -> tuple[F.Policy, ...]:
    """Return the policy of each layer; only layers with an agent keep λ and masks."""
    masks = policy.mask if isinstance(policy.mask, tuple) else (policy.mask,) * len(skips)
    if len(masks) != len(skips):
        raise UserError(f"{len(skips)} layers and directions need as many masks, got {len(masks)}")
    return tuple(
        dataclasses.replace(policy, mask=mask) if skip.has_agent else policy.without_agent()
        for mask, skip in zip(masks, skips, strict=True)
    )


def _keyword_options(cls: type) -> dict[str, inspect.Parameter]:
    """Return the keyword-only parameters of a class's constructor."""
    parameters = inspect.signature(cls.__init__).parameters.values()
    return {p.name: p for p in parameters if p.kind is p.KEYWORD_ONLY}


def _with_options_of(*classes: type) -> Callable[[Callable], Callable]:
    """Return a decorator that adds the keyword options of `classes` to the signature of an `__init__`.

    The decorated `__init__` accepts them as `**options`.
    """

    def decorate(function: Callable) -> Callable:
        signature = inspect.signature(function)
        own = {name: p for name, p in signature.parameters.items() if p.kind is not p.VAR_KEYWORD}
        options = {name: p for cls in classes for name, p in _keyword_options(cls).items()}
        more = [p for name, p in options.items() if name not in {*own, *_DECIDED_ELSEWHERE}]
        function.__signature__ = signature.replace(parameters=[*own.values(), *more])
        return function

    return decorate


class SkipLSTM(SkipLayers):
    """Stacked recurrent layers with skips over time and depth; an LSTM by default.

    Args:
        in_features: Size of the input.
        hidden_features: Size of every layer's state, or one size for each layer.
        num_layers: Number of layers. By default the length of `skip` or `hidden_features` if one of them is a
            sequence, and 1 otherwise.
        skip: Time skip of every layer, or one for each layer, bottom first. The default is no skip.
        transition: How a state and an input become the new state, such as `functional.GRU()`; one for all
            layers, or one for each.
        depth_skip: What each layer receives from layers further below in the same direction (Wu et al. 2016).
            The lowest layers, which have no such layer below them, have no depth skip.
        bidirectional: See `SkipLayers`.
        layer_options: Options of `SkipCell` that differ between layers, one mapping for each layer.
        rngs: Source of the initial parameters.
        **options: Options of `SkipLayers`, such as `dropout`, `reverse` and `time_major`, and options of
            `SkipCell` for all layers, such as `agent_features`, `forget_bias`, `recurrent_dropout`,
            `zoneout`, `learnable_carry` and `dtype`.

    Example::

        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax import functional as F
        >>> rnn = SkipLSTM(3, 8, num_layers=2, skip=F.Dynamic(5), bidirectional=True, rngs=nnx.Rngs(0))
        >>> out = rnn(jnp.ones((2, 7, 3)), rngs=jax.random.key(1))
        >>> out.h.shape, len(out.decisions), out.decisions[0].action.shape
        ((2, 7, 16), 4, (2, 7))
    """

    @_with_options_of(SkipLayers, SkipCell)
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
        layer_options: Sequence[Mapping[str, Any]] | None = None,
        rngs: nnx.Rngs,
        **options: Any,
    ):
        of_layers = _keyword_options(SkipLayers)
        run_options = {name: value for name, value in options.items() if name in of_layers}
        cell_options = {name: value for name, value in options.items() if name not in of_layers}
        depth = count_layers(num_layers, skip=skip, hidden_features=hidden_features)
        sizes = _each("hidden_features", hidden_features, depth)
        skips, transitions = _each("skip", skip, depth), _each("transition", transition, depth)
        of_cells = [
            {**cell_options, **of_layer} for of_layer in _each("layer_options", layer_options or {}, depth)
        ]
        _check_options(of_cells)
        ways = 2 if bidirectional else 1
        in_sizes = (in_features, *(size * ways for size in sizes[:-1]))
        cells = []
        for i in range(depth):
            below = -1 if depth_skip is None else i - depth_skip.layers_below
            if below >= 0:
                lowest = 0 if depth_skip.all_below else below
                features = sum(sizes[lowest : below + 1])
                of_cells[i] |= {"depth_skip": depth_skip, "below_features": features}
            for _ in range(ways):
                cell = SkipCell(
                    in_sizes[i], sizes[i], skips[i], transition=transitions[i], rngs=rngs, **of_cells[i]
                )
                cells.append(cell)
        super().__init__(cells, bidirectional=bidirectional, **run_options)


def count_layers(num_layers: int | None, **per_layer: Any) -> int:
    """Return the number of layers: `num_layers`, or the length of per-layer arguments, or 1.

    Args:
        num_layers: Number of layers; None if it is not given.
        **per_layer: Arguments by name. Each sequence has one entry for each layer; other values are ignored.

    Raises:
        UserError: The number is below 1, or the arguments disagree.
    """
    counts = {name: len(value) for name, value in per_layer.items() if isinstance(value, Sequence)}
    if num_layers is not None:
        counts["num_layers"] = num_layers
    if min(counts.values(), default=1) < 1:
        raise UserError("expected at least one layer: raise num_layers, or give a skip for each layer")
    if len(set(counts.values())) > 1:
        given = ", ".join(f"{name} for {count}" for name, count in counts.items())
        raise UserError(f"arguments disagree about the number of layers: {given}")
    return next(iter(counts.values()), 1)


def _each(name: str, value: Any, count: int) -> tuple[Any, ...]:
    """Return one value for each layer, repeating a single one."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(values) != count:
        raise UserError(f"expected one {name} or {count}, one for each layer, got {len(values)}")
    return values


def _check_options(options: Sequence[Mapping[str, Any]]) -> None:
    """Raise an error for options that `SkipCell` does not have or that the layers set themselves."""
    known = {p.name for p in inspect.signature(SkipCell.__init__).parameters.values()} - {"self"}
    for name in (name for of_layer in options for name in of_layer):
        if name in _DECIDED_ELSEWHERE:
            instead = _DECIDED_ELSEWHERE[name]
            remedy = f"give it to SkipLSTM, as {instead}=" if instead else "the output of layers has it"
            raise UserError(f"layer_options have no {name!r}: {remedy}")
        if name not in known:
            raise TypeError(f"SkipLSTM() got an unexpected keyword argument {name!r}")
