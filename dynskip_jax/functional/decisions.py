"""The decisions of a layer, together with everything that a loss needs to interpret them."""

import dataclasses
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.functional.serialization import register_node_for_export
from dynskip_jax.functional.time_skips import Decision, TimeSkip

_ARRAYS = ("action", "log_prob", "entropy", "update", "valid")
_FACTS = ("mode", "update_is_differentiable", "reverse", "noncausal")


@register_node_for_export
@partial(jax.tree_util.register_dataclass, data_fields=_ARRAYS, meta_fields=_FACTS)
@dataclasses.dataclass(frozen=True)
class DecisionTrace:
    """Decisions of one layer in one direction at every step, in the order of the inputs.

    Layers return one trace for each layer and direction as `out.decisions`, and the losses of `rl`
    take everything they need from them. A trace is a pytree: the arrays are its leaves, the other
    fields static.

    Attributes:
        action, log_prob, entropy, update: As in `Decision`, (*batch, time).
        valid: False past the end of a sequence, (*batch, time); None if all steps count.
        mode: How the choices were made: `sample`, `greedy`, a relaxation, `replayed` if they were
            given, or `none` if the layer makes no choices that rewards can train.
        update_is_differentiable: Whether a gradient reaches the parameters through `update`.
        reverse: Whether the layer runs from each sequence's end to its start.
        noncausal: Whether a choice also affects outputs at steps that the layer processed earlier,
            because a layer above runs in the other direction.
    """

    # These are leaves of a pytree, which JAX may replace by any object.
    action: Int[Array, "*batch time"] | Any
    log_prob: Float[Array, "*batch time"] | Any
    entropy: Float[Array, "*batch time"] | Any
    update: Float[Array, "*batch time"] | Any = None
    valid: Bool[Array, "*batch time"] | Any = None
    mode: str = "sample"
    update_is_differentiable: bool = False
    reverse: bool = False
    noncausal: bool = False

    @classmethod
    def of(
        cls,
        decision: Decision,
        skip: TimeSkip,
        valid: Bool[Array, "*batch time"] | None,
        *,
        mode: str,
        replayed: bool = False,
        reverse: bool = False,
        noncausal: bool = False,
    ) -> "DecisionTrace":
        """Return the trace of a layer's decisions, such as those that `unroll` returns.

        `mode` is that of the policy, and `replayed` says whether the actions were given instead of
        chosen.
        """
        differentiable = skip.differentiable(mode, replayed)
        # Random skips sample, and nothing in them can learn.
        if not skip.is_stochastic or not skip.has_params:
            mode = "none"
        elif replayed:
            mode = "replayed"
        else:
            mode = skip.mode_of(mode)
        has_cost = decision.update is not None and differentiable
        return cls(*decision, valid, mode, has_cost, reverse, noncausal)
