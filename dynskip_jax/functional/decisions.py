"""The decisions of a layer, together with everything that a loss needs to interpret them."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.time_skips import Decision, TimeSkip

_ARRAYS = ("action", "log_prob", "entropy", "update", "valid")
_FACTS = ("is_stochastic", "update_is_differentiable", "reverse", "noncausal", "time_major")


@partial(jax.tree_util.register_dataclass, data_fields=_ARRAYS, meta_fields=_FACTS)
@dataclasses.dataclass(frozen=True)
class DecisionTrace:
    """Decisions of one layer in one direction at every step, in the order of the inputs.

    Layers return traces as `out.decisions`, and `AgentObjective.loss` takes everything it needs from them. A
    trace is a pytree: the arrays are its leaves, and the booleans are static.

    Attributes:
        action: Selected k in 1..K of State(t-k), (*batch, time); 0 past a sequence's end. Time skips with
            other actions document them.
        log_prob: log π(k | s), in nats, (*batch, time); 0 where nothing was sampled.
        entropy: H(π(· | s)), in nats, (*batch, time); 0 where nothing was sampled.
        update: Fraction of the new state that was written, (*batch, time); 0 where a token was not read. None
            if the time skip writes every state.
        valid: False past the end of a sequence, (*batch, time); None if all steps count.
        is_stochastic: Whether the choices are sampled and trained with the score function.
        update_is_differentiable: Whether a gradient reaches the parameters through `update`.
        reverse: Whether the layer runs from each sequence's end to its start.
        noncausal: Whether a choice also affects outputs at steps that the layer processed earlier, because a
            layer above runs in the other direction.
        time_major: Whether the arrays are (time, *batch).
    """

    # These are leaves of a pytree, which JAX may replace by any object.
    action: Int[Array, "*batch time"] | Any
    log_prob: Float[Array, "*batch time"] | Any
    entropy: Float[Array, "*batch time"] | Any
    update: Float[Array, "*batch time"] | Any = None
    valid: Bool[Array, "*batch time"] | Any = None
    is_stochastic: bool = True
    update_is_differentiable: bool = False
    reverse: bool = False
    noncausal: bool = False
    time_major: bool = False

    @classmethod
    def of(
        cls,
        decision: Decision,
        skip: TimeSkip,
        valid: Bool[Array, "*batch time"] | None,
        *,
        mode: str = "sample",
        replayed: bool = False,
        reverse: bool = False,
        noncausal: bool = False,
    ) -> "DecisionTrace":
        """Return the trace of a layer's decisions.

        Use it for the decisions of a bare cell, such as those that
        `nnx.RNN(SkipCell(..., return_decision=True))` returns.

        Args:
            decision: Arrays of the decisions, (*batch, time).
            skip: Time skip that made the decisions.
            valid: False past the end of a sequence (see `length_mask`), (*batch, time); None if all steps
                count.
            mode: Mode of the policy.
            replayed: Whether the actions were given instead of chosen.
            reverse: Whether the layer ran from each sequence's end to its start.
            noncausal: Whether a layer above runs in the other direction.
        """
        differentiable = decision.update is not None and skip.differentiable(mode, replayed)
        return cls(
            *decision,
            valid=valid,
            is_stochastic=skip.is_stochastic,
            update_is_differentiable=differentiable,
            reverse=reverse,
            noncausal=noncausal,
        )

    def where(self, counted: Bool[Array, "*batch time"] | None) -> "DecisionTrace":
        """Return the trace with `valid` restricted to steps where `counted` is True; None changes nothing."""
        if counted is None:
            return self
        valid = counted if self.valid is None else self.valid & counted
        return dataclasses.replace(self, valid=valid)


@jax.tree_util.register_pytree_with_keys_class
class DecisionTraces(tuple):
    """The traces of all layers and directions: a tuple whose entries have names in its pytree.

    Without names, `nnx.tabulate` cannot show a tuple of structures.
    """

    __slots__ = ()

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, DecisionTrace], ...], None]:
        """Return the entries with their names `layer_0`, `layer_1`, …"""
        return tuple((jax.tree_util.DictKey(f"layer_{i}"), trace) for i, trace in enumerate(self)), None

    @classmethod
    def tree_unflatten(cls, _: None, traces: Sequence[DecisionTrace]) -> "DecisionTraces":
        """Return the tuple of these traces."""
        return cls(traces)


def traces_of(out: Any) -> tuple[DecisionTrace, ...]:
    """Return the decision traces in the output of a layer or a model.

    Args:
        out: An object with an attribute `decisions`, such as a layer's output; a sequence of traces; or one
            trace.

    Raises:
        UserError: If `out` contains no traces.
    """
    traces = getattr(out, "decisions", out)
    traces = (traces,) if isinstance(traces, DecisionTrace) else traces
    if (
        not isinstance(traces, Sequence)
        or not traces
        or not all(isinstance(t, DecisionTrace) for t in traces)
    ):
        raise UserError(
            "expected the output of a layer of this library, or its .decisions (DecisionTrace), got "
            f"{described(out)}: for the Decision of a bare cell, call DecisionTrace.of"
        )
    return tuple(traces)
