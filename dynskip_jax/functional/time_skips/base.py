"""Interface of skips over time: which earlier state enters a step, and how much is written."""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key
from typing_extensions import override

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.checks import check_mix
from dynskip_jax.functional.transitions.base import Initializers, Transition

Observed = Literal["previous", "mean", "slots", "stored"]


class Choice(NamedTuple):
    """Choice of a time skip at one step.

    Attributes:
        slot: Slot in 0..K-1 of the state that enters, State(t-1-slot), (*batch,); None if the slot is fixed.
            If only n of the K states have weights, the slots of these states, (*batch, n).
        weights: Weights of the states whose weighted mean enters, (*batch, K), or (*batch, n) for the states
            in `slot`; None if one state enters.
        update: Fraction of the new state that is written, (*batch,). The rest is `Transition.unread_state`,
            by default State(t-1). None if the whole new state is written.
        action: Chosen action if it is not a slot, (*batch,); otherwise None.
    """

    slot: Int[Array, "*batch_and_n"] | None = None
    weights: Float[Array, "*batch n"] | None = None
    update: Float[Array, "*batch"] | None = None
    action: Int[Array, "*batch"] | None = None


class Decision(NamedTuple):
    """Trace of the choices at one step or at all steps.

    Attributes:
        action: k in 1..K, where State(t-k) was selected; 0 at padding. `SkipRNN`, `SkimRNN` and `LSTMJump`
            document their own actions.
        log_prob: log π(k | s) of an agent's choice, in nats; 0 for other choices and for weighted means.
        entropy: Entropy H(π(· | s)) of an agent's or attention's distribution, in nats; 0 without one.
        update: Fraction of the new state that was written; 0 where the token was not read. None if the time
            skip writes every new state as a whole.
    """

    action: Int[Array, "*batch"]
    log_prob: Float[Array, "*batch"]
    entropy: Float[Array, "*batch"]
    update: Float[Array, "*batch"] | None = None


class SkipInputs(NamedTuple):
    """Inputs of a choice that do not depend on the state; `*batch` may contain the time axis.

    Attributes:
        projected: Result of `TimeSkip.project` for x(t).
        step: Number of steps before this one, (*batch,).
        noise: Result of `TimeSkip.noise`; None if nothing is sampled.
        allowed: False for skips that must not be chosen, (*batch, K), where batch axes may have size 1. None
            if all are allowed.
        action: Action to replay instead of choosing, (*batch,); None to choose.
        temperature: Temperature τ of attention and relaxed choices, a number.
    """

    projected: Any = None
    step: Int[Array, "*batch"] | None = None
    noise: Float[Array, "*batch choices"] | None = None
    allowed: Bool[Array, "*batch_or_1 K"] | None = None
    action: Int[Array, "*batch"] | None = None
    temperature: Float[Array, ""] | float = 1.0


@dataclasses.dataclass(frozen=True)
class TimeSkip:
    """Interface of a skip over time: which state enters a step, and what is written.

    Time skips are hashable, so they can be static arguments under `jit`.

    To write your own, derive a frozen dataclass. Declare what it observes of the last K states (`observed`,
    `observed_array`), make a `Choice` from the observation (`choose`), and return its trace (`decide`). The
    reference and the fused unroll read and write the buffer of states. `choose` and `decide` must accept any
    leading axes, because the fused unroll calls them for all steps at once.

    | class attribute | meaning |
    | --- | --- |
    | `name` | name on the command line, followed by a colon and K if `takes_max_skip` |
    | `has_agent` | an agent or attention with weights computes a distribution over the last K states |
    | `has_distribution` | there is such a distribution, with weights or without: `log_distribution` |
    | `is_stochastic` | choices are sampled, and the loss contains their score function |
    | `writes_all` | every new state is written as a whole, so that `Choice.update` is None |

    Attributes:
        max_skip: K, the number of states in the buffer.
        mix: Skip weight λ in [0, 1]: λ State(t-k) + (1 - λ) State(t-1) enters the transition, Gui et al.
            (2019), Eq. 2.
    """

    name: ClassVar[str] = ""
    takes_max_skip: ClassVar[bool] = True
    has_agent: ClassVar[bool] = False
    has_distribution: ClassVar[bool] = False
    is_stochastic: ClassVar[bool] = False
    writes_all: ClassVar[bool] = True
    max_skip: int = 1
    mix: float = 1.0

    def __post_init__(self) -> None:
        """Convert arrays to Python numbers and tuples, so that the skip is hashable; check the values."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, list | np.ndarray | np.generic | jax.Array) and not isinstance(
                value, jax.core.Tracer
            ):
                value = np.asarray(value).tolist()
                object.__setattr__(self, field.name, tuple(value) if isinstance(value, list) else value)
        if self.max_skip < 1:
            raise UserError(f"a skip needs max_skip (K) of at least 1, got {self.max_skip}")
        check_mix(self.mix)
        for field in dataclasses.fields(self):
            known = field.metadata.get("choices")
            value = getattr(self, field.name)
            if known is not None and value not in known:
                raise UserError(f"unknown {field.name} {value!r}: choose one of {', '.join(known)}")

    @property
    def fixed_slot(self) -> int | None:
        """Slot of the state that enters every step; None if the slot is chosen."""
        return None

    @property
    def forgets_carried(self) -> bool:
        """Whether the initial state replaces the state that entered the first step, after that step."""
        return False

    @property
    def action_range(self) -> tuple[int, int]:
        """Smallest and largest action that can be replayed at a step of a sequence."""
        return 1, self.max_skip

    @property
    def observed(self) -> Observed:
        """Kind of observation of the stored states that `choose` receives.

        `previous`: State(t-1). `mean`: the mean of the last K states. `slots`: all K states. `stored`: a
        `Window` (see `history.py`), which compares a query with all K states at less cost than `slots`.
        """
        return "previous"

    def observed_array(self, transition: Transition) -> str | tuple[str, ...]:
        """Return the name of the array that `choose` observes, or of several, which stand side by side."""
        return "h"

    def init(self, key: Key[Array, ""], in_features: int, hidden: int, units: int, init: Initializers) -> Any:
        """Draw the parameters; return None for a skip without parameters.

        Args:
            key: A PRNG key.
            in_features: Size of x(t).
            hidden: Size of a state.
            units: Number of hidden units of an agent.
            init: Initializers of the parameters.
        """
        return None

    def init_skip_state(self, batch: tuple[int, ...], dtype: Any) -> Any:
        """Return the skip's own state before the first step.

        Args:
            batch: Sizes of the batch axes.
            dtype: Dtype of the layer's state.

        Returns:
            A pytree whose leaves start with the `batch` axes; empty by default.
        """
        return ()

    def project(self, params: Any, x: Float[Array, "*batch in"]) -> Any:
        """Compute the part of the choice that needs no state, for all steps at once.

        Args:
            params: Parameters from `init`.
            x: Input of the layer, (*batch, in); `*batch` may contain the time axis.
        """
        return None

    def noise(
        self,
        keys: Key[Array, "*batch"] | None,
        step: Int[Array, "*batch"],
        mode: ActionMode,
        replayed: bool,
        dtype: Any,
    ) -> Float[Array, "*batch choices"] | None:
        """Return the noise of the choices, drawn with `fold_in(key, step)`; None if nothing is sampled.

        Args:
            keys: One PRNG key per example, (*batch,).
            step: Number of steps before this one, (*batch,).
            mode: `sample`, `greedy` or a relaxation.
            replayed: Whether actions are given instead of chosen.
            dtype: Dtype of the states.
        """
        return None

    def draws(self, mode: ActionMode, replayed: bool) -> bool:
        """Return whether choices are sampled and need keys; see `noise` for the arguments."""
        return self.is_stochastic and not replayed and mode not in ("greedy", "soft")

    def updates_partially(self, mode: ActionMode) -> bool:
        """Return whether the `update` of a choice may lie between 0 and 1."""
        return False

    def differentiable(self, mode: ActionMode, replayed: bool) -> bool:
        """Return whether a gradient flows through the `weights` or the `update` of a choice.

        See `noise` for the arguments.
        """
        return False

    def choose(
        self, params: Any, inputs: SkipInputs, observation: Any, skip_state: Any, mode: ActionMode
    ) -> tuple[Choice, Any]:
        """Make the choice of a step.

        Args:
            params: Parameters from `init`.
            inputs: Inputs that do not depend on the state.
            observation: Observation of the kind `observed`: (*batch, hidden) for `previous` and `mean`;
                (*batch, K, hidden) for `slots`, newest first; a `Window` for `stored`.
            skip_state: The skip's own state before the step.
            mode: `sample`, `greedy` or a relaxation.

        Returns:
            The choice, and the skip's own state after the step.
        """
        return Choice(), skip_state

    def log_distribution(
        self,
        params: Any,
        x: Float[Array, "*batch in"],
        step: Int[Array, "*batch"],
        observation: Any,
        policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
    ) -> Float[Array, "*batch K"]:
        """Return log π of each of the K states, in nats, (*batch, K), differentiable in all arguments.

        Args:
            params: Parameters from `init`.
            x: Input of the layer, (*batch, in); `*batch` may contain the time axis.
            step: Number of steps before this one.
            observation: See `choose`.
            policy_mask: False for skips that may not be chosen; None if all may be chosen.

        Raises:
            UserError: The skip does not choose among K states.
        """
        raise UserError(f"{type(self).__name__} has no distribution over the last K states")

    def decide(
        self,
        params: Any,
        inputs: SkipInputs,
        observation: Any,
        skip_state: Any,
        choice: Choice,
        mode: ActionMode,
    ) -> Decision:
        """Return the trace of `choice`, the result of `choose` for the other arguments."""
        zeros = jnp.zeros(inputs.step.shape, observation.dtype)
        slot = 0 if self.fixed_slot is None else self.fixed_slot
        return Decision(jnp.full_like(inputs.step, slot + 1, jnp.int32), zeros, zeros)

    def allowed(
        self, step: Int[Array, "*batch"], policy_mask: Bool[Array, "*batch_or_none K"] | None
    ) -> Bool[Array, "*batch_or_1 K"] | None:
        """Return a mask of the skips that may be chosen at each step; None if all may be chosen.

        Args:
            step: Number of steps before this one, (*batch,).
            policy_mask: False for skips that the policy forbids; None if it forbids none.
        """
        return None


def choice_field(*known: str) -> Any:
    """Return a dataclass field that accepts only the strings `known`; the first one is the default."""
    return dataclasses.field(default=known[0], metadata={"choices": known})


@dataclasses.dataclass(frozen=True)
class ReadingSkip(TimeSkip):
    """A time skip that decides which tokens are read: State(t-1) enters, and not every state is written."""

    takes_max_skip: ClassVar[bool] = False
    writes_all: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check that K and λ are not given."""
        super().__post_init__()
        if self.max_skip != 1 or self.mix != 1:
            raise UserError(f"{type(self).__name__} goes on from State(t-1): leave out max_skip and mix")

    @property
    @override
    def fixed_slot(self) -> int:
        return 0


@dataclasses.dataclass(frozen=True)
class BufferSkip(TimeSkip):
    """A time skip over the last K states, with an option for the first step of a sequence.

    Attributes:
        max_skip: K, which has no default: with K = 1, nothing would be skipped.
        first_step: State that enters the first step. `agent`: a chosen state, as at every other step.
            `carried`: the carried state, which is forgotten afterwards, as in the released code of Gui et al.
            (2019). That code also reinforces the choice; here the choice has no effect and gets no credit.
    """

    max_skip: int = dataclasses.field()
    first_step: str = choice_field("agent", "carried")

    @property
    @override
    def forgets_carried(self) -> bool:
        return self.first_step == "carried"

    def carried_first(self, inputs: SkipInputs, choice: Choice) -> Choice:
        """Return `choice`; if `first_step` is `carried`, first steps choose the carried state instead."""
        if not self.forgets_carried:
            return choice
        first = inputs.step == 0
        if choice.weights is None:
            return choice._replace(slot=jnp.where(first, 0, choice.slot))
        newest = jax.nn.one_hot(0, choice.weights.shape[-1], dtype=choice.weights.dtype)
        newest = newest.reshape((1,) * (choice.weights.ndim - 1) + (-1,))
        weights = jnp.where(first[..., None], newest, choice.weights)
        slot = None if choice.slot is None else jnp.where(first[..., None], 0, choice.slot)
        return choice._replace(slot=slot, weights=weights)

    def slot_of(self, action: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """Return the slot in 0..K-1 of each `action` k in 1..K; 0 at padding, where the action is 0."""
        return jnp.clip(action.astype(jnp.int32) - 1, 0, self.max_skip - 1)

    def decide(self, params, inputs, observation, skip_state, choice, mode) -> Decision:
        """See `TimeSkip`; the action is K."""
        zeros = jnp.zeros(inputs.step.shape, observation.dtype)
        k = jnp.full_like(inputs.step, self.max_skip, jnp.int32)
        return self.without_credit(inputs, Decision(k, zeros, zeros))

    def without_credit(self, inputs: SkipInputs, decision: Decision) -> Decision:
        """Return `decision` without credit for first steps that use the carried state.

        There, k is 1, and the log-probability and the entropy are 0.
        """
        if not self.forgets_carried:
            return decision
        first = inputs.step == 0
        return decision._replace(
            action=jnp.where(first, 1, decision.action),
            log_prob=jnp.where(first, 0, decision.log_prob),
            entropy=jnp.where(first, 0, decision.entropy),
        )
