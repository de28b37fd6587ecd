"""Stacked recurrent layers, in one or both directions, with skips over time and over depth."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.keys import check_keys, example_keys, split_each
from dynskip_jax.functional.outputs import holds_array
from dynskip_jax.nn.batching import BatchAxes
from dynskip_jax.nn.cells import SkipCell, as_key, require_key, shared_key
from dynskip_jax.nn.layers import SkipLayer
from dynskip_jax.nn.modes import HasModes

# What a stack gives its cells itself, and the argument of the stack that decides it.
_OWN_OPTIONS = {
    "in_features": "in_features",
    "hidden_features": "hidden_features",
    "skip": "skips",
    "transition": "transition",
    "depth_skip": "depth_skip",
    "below_features": "hidden_features",
    "rngs": "rngs",
}


@holds_array("h")
class StackOutput(NamedTuple):
    """What a stack returns. Where there are two directions, each has an entry of its own in the tuples: layer
    1 forward, layer 1 backward, layer 2 forward, and so on.

    Attributes:
        h: the top layer's outputs after dropout, (batch, time, hidden), or forward beside backward.
        states: the same before dropout.
        decisions: one trace per layer, bottom first, each leaf (batch, time).
        observations: for each layer the x(t) and the h(t-1) of s(t) in Eq. 1, (batch, time, ...).
    """

    h: Float[Array, "batch time features"]
    states: Float[Array, "batch time features"]
    decisions: tuple[F.Decision, ...]
    observations: tuple[tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]], ...]


F.register_for_export(StackOutput)


class SkipStack(HasModes):
    """Layers on top of each other, with dropout on every layer's input and on the last one's output.

    Dropout is not applied to recurrent connections (Zaremba et al. 2014), nor to what skips over depth bring.

    With two directions every layer has a forward and a backward half, and the next one reads both, side by
    side (Graves & Schmidhuber 2005). A skip over depth stays within its direction (Wu et al. 2016, Eq. 50);
    it starts where a layer has one two below it (of `Highway`: one below), the stack's own input not
    counting.

    Args:
        in_features: size of the input.
        hidden_features: size of every layer's state, or one size for each layer.
        skips: the time skip of each layer, bottom first; both directions have the same.
        transition: the transition of every layer, or one for each.
        depth_skip: what each layer receives from further below; None for nothing.
        bidirectional: whether there are two directions.
        dropout: rate on every layer's input and on the last one's output, or one rate for each of these
            places, bottom first: one more than there are layers.
        locked: drop the same features at all steps of a call (Gal & Ghahramani 2016; Merity et al. 2018).
        return_carry: return `(carry, outputs)` instead of `outputs`.
        dtype: of all layers' products, where `cell_options` do not say; see `SkipCell`.
        rngs: source of the initial parameters.
        cell_options: options of `SkipCell` for all layers, or one mapping for each; not those that the stack
            gives its cells itself.

    Attributes:
        layers: one `SkipLayer` for each layer and direction, in the order of `StackOutput`.
        deterministic: set by `.train()` and `.eval()`: greedy choices and no dropout when True.

    Example::

        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax import functional as F
        >>> skips = [F.Previous(), F.Previous(), F.Dynamic(5)]
        >>> stack = SkipStack(
        ...     3, 8, skips, depth_skip=F.GatedToOutput(), bidirectional=True, rngs=nnx.Rngs(0)
        ... )
        >>> outputs = stack(jnp.ones((2, 7, 3)), rngs=jax.random.key(1))
        >>> outputs.h.shape, len(outputs.decisions)
        ((2, 7, 16), 6)
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | Sequence[int],
        skips: Sequence[F.TimeSkip],
        *,
        transition: F.Transition | Sequence[F.Transition] = F.LSTM(),  # noqa: B008 (immutable)
        depth_skip: F.DepthSkip | None = None,
        bidirectional: bool = False,
        dropout: float | Sequence[float] = 0.0,
        locked: bool = False,
        return_carry: bool = False,
        dtype: Any = None,
        cell_options: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        rngs: nnx.Rngs,
    ):
        depth = num_layers(skips)
        hidden_features = _each(hidden_features, depth)
        transitions = _each(transition, depth)
        if isinstance(dropout, int | float):
            dropout = (dropout,) * (depth + 1)
        if len(dropout) != depth + 1:
            raise UserError(f"{depth} layers have {depth + 1} places for dropout, got {len(dropout)}")
        self.dropout = tuple(dropout)
        self.locked = locked
        self.return_carry = return_carry
        self.deterministic = False
        self.num_directions = 2 if bidirectional else 1
        if cell_options is None or isinstance(cell_options, dict):
            cell_options = [cell_options or {}] * depth
        if len(cell_options) != depth:
            raise UserError(f"{depth} layers need as many cell_options, got {len(cell_options)}")
        _check_cell_options(cell_options)
        sizes = (in_features, *(size * self.num_directions for size in hidden_features[:-1]))
        layers = []
        for i in range(depth):
            options = {"dtype": dtype, **cell_options[i]}
            below = None if depth_skip is None else i - depth_skip.layers_below
            if below is not None and below >= 0:
                options |= {"depth_skip": depth_skip, "below_features": hidden_features[below]}
            for direction in range(self.num_directions):
                cell = SkipCell(
                    sizes[i], hidden_features[i], skips[i], transition=transitions[i], rngs=rngs, **options
                )
                layers.append(SkipLayer(cell, reverse=direction == 1, keep_order=True))
        self.layers = nnx.List(layers)

    @property
    def skips(self) -> tuple[F.TimeSkip, ...]:
        """The time skip of each layer and direction, in the order of `StackOutput`."""
        return tuple(layer.cell.skip for layer in self.layers)

    @property
    def reverse(self) -> tuple[bool, ...]:
        """Of each layer and direction whether it reads from the end, in the order of `StackOutput`."""
        return tuple(layer.reverse for layer in self.layers)

    @property
    def both_ways(self) -> tuple[bool, ...]:
        """Of each layer and direction whether its choices change what is said of steps read before them, too:
        a layer above reads the other way."""
        below_top = len(self.layers) - self.num_directions
        return tuple(self.num_directions > 1 and i < below_top for i in range(len(self.layers)))

    def initialize_carry(
        self, batch_size: int, rngs: nnx.Rngs | nnx.RngStream | Array | None = None
    ) -> tuple[F.SkipCarry, ...]:
        """Returns the initial carry of each layer and direction, without a recurrent-dropout mask.

        Args:
            batch_size: number of sequences.
            rngs: a PRNG key, one for each sequence, (batch,), an `nnx.Rngs` or a stream; None where nothing
                is drawn.
        """
        if rngs is None and any(layer.cell._draws(deterministic=self.deterministic) for layer in self.layers):
            require_key(None, "this stack")  # says what to do
        key = as_key(rngs)
        check_keys(key)
        keys = split_each(key, len(self.layers))
        return tuple(
            layer.cell._new_carry((batch_size,), k, True) for layer, k in zip(self.layers, keys, strict=True)
        )

    def restart_carry(self, carry: tuple[F.SkipCarry, ...]) -> tuple[F.SkipCarry, ...]:
        """Keeps each layer's newest state and forgets the others; see `SkipCell.restart_carry`."""
        return tuple(layer.cell.restart_carry(c) for layer, c in zip(self.layers, carry, strict=True))

    def __call__(
        self,
        inputs: Float[Array, "*batch time in"],
        *,
        initial_carry: tuple[F.SkipCarry, ...] | None = None,
        seq_lengths: Int[Array, "*batch"] | None = None,
        segment_ids: Int[Array, "*batch time"] | None = None,
        actions: Sequence[Int[Array, "*batch time"] | None] | None = None,
        policy: F.Policy | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        weight_key: Key[Array, ""] | None = None,
        deterministic: bool | None = None,
        return_carry: bool | None = None,
        implementation: str | None = None,
    ) -> Any:
        """Runs the stack; arguments are those of `SkipLayer`.

        Args:
            inputs: (*batch, time, in), with one batch axis, none or several.
            initial_carry: where to start, one carry for each layer and direction; the choices' noise comes
                from their keys.
            seq_lengths: true lengths, (*batch,).
            segment_ids: of several sequences packed in one row, (*batch, time).
            actions: for each layer and direction the actions to be replayed, or None.
            policy: how choices are made; by default greedy after `.eval()`, and sampled otherwise. Its λ and
                its mask are for the layers with an agent.
            rngs: for all dropout, and for the initial carries: a PRNG key, one for each sequence, an
                `nnx.Rngs` or a stream.
            weight_key: one PRNG key for the cells' `weight_dropout`, in place of one made of `rngs`.
            deterministic: overrides what `.train()` and `.eval()` say.
            return_carry: overrides the stack's own setting.
            implementation: of every layer's unroll; see `functional.unroll`.

        Returns:
            `StackOutput`, preceded by the last carry of each layer and direction if asked for.

        Raises:
            UserError: an argument does not fit, or something is drawn without a key.
        """
        deterministic = self.deterministic if deterministic is None else deterministic
        policy = self.layers[0].cell._policy(policy=policy, deterministic=deterministic)
        self.layers[0].cell._check_inputs(inputs, "(*batch, time, in)", 2)
        axes = BatchAxes(inputs.shape[:-2])
        self._check_per_layer(initial_carry=initial_carry, actions=actions)
        x, carry, seq_lengths, segment_ids, actions = axes.merged(
            (inputs, initial_carry, seq_lengths, segment_ids, actions)
        )
        policy = axes.merged_policy(policy)
        carry, keys, weight_keys = self._noise(
            x.shape[0],
            carry,
            axes.merged(rngs) if _is_array(rngs) and rngs.ndim else rngs,
            weight_key,
            policy,
            deterministic,
            actions,
        )

        num_layers = len(self.layers)
        depth = num_layers // self.num_directions
        drop = F.locked_dropout if self.locked else F.dropout
        plain = policy.without_agent()
        new_carry, outputs, observations = [], [], []
        for i, layer in enumerate(self.layers):
            cell, start = layer.cell, carry[i]
            place, direction = divmod(i, self.num_directions)
            if direction == 0:
                x = drop(keys[place], self.dropout[place], x)
            if keys[depth + 1 + i] is not None:
                start = cell._draw_recurrent_mask(
                    carry=start, key=keys[depth + 1 + i], deterministic=deterministic
                )
            end, output = layer(
                x,
                below=self._below(i, outputs),
                initial_carry=start,
                seq_lengths=seq_lengths,
                segment_ids=segment_ids,
                return_carry=True,
                actions=None if actions is None else actions[i],
                policy=policy if cell.skip.has_agent else plain,
                weight_key=weight_keys[i],
                deterministic=deterministic,
                return_cell_state=self._gives_cell_state(i),
                implementation=implementation,
            )
            before = _previous(start.state.h, output.h, layer.reverse, seq_lengths)
            if segment_ids is not None:
                begins = _begins(segment_ids, layer.reverse, seq_lengths)
                before = jnp.where(begins[..., None], cell.initial_state(x.shape[:1]).h[:, None], before)
            observations.append((x, before))
            new_carry.append(end._replace(recurrent_mask=None))
            outputs.append(output)
            if direction == self.num_directions - 1:
                sides = [output.h for output in outputs[-self.num_directions :]]
                x = jnp.concatenate(sides, axis=-1) if len(sides) > 1 else sides[0]
        dropped = drop(keys[depth], self.dropout[depth], x)
        decisions = tuple(output.decision for output in outputs)
        result = axes.split(StackOutput(dropped, x, decisions, tuple(observations)))
        if self.return_carry if return_carry is None else return_carry:
            return axes.split(tuple(new_carry)), result
        return result

    def _check_per_layer(self, **given: Any) -> None:
        for name, values in given.items():
            if values is None:
                continue
            if not isinstance(values, tuple | list) or isinstance(values, F.SkipCarry):
                raise UserError(f"{name} is a tuple, one for each layer and direction")
            if len(values) != len(self.layers):
                raise UserError(
                    f"{len(self.layers)} layers and directions need as many of {name}, got {len(values)}"
                )

    def samples(
        self, policy: F.Policy | None, actions: Sequence[Any] | None, deterministic: bool | None
    ) -> bool:
        """Says whether a call with these arguments draws with the keys of its carries."""
        return any(
            layer.cell._draws(
                policy=policy,
                replayed=actions is not None and actions[i] is not None,
                deterministic=deterministic,
            )
            for i, layer in enumerate(self.layers)
        )

    def _noise(self, batch, carry, rngs, weight_key, policy, deterministic, actions):
        """The carries to start from, and the keys of dropped features, masks and weights; None for none."""
        cells = [layer.cell for layer in self.layers]
        num_layers = len(cells)
        places = len(self.dropout) + num_layers
        draws = carry is None and self.samples(policy, actions, deterministic)
        drops = not deterministic and (any(self.dropout) or any(cell.recurrent_dropout for cell in cells))
        drops_weights = not deterministic and any(cell.weight_dropout for cell in cells)
        key = None
        if draws or drops or (drops_weights and weight_key is None):
            key = require_key(rngs, "this stack")
        if carry is None:
            carry_key = jax.random.key(0)
            if key is not None:
                carry_key, key = split_each(key, 2)
            keys = split_each(carry_key, num_layers)
            carry = tuple(cell._new_carry((batch,), k, True) for cell, k in zip(cells, keys, strict=True))
        feature_keys = (None,) * places
        if drops:
            feature_keys = split_each(example_keys(key, (batch,)), places)
        weight_keys = (None,) * num_layers
        if drops_weights:
            if weight_key is None:
                weight_key = shared_key(key)
            weight_keys = jax.random.split(weight_key, num_layers)
        return carry, feature_keys, weight_keys

    def _below(self, i: int, outputs: Sequence[F.SkipOutput]) -> Float[Array, "batch time below"] | None:
        """What the skip over depth brings to a layer, from the same direction further below."""
        skip = self.layers[i].cell.recurrence.depth_skip
        if skip is None:
            return None
        source = outputs[i - skip.layers_below * self.num_directions]
        return source.h if skip.source == "output" else source.cell_state

    def _gives_cell_state(self, i: int) -> bool:
        """Whether a layer further up receives this one's internal state."""
        for above in range(i + 1, len(self.layers)):
            skip = self.layers[above].cell.recurrence.depth_skip
            if (
                skip is not None
                and skip.source == "cell_state"
                and above - skip.layers_below * self.num_directions == i
            ):
                return True
        return False


def num_layers(skips: Sequence[F.TimeSkip]) -> int:
    """Returns how many layers have these skips.

    Raises:
        UserError: there is none, or one skip in the place of a sequence.
    """
    if not isinstance(skips, Sequence):
        raise UserError(
            f"skips has a time skip for each layer, such as [functional.Dynamic(5)], not {skips!r}"
        )
    if not skips:
        raise UserError("a stack has at least one layer: give the time skip of each")
    return len(skips)


def _each(value: Any, count: int) -> tuple[Any, ...]:
    """One value for each layer, where one stands for all."""
    values = tuple(value) if isinstance(value, Sequence) else (value,) * count
    if len(values) != count:
        raise UserError(f"{count} layers need as many sizes and transitions, got {len(values)}")
    return values


def _check_cell_options(cell_options: Sequence[dict[str, Any]]) -> None:
    """Refuses what a stack gives its cells itself, under another name or none."""
    for name in (name for options in cell_options for name in options):
        if name in _OWN_OPTIONS:
            raise UserError(f"cell_options have no {name!r}: give it to the stack, as {_OWN_OPTIONS[name]}=")


def _previous(
    start: Float[Array, "batch hidden"],
    h: Float[Array, "batch time hidden"],
    reverse: bool,
    seq_lengths: Int[Array, " batch"] | None,
) -> Float[Array, "batch time hidden"]:
    """The h that was there before each step, in the order of the inputs."""
    if reverse:
        h = F.flip_sequences(h, seq_lengths)
    before = jnp.concatenate([start[:, None], h[:, :-1]], axis=1)
    return F.flip_sequences(before, seq_lengths) if reverse else before


def _begins(
    segment_ids: Int[Array, "batch time"], reverse: bool, seq_lengths: Int[Array, " batch"] | None
) -> Bool[Array, "batch time"]:
    """Where another sequence of the row begins, in the order of the inputs."""
    if reverse:
        segment_ids = F.flip_sequences(segment_ids, seq_lengths)
    begins = F.segment_starts(segment_ids)
    return F.flip_sequences(begins, seq_lengths) if reverse else begins


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.Array)
