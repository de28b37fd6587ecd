"""A recurrent layer that runs the whole unroll of a skip cell and returns the agent's decisions."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.nn.cells import SkipCell


class SkipLayer(nnx.Module):
    """Runs a `SkipCell` over sequences, input projections outside the loop.

    The arguments and their defaults are those of `nnx.RNN`; in addition outputs past the end of a
    sequence are zeros, and actions can be replayed.

    Args:
        cell: the cell.
        time_major: inputs and outputs are (time, batch, ...) instead of (batch, time, ...).
        return_carry: return `(carry, outputs)` instead of `outputs`.
        reverse: run from each sequence's own last step to its first.
        keep_order: with `reverse`, return outputs in the order of the inputs.
        return_decision: return `SkipOutput` (h and the decisions' trace) instead of h alone.
        implementation: `fused`, `reference` (the definition) or `cudnn`; see `functional.unroll`.
        rngs: where calls without a key of their own take one: the `carry` stream of an `nnx.Rngs`, a stream,
            True for a stream of the layer's own (seed 0; each call draws anew), or False for none, where
            every call brings a carry or a key.

    Example::

        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from dynskip_jax.nn import DynamicSkipLSTMCell
        >>> layer = SkipLayer(DynamicSkipLSTMCell(3, 8, max_skip=5, rngs=nnx.Rngs(0)))
        >>> outputs = layer(jnp.ones((2, 7, 3)), rngs=jax.random.key(1))
        >>> outputs.h.shape, outputs.decision.action.shape
        ((2, 7, 8), (2, 7))
    """

    def __init__(
        self,
        cell: SkipCell,
        *,
        time_major: bool = False,
        return_carry: bool = False,
        reverse: bool = False,
        keep_order: bool = False,
        return_decision: bool = True,
        implementation: str = "fused",
        rngs: nnx.Rngs | nnx.RngStream | bool = True,
    ):
        self.cell = cell
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.return_decision = return_decision
        self.implementation = implementation
        if isinstance(rngs, nnx.Rngs):
            rngs = rngs.carry.fork()
        elif rngs is True:
            rngs = nnx.RngStream(0, tag="carry")
        elif rngs is False:
            rngs = None
        self.rngs = nnx.data(rngs)

    def __call__(
        self,
        inputs: Float[Array, "batch_or_time time_or_batch in"],
        *,
        below: Float[Array, "batch_or_time time_or_batch below"] | None = None,
        initial_carry: F.SkipCarry | None = None,
        seq_lengths: Int[Array, " batch"] | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        actions: Int[Array, "batch_or_time time_or_batch"] | None = None,
        mode: ActionMode | None = None,
        temperature: float | Float[Array, ""] = 1.0,
        mix: float | Float[Array, ""] | None = None,
        policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
        weight_key: Key[Array, ""] | None = None,
        return_memory: bool = False,
        implementation: str | None = None,
    ) -> Any:
        """Runs the layer.

        Args:
            inputs: (batch, time, in), or (time, batch, in) with `time_major`.
            below: what the cell's skip over depth brings, laid out as the inputs.
            initial_carry: where to start; by default the cell's initial carry.
            seq_lengths: true lengths, (batch,).
            return_carry: overrides the layer's own setting, as the next three do.
            time_major: see the class.
            reverse: see the class.
            keep_order: see the class.
            rngs: a PRNG key, an `nnx.Rngs` or a stream, for the carry's keys and the dropout mask.
            actions: k in 1..K to be replayed, laid out as the inputs.
            mode: `sample`, `greedy` or a relaxation (`functional.RELAXATIONS`); by default greedy after
                `.eval()`.
            temperature: of attention and relaxations.
            mix: λ, in place of the skip's own.
            policy_mask: False for skips the agent may not choose, (K,) or (batch, K).
            weight_key: one PRNG key, with which the cell's `weight_dropout` is drawn for all sequences and
                steps; None drops no weights.
            return_memory: put the internal states into the output (`SkipOutput.memory`).
            implementation: overrides the layer's own.

        Returns:
            `SkipOutput` (or h alone), preceded by the carry of each sequence's last step if asked for.
        """
        return_carry = self.return_carry if return_carry is None else return_carry
        time_major = self.time_major if time_major is None else time_major
        if time_major:
            inputs = jnp.swapaxes(inputs, 0, 1)
            below, actions = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), (below, actions))
        if initial_carry is None:
            shape = (inputs.shape[0], inputs.shape[2])
            initial_carry = self.cell.initialize_carry(shape, self.rngs if rngs is None else rngs)
        carry, outputs = F.unroll(
            self.cell.params(weight_key),
            initial_carry,
            inputs,
            self.cell.recurrence,
            below=below,
            seq_lengths=seq_lengths,
            reverse=self.reverse if reverse is None else reverse,
            keep_order=self.keep_order if keep_order is None else keep_order,
            actions=actions,
            mode=mode or self.cell.default_mode,
            temperature=temperature,
            mix=mix,
            policy_mask=policy_mask,
            return_memory=return_memory,
            implementation=implementation or self.implementation,
        )
        if time_major:
            outputs = jax.tree.map(lambda leaf: jnp.swapaxes(leaf, 0, 1), outputs)
        if not self.return_decision:
            outputs = outputs.h
        return (carry, outputs) if return_carry else outputs
