"""The decisions of a layer with all that a loss has to know about them, as one value."""

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
    """What one layer decided at every step, in one direction, in the order of the inputs.

    Layers make it (`out.decisions`), and `AgentObjective.loss` reads it, so that nothing has to be told
    twice. A pytree: the arrays are its leaves, the facts are static.

    Attributes:
        action: k in 1..K, the State(t-k) that was selected, (*batch, time); 0 past the end. Other time skips
            document their own actions.
        log_prob: log π(k | s), in nats; 0 where nothing was left to chance.
        entropy: H(π(· | s)), in nats; 0 where nothing was left to chance.
        update: share of the new state that was written, 0 where a token was not read; None where the time
            skip writes every state.
        valid: False past the end of a sequence; None where all steps count.
        is_stochastic: whether the choices are sampled and trained by their score function.
        update_is_differentiable: whether a gradient reaches the parameters through `update`.
        reverse: whether the layer reads from each sequence's end to its start.
        noncausal: whether a choice also affects steps that the layer read before it, because a layer above
            reads in the other direction.
        time_major: whether the arrays are (time, *batch).
    """

    # Leaves of a pytree: JAX may put anything in their place.
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

        Use it for decisions of a bare cell, such as `nnx.RNN(SkipCell(..., return_decision=True))` returns.

        Args:
            decision: the arrays, (*batch, time).
            skip: the time skip that decided.
            valid: False past the end of a sequence (`length_mask`); None where all steps count.
            mode: the policy's mode.
            replayed: whether the actions were given.
            reverse: whether the layer read from the end.
            noncausal: whether a layer above reads in the other direction.
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
        """Return the trace restricted to the steps that `counted` names too; None restricts nothing."""
        if counted is None:
            return self
        valid = counted if self.valid is None else self.valid & counted
        return dataclasses.replace(self, valid=valid)


@jax.tree_util.register_pytree_with_keys_class
class DecisionTraces(tuple):
    """The traces of all layers and directions: a tuple whose entries have names as a pytree.

    `nnx.tabulate` cannot show a tuple of structures without them.
    """

    __slots__ = ()

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, DecisionTrace], ...], None]:
        """Return the entries with their names."""
        return tuple((jax.tree_util.DictKey(f"layer_{i}"), trace) for i, trace in enumerate(self)), None

    @classmethod
    def tree_unflatten(cls, _: None, traces: Sequence[DecisionTrace]) -> "DecisionTraces":
        """Return the traces again."""
        return cls(traces)


def traces_of(out: Any) -> tuple[DecisionTrace, ...]:
    """Return the decision traces of what a layer or a model returned.

    Args:
        out: an object with `decisions`, such as a layer's output; a sequence of traces; or one trace.

    Raises:
        UserError: there are no traces in it.
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
