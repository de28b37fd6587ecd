"""Stacked recurrent layers, each with a time skip of its own."""

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
from dynskip_jax.nn.cells import SkipLSTMCell
from dynskip_jax.nn.layers import SkipLSTM


class StackOutput(NamedTuple):
    """What a stack returns.

    Attributes:
        h: the top layer's outputs after dropout, (batch, time, hidden).
        states: the same before dropout.
        decisions: one trace per layer, bottom first, each leaf (batch, time).
        seen: for each layer the x(t) and the h(t-1) of s(t) in Eq. 1, (batch, time, ...).
    """

    h: Float[Array, "batch time hidden"]
    states: Float[Array, "batch time hidden"]
    decisions: tuple[F.Decision, ...]
    seen: tuple[tuple[Float[Array, "batch time in"], Float[Array, "batch time hidden"]], ...]


class SkipLSTMStack(nnx.Module):
    """Layers on top of each other, with dropout on every layer's input and on the last one's output.

    Dropout is not applied to recurrent connections (Zaremba et al. 2014).

    Args:
        in_features: size of the input.
        hidden_features: size of every layer's state, or one size for each layer.
        skips: the time skip of each layer, bottom first.
        dropout: rate on every layer's input and on the last one's output, or one rate for each of these
            places, bottom first: one more than there are layers.
        locked: drop the same features at all steps of a call (Gal & Ghahramani 2016; Merity et al. 2018).
        dtype: of all layers' products, where `cell_options` do not say; see `SkipLSTMCell`.
        rngs: source of the initial parameters.
        cell_options: options of `SkipLSTMCell` for all layers, or one mapping for each.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int | Sequence[int],
        skips: Sequence[F.TimeSkip],
        *,
        dropout: float | Sequence[float] = 0.0,
        locked: bool = False,
        dtype: Any = None,
        cell_options: dict[str, Any] | Sequence[dict[str, Any]] | None = None,
        rngs: nnx.Rngs,
    ):
        if isinstance(hidden_features, int):
            hidden_features = (hidden_features,) * len(skips)
        if isinstance(dropout, int | float):
            dropout = (dropout,) * (len(skips) + 1)
        if len(dropout) != len(skips) + 1:
            raise UserError(
                f"{len(skips)} layers have {len(skips) + 1} places for dropout, got {len(dropout)}"
            )
        self.dropout = tuple(dropout)
        self.locked = locked
        if cell_options is None or isinstance(cell_options, dict):
            cell_options = [cell_options or {}] * len(skips)
        sizes = (in_features, *hidden_features[:-1])
        self.layers = nnx.List(
            [
                SkipLSTM(
                    SkipLSTMCell(size, hidden, skip, rngs=rngs, **{"dtype": dtype, **options}),
                    rngs=False,
                )
                for size, hidden, skip, options in zip(
                    sizes, hidden_features, skips, cell_options, strict=True
                )
            ]
        )

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
    ) -> tuple[tuple[F.SkipCarry, ...], StackOutput]:
        """Runs the stack.

        Args:
            carry: one carry per layer.
            x: inputs, (batch, time, in).
            key: for dropout: one PRNG key, from which each sequence's own is split, or one per sequence,
                (batch,); None switches it off. The agents' noise comes from the carry's own keys.
            weight_key: one PRNG key, for the cells' `weight_dropout`; None switches it off.
            seq_lengths: true lengths, (batch,).
            actions: for each layer the actions to be replayed, or None.
            mode: how agents choose.
            temperature: of attention and relaxations.
            mix: λ of every layer with an agent, in place of the skips' own.
            policy_mask: for every layer with an agent.

        Returns:
            The last carry of each layer, and the outputs.
        """
        num_layers = len(self.layers)
        keys = (None,) * (2 * num_layers + 1)
        if key is not None:
            keys = split_each(example_keys(key, x.shape[:1]), 2 * num_layers + 1)
        weight_keys = (None,) * num_layers if weight_key is None else jax.random.split(weight_key, num_layers)
        drop = F.locked_dropout if self.locked else F.dropout
        new_carry, decisions, seen = [], [], []
        for i, layer in enumerate(self.layers):
            cell, start = layer.cell, carry[i]
            if key is not None and cell.recurrent_dropout > 0.0:
                start = cell.draw_recurrent_mask(start, keys[num_layers + 1 + i])
            x = drop(keys[i], self.dropout[i], x)
            end, outputs = layer(
                x,
                initial_carry=start,
                seq_lengths=seq_lengths,
                return_carry=True,
                actions=None if actions is None else actions[i],
                mode=mode,
                temperature=temperature,
                mix=mix if cell.skip.has_agent else None,
                policy_mask=policy_mask if cell.skip.has_agent else None,
                weight_key=weight_keys[i],
            )
            seen.append((x, jnp.concatenate([start.h[:, :1], outputs.h[:, :-1]], axis=1)))
            x = outputs.h
            new_carry.append(end._replace(recurrent_mask=None))
            decisions.append(outputs.decision)
        dropped = drop(keys[num_layers], self.dropout[num_layers], x)
        return tuple(new_carry), StackOutput(dropped, x, tuple(decisions), tuple(seen))
