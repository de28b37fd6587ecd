"""Stacked recurrent layers, in one or both directions, with skips over time and over depth."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.keys import example_keys, split_each
from dynskip_jax.nn.cells import SkipCell
from dynskip_jax.nn.layers import SkipLayer


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


class SkipStack(nnx.Module):
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
        dtype: of all layers' products, where `cell_options` do not say; see `SkipCell`.
        rngs: source of the initial parameters.
        cell_options: options of `SkipCell` for all layers, or one mapping for each.

    Attributes:
        layers: one `SkipLayer` for each layer and direction, in the order of `StackOutput`.

    Example::

        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax import functional as F
        >>> skips = [F.Previous(), F.Previous(), F.Dynamic(5)]
        >>> stack = SkipStack(
        ...     3, 8, skips, depth_skip=F.GatedToOutput(), bidirectional=True, rngs=nnx.Rngs(0)
        ... )
        >>> carry, outputs = stack(stack.initialize_carry(2, jax.random.key(1)), jnp.ones((2, 7, 3)))
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
        dtype: Any = None,
        cell_options: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        rngs: nnx.Rngs,
    ):
        depth = len(skips)
        hidden_features = _each(hidden_features, depth, int)
        transitions = _each(transition, depth, F.Transition)
        if isinstance(dropout, int | float):
            dropout = (dropout,) * (depth + 1)
        if len(dropout) != depth + 1:
            raise UserError(f"{depth} layers have {depth + 1} places for dropout, got {len(dropout)}")
        self.dropout = tuple(dropout)
        self.locked = locked
        self.num_directions = 2 if bidirectional else 1
        if cell_options is None or isinstance(cell_options, dict):
            cell_options = [cell_options or {}] * depth
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
                layers.append(SkipLayer(cell, reverse=direction == 1, keep_order=True, rngs=False))
        self.layers = nnx.List(layers)

    @property
    def skips(self) -> tuple[F.TimeSkip, ...]:
        """The time skip of each layer and direction, in the order of `StackOutput`."""
        return tuple(layer.cell.skip for layer in self.layers)

    def initialize_carry(self, batch_size: int, key: Key[Array, "..."]) -> tuple[F.SkipCarry, ...]:
        """Returns the initial carry of each layer, without a recurrent-dropout mask.

        Args:
            batch_size: number of sequences.
            key: one PRNG key, or one per sequence, (batch,).
        """
        keys = split_each(key, len(self.layers))
        return tuple(
            layer.cell.initialize_carry((batch_size, layer.cell.in_features), k)._replace(recurrent_mask=None)
            for layer, k in zip(self.layers, keys, strict=True)
        )

    def restart_carry(self, carry: tuple[F.SkipCarry, ...]) -> tuple[F.SkipCarry, ...]:
        """Keeps each layer's newest state and forgets the others; see `SkipCell.restart_carry`."""
        return tuple(layer.cell.restart_carry(c) for layer, c in zip(self.layers, carry, strict=True))

    def __call__(
        self,
        carry: tuple[F.SkipCarry, ...],
        x: Float[Array, "batch time in"],
        *,
        key: Key[Array, "..."] | None = None,
        weight_key: Key[Array, ""] | None = None,
        seq_lengths: Int[Array, " batch"] | None = None,
        actions: Sequence[Int[Array, "batch time"] | None] | None = None,
        mode: ActionMode = "sample",
        temperature: float | Float[Array, ""] = 1.0,
        mix: float | Float[Array, ""] | None = None,
        policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
        implementation: str | None = None,
    ) -> tuple[tuple[F.SkipCarry, ...], StackOutput]:
        """Runs the stack.

        Args:
            carry: one carry per layer and direction.
            x: inputs, (batch, time, in).
            key: for dropout: one PRNG key, from which each sequence's own is split, or one per sequence,
                (batch,); None switches it off. The agents' noise comes from the carry's own keys.
            weight_key: one PRNG key, for the cells' `weight_dropout`; None switches it off.
            seq_lengths: true lengths, (batch,).
            actions: for each layer and direction the actions to be replayed, or None.
            mode: how agents choose.
            temperature: of attention and relaxations.
            mix: the skip weight λ of every layer with an agent, in place of the skips' own.
            policy_mask: for every layer with an agent.
            implementation: of every layer's unroll; see `functional.unroll`.

        Returns:
            The last carry of each layer and direction, and the outputs.
        """
        num_layers = len(self.layers)
        depth = num_layers // self.num_directions
        keys = (None,) * (depth + 1 + num_layers)
        if key is not None:
            keys = split_each(example_keys(key, x.shape[:1]), depth + 1 + num_layers)
        weight_keys = (None,) * num_layers if weight_key is None else jax.random.split(weight_key, num_layers)
        drop = F.locked_dropout if self.locked else F.dropout
        new_carry, outputs, observations = [], [], []
        for i, layer in enumerate(self.layers):
            cell, start = layer.cell, carry[i]
            place, direction = divmod(i, self.num_directions)
            if direction == 0:
                x = drop(keys[place], self.dropout[place], x)
            if key is not None and cell.recurrent_dropout > 0.0:
                start = cell.draw_recurrent_mask(start, keys[depth + 1 + i])
            end, output = layer(
                x,
                below=self._below(i, outputs),
                initial_carry=start,
                seq_lengths=seq_lengths,
                return_carry=True,
                actions=None if actions is None else actions[i],
                mode=mode,
                temperature=temperature,
                mix=mix if cell.skip.has_agent else None,
                policy_mask=policy_mask if cell.skip.has_agent else None,
                weight_key=weight_keys[i],
                return_memory=self._gives_memory(i),
                implementation=implementation,
            )
            observations.append((x, _previous(start.state.h, output.h, layer.reverse, seq_lengths)))
            new_carry.append(end._replace(recurrent_mask=None))
            outputs.append(output)
            if direction == self.num_directions - 1:
                sides = [output.h for output in outputs[-self.num_directions :]]
                x = jnp.concatenate(sides, axis=-1) if len(sides) > 1 else sides[0]
        dropped = drop(keys[depth], self.dropout[depth], x)
        decisions = tuple(output.decision for output in outputs)
        return tuple(new_carry), StackOutput(dropped, x, decisions, tuple(observations))

    def _below(self, i: int, outputs: Sequence[F.SkipOutput]) -> Float[Array, "batch time below"] | None:
        """What the skip over depth brings to a layer, from the same direction further below."""
        skip = self.layers[i].cell.recurrence.depth_skip
        if skip is None:
            return None
        source = outputs[i - skip.layers_below * self.num_directions]
        return source.h if skip.source == "output" else source.memory

    def _gives_memory(self, i: int) -> bool:
        """Whether a layer further up receives this one's internal state."""
        for above in range(i + 1, len(self.layers)):
            skip = self.layers[above].cell.recurrence.depth_skip
            if (
                skip is not None
                and skip.source == "memory"
                and above - skip.layers_below * self.num_directions == i
            ):
                return True
        return False


def _each(value: Any, count: int, kind: type) -> tuple[Any, ...]:
    """One value for each layer, where one stands for all."""
    values = (value,) * count if isinstance(value, kind) else tuple(value)
    if len(values) != count:
        raise UserError(f"{count} layers need as many sizes and transitions, got {len(values)}")
    return values


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
