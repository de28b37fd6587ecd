"""A recurrent layer that runs the whole unroll of a skip cell and returns the agent's decisions."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.nn.batching import BatchAxes
from dynskip_jax.nn.cells import SkipCell, require_key, shared_key


def merge_directions(
    forward: Float[Array, "batch time *features"], backward: Float[Array, "batch time *features"]
) -> Array:
    """A `merge_fn` for `nnx.Bidirectional` over two `SkipLayer`s that return their decisions.

    Flax's own concatenates the last axis of every array, which of a decision is time. Here features stand
    beside each other, and of decisions the directions become the last axis, (batch, time, 2).
    """
    if forward.ndim < 3:
        return jnp.stack([forward, backward], axis=-1)
    return jnp.concatenate([forward, backward], axis=-1)


class SkipLayer(nnx.Module):
    """Runs a `SkipCell` over sequences, input projections outside the loop.

    The arguments are those of `nnx.RNN`; in addition outputs past the end of a sequence are zeros, actions
    can be replayed, and several sequences may share a row. `.eval()` makes choices greedy and drops nothing.

    Args:
        cell: the cell.
        time_major: inputs and outputs are (time, *batch, ...) instead of (*batch, time, ...).
        return_carry: return `(carry, outputs)` instead of `outputs`.
        reverse: run from each sequence's own last step to its first.
        keep_order: with `reverse`, return outputs in the order of the inputs.
        return_decision: return `SkipOutput` (h and the decisions' trace) instead of h alone.
        implementation: `fused`, `reference` (the definition) or `cudnn`; see `functional.unroll`.
        rngs: where calls without a key of their own take one: the `carry` stream of an `nnx.Rngs`, from which
            each call then draws anew, or a stream. By default there is none: a call that draws brings a key.
            Two layers that are given the same key draw the same; given the same `nnx.Rngs`, they do not.

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
        rngs: nnx.Rngs | nnx.RngStream | None = None,
    ):
        if not isinstance(cell, SkipCell):
            raise UserError(
                f"SkipLayer runs a SkipCell, got {type(cell).__name__}: nnx.RNN runs other cells, "
                "and `nn.from_flax` makes a SkipCell of Flax's"
            )
        self.cell = cell
        self.time_major = time_major
        self.return_carry = return_carry
        self.reverse = reverse
        self.keep_order = keep_order
        self.return_decision = return_decision
        self.implementation = implementation
        self.rngs = nnx.data(rngs.carry.fork() if isinstance(rngs, nnx.Rngs) else rngs)

    def __call__(
        self,
        inputs: Float[Array, "..."],
        *,
        initial_carry: F.SkipCarry | None = None,
        seq_lengths: Int[Array, "*batch"] | None = None,
        segment_ids: Int[Array, "..."] | None = None,
        below: Float[Array, "..."] | None = None,
        actions: Int[Array, "..."] | None = None,
        policy: F.Policy | None = None,
        rngs: nnx.Rngs | nnx.RngStream | Array | None = None,
        weight_key: Key[Array, ""] | None = None,
        deterministic: bool | None = None,
        return_carry: bool | None = None,
        return_cell_state: bool = False,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        implementation: str | None = None,
    ) -> Any:
        """Runs the layer.

        Args:
            inputs: (*batch, time, in), or (time, *batch, in) with `time_major`; with one batch axis, none or
                several.
            initial_carry: where to start; by default the cell's initial carry. Its keys are what choices are
                drawn with, and its mask that of recurrent dropout. Where dropout needs one and it has none, a
                call draws its own. The carry that is returned has the mask of this one, or none.
            seq_lengths: true lengths, (*batch,).
            segment_ids: of several sequences packed in one row, laid out as the inputs: where the number
                changes the next sequence begins, from the initial state; see `functional.unroll`.
            below: what the cell's skip over depth brings, laid out as the inputs.
            actions: k in 1..K to be replayed, laid out as the inputs.
            policy: how choices are made; by default greedy after `.eval()`, and sampled otherwise.
            rngs: a PRNG key, one for each example, an `nnx.Rngs` or a stream, for the initial carry's keys
                and its recurrent-dropout mask, and for dropped weights.
            weight_key: one PRNG key for the cell's `weight_dropout`, in place of one made of `rngs`.
            deterministic: overrides what `.train()` and `.eval()` say.
            return_carry: overrides the layer's own setting, as do the next but one and those that follow.
            return_cell_state: put the internal states into the output (`SkipOutput.cell_state`).
            time_major: see the class.
            reverse: see the class.
            keep_order: see the class.
            implementation: see the class.

        Returns:
            `SkipOutput` (or h alone), preceded by the carry of each sequence's last step if asked for.

        Raises:
            UserError: an argument does not fit, or something is drawn without a key.
        """
        cell = self.cell
        deterministic = cell.deterministic if deterministic is None else deterministic
        policy = cell._policy(policy=policy, deterministic=deterministic)
        time_major = self.time_major if time_major is None else time_major
        cell._check_inputs(inputs, "(time, *batch, in)" if time_major else "(*batch, time, in)", 2)
        rank = inputs.ndim - 2
        per_step = inputs, below, actions, segment_ids
        if time_major:
            per_step = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, 0, rank), per_step)
        axes = BatchAxes(per_step[0].shape[:rank])
        carry, weight_key = self._noise(
            axes.shape,
            initial_carry,
            self.rngs if rngs is None else rngs,
            weight_key,
            policy,
            deterministic,
            replayed=actions is not None,
        )
        inputs, below, actions, segment_ids = axes.merged(per_step)
        policy = axes.merged_policy(policy)
        carry, seq_lengths = axes.merged((carry, seq_lengths))
        carry, outputs = F.unroll(
            cell.params(weight_key),
            carry,
            inputs,
            cell.recurrence,
            below=below,
            seq_lengths=seq_lengths,
            segment_ids=segment_ids,
            initial=cell.initial_state(inputs.shape[:1]) if segment_ids is not None else None,
            zoneout_mask=cell._zoneout_mask(carry=carry, steps=inputs.shape[1], deterministic=deterministic),
            reverse=self.reverse if reverse is None else reverse,
            keep_order=self.keep_order if keep_order is None else keep_order,
            actions=actions,
            policy=policy,
            return_cell_state=return_cell_state,
            implementation=implementation or self.implementation,
        )
        carry, outputs = axes.split((carry, outputs))
        if initial_carry is not None:
            # Out as it came in: a scan asks for it.
            carry = carry._replace(recurrent_mask=initial_carry.recurrent_mask)
        if time_major:
            outputs = jax.tree.map(lambda leaf: jnp.moveaxis(leaf, rank, 0), outputs)
        if not self.return_decision:
            outputs = outputs.h
        return_carry = self.return_carry if return_carry is None else return_carry
        return (carry, outputs) if return_carry else outputs

    def _noise(
        self, batch, initial_carry, rngs, weight_key, policy, deterministic, *, replayed
    ) -> tuple[F.SkipCarry, Key[Array, ""] | None]:
        """The carry to start from, and the key of dropped weights, drawn from `rngs` where needed."""
        cell, key, carry = self.cell, None, initial_carry
        if carry is None:
            draws = cell._draws(policy=policy, replayed=replayed, deterministic=deterministic)
        else:
            F.check_carry(cell.recurrence, carry, batch, cell.hidden_features)
            drops = cell.recurrent_dropout > 0.0 and not deterministic
            draws = drops and carry.recurrent_mask is None
        drops_weights = cell.weight_dropout > 0.0 and not deterministic
        if draws or (drops_weights and weight_key is None):
            key = require_key(rngs, "this layer")
        if carry is None or draws:
            new = cell._new_carry(batch, jax.random.key(0) if key is None else key, deterministic)
            carry = new if carry is None else carry._replace(recurrent_mask=new.recurrent_mask)
        elif deterministic:
            carry = carry._replace(recurrent_mask=None)
        if not drops_weights:
            weight_key = None
        elif weight_key is None:
            weight_key = shared_key(key)
        return carry, weight_key
