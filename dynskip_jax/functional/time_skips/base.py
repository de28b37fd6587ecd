"""The interface of skips over time: which earlier state enters a step, and how much is written."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.transitions.base import Initializers, Transition

Observed = Literal["previous", "mean", "slots", "stored"]


class Choice(NamedTuple):
    """The decision of a time skip at a step.

    Attributes:
        slot: the slot in 0..K-1 whose state State(t-1-slot) enters, (*batch,); None if it is fixed. With
            weights of some states only, their slots, (*batch, n).
        weights: weights of the states whose mean enters, (*batch, K), or (*batch, n) with n slots; None if
            one state enters.
        update: fraction of the new state that is written, (*batch,); the rest is State(t-1). None for 1.
        action: the sampled action where that is not a slot, (*batch,).
    """

    slot: Int[Array, "*batch_and_n"] | None = None
    weights: Float[Array, "*batch n"] | None = None
    update: Float[Array, "*batch"] | None = None
    action: Int[Array, "*batch"] | None = None


class Decision(NamedTuple):
    """The trace of the choices at all steps.

    Attributes:
        action: k in 1..K, the State(t-k) that was selected; 0 at padding. `SkipRNN` and `LSTMJump` document
            their own actions.
        log_prob: log π(k | s), in nats; 0 where nothing was sampled.
        entropy: H(π(· | s)), in nats; 0 where nothing was sampled.
        update: fraction of the step's new state that was written, 0 where the token was not read. None where
            the time skip writes every state.
    """

    action: Int[Array, "*batch"]
    log_prob: Float[Array, "*batch"]
    entropy: Float[Array, "*batch"]
    update: Float[Array, "*batch"] | None = None


class SkipInputs(NamedTuple):
    """The inputs of a decision that need no state; `*batch` may contain the time axis.

    Attributes:
        projected: `TimeSkip.project` of x(t).
        step: number of steps before this one, (*batch,).
        noise: `TimeSkip.noise`; None where nothing is sampled.
        allowed: False for skips that must not be chosen, (*batch, K) or with ones in place of batch sizes.
        action: the action to replay instead of choosing, (*batch,); None to choose.
        temperature: τ of relaxed choices, a number.
    """

    projected: Any = None
    step: Int[Array, "*batch"] | None = None
    noise: Float[Array, "*batch choices"] | None = None
    allowed: Bool[Array, "*batch_or_1 K"] | None = None
    action: Int[Array, "*batch"] | None = None
    temperature: Float[Array, ""] | float = 1.0


@dataclasses.dataclass(frozen=True)
class TimeSkip:
    """Which state enters a step, and what is written. Hashable, hence a static argument under `jit`.

    To write your own, derive a frozen dataclass. Declare what it observes of the last K states (`observed`,
    `observed_array`), make a `Choice` of that (`choose`), and return its trace (`decide`). The reference and
    the fused unroll read and write the buffer. Both methods must accept any leading axes, because the fused
    unroll calls them for all steps at once.

    Attributes:
        name: its name on the command line, followed by a colon and K if `takes_max_skip`.
        takes_max_skip: whether the name is followed by K.
        has_agent: whether an agent or attention distributes over the last K states.
        is_stochastic: whether it samples, and is trained by a score-function gradient.
        writes_all: whether every new state is written whole, so that `Choice.update` is None.
        max_skip: K, the number of states in the buffer.
        mix: the skip weight λ in [0, 1]: λ State(t-k) + (1 - λ) State(t-1) enters the transition, Gui et al.
            (2019), Eq. 2.
    """

    name: ClassVar[str] = ""
    takes_max_skip: ClassVar[bool] = True
    has_agent: ClassVar[bool] = False
    is_stochastic: ClassVar[bool] = False
    writes_all: ClassVar[bool] = True
    max_skip: int = 1
    mix: float = 1.0

    def __post_init__(self) -> None:
        """Check the values."""
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
        """The slot that enters every step; None where it is chosen."""
        return None

    @property
    def forgets_carried(self) -> bool:
        """Whether the initial state replaces the state that entered the first step, after that step."""
        return False

    @property
    def action_range(self) -> tuple[int, int]:
        """The smallest and the largest action that can be replayed at a step of a sequence."""
        return 1, self.max_skip

    @property
    def observed(self) -> Observed:
        """What `choose` sees of the stored states.

        `previous`: State(t-1); `mean`: the mean of the last K; `slots`: all K; `stored`: an object to compare
        a query with (see `stored.py`), which costs less than `slots`.
        """
        return "previous"

    def observed_array(self, transition: Transition) -> str:
        """Return the name of the state's array that `choose` sees."""
        return "h"

    def init(self, key: Key[Array, ""], in_features: int, hidden: int, units: int, init: Initializers) -> Any:
        """Draw the parameters; return None where there are none.

        Args:
            key: a PRNG key.
            in_features: size of x(t).
            hidden: size of a state.
            units: number of hidden units of an agent.
            init: initializers of the parameters.
        """
        return None

    def init_skip_state(self, batch: tuple[int, ...], dtype: Any) -> Any:
        """Return the state of the skip before the first step; every leaf starts with the `batch` axes."""
        return ()

    def project(self, params: Any, x: Float[Array, "*batch in"]) -> Any:
        """Return the part of the computation that needs no state, for all steps at once."""
        return None

    def noise(
        self,
        keys: Key[Array, "*batch"] | None,
        step: Int[Array, "*batch"],
        mode: ActionMode,
        replayed: bool,
        dtype: Any,
    ) -> Float[Array, "*batch choices"] | None:
        """Return the noise of the decisions, drawn with `fold_in(key, step)`; None where nothing is sampled.

        Args:
            keys: one PRNG key per example.
            step: number of the step.
            mode: `sample`, `greedy` or a relaxation.
            replayed: whether actions are given.
            dtype: dtype of the states.
        """
        return None

    def draws(self, mode: ActionMode, replayed: bool) -> bool:
        """Return whether decisions are sampled and need keys."""
        return self.is_stochastic and not replayed and mode not in ("greedy", "soft")

    def differentiable(self, mode: ActionMode, replayed: bool) -> bool:
        """Return whether a gradient flows through the `weights` or the `update` of a choice."""
        return False

    def choose(
        self, params: Any, inputs: SkipInputs, observation: Any, skip_state: Any, mode: ActionMode
    ) -> tuple[Choice, Any]:
        """Make a choice.

        Args:
            params: parameters from `init`.
            inputs: inputs that need no state.
            observation: see `observed`: (*batch, hidden); (*batch, K, hidden) for all slots, newest first; or
                `Stored`.
            skip_state: the state of the skip.
            mode: `sample`, `greedy` or a relaxation.

        Returns:
            The choice, and the new state of the skip.
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
        """Return log π of each of the K states, in nats, differentiable in all arguments.

        Args:
            params: parameters from `init`.
            x: inputs of the layer; `*batch` may contain the time axis.
            step: number of steps before this one.
            observation: as in `choose`.
            policy_mask: False for skips that may not be chosen.

        Raises:
            UserError: this skip does not choose among K states.
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
        """Return the trace of `choice`, which `choose` returned for the other arguments."""
        zeros = jnp.zeros(inputs.step.shape, observation.dtype)
        slot = 0 if self.fixed_slot is None else self.fixed_slot
        return Decision(jnp.full_like(inputs.step, slot + 1, jnp.int32), zeros, zeros)

    def allowed(
        self, step: Int[Array, "*batch"], policy_mask: Bool[Array, "*batch_or_none K"] | None
    ) -> Bool[Array, "*batch_or_1 K"] | None:
        """Return True for skips that may be chosen at each step; None for all."""
        return None


def check_mix(mix: Any) -> None:
    """Raise a `UserError` unless λ is one number, and in [0, 1] if its value is known."""
    _check_number("mix (λ)", mix, "between 0 and 1", lambda known: 0 <= known <= 1)


def check_temperature(temperature: Any) -> None:
    """Raise a `UserError` unless τ is one number, and above 0 if its value is known."""
    _check_number("a temperature (τ)", temperature, "above 0", lambda known: known > 0)


def _check_number(name: str, value: Any, range_: str, is_inside: Callable[[Any], bool]) -> None:
    if np.ndim(value):
        raise UserError(f"{name} is a single number, got {described(value)}")
    if not isinstance(value, jax.core.Tracer) and not is_inside(np.asarray(value)):
        raise UserError(f"{name} lies {range_}, got {value}")


def choice_field(*known: str) -> Any:
    """Return a dataclass field that accepts the words `known`; the first is the default."""
    return dataclasses.field(default=known[0], metadata={"choices": known})


@dataclasses.dataclass(frozen=True)
class BufferSkip(TimeSkip):
    """A time skip over the last K states, with a choice of what happens at a sequence's first step.

    Attributes:
        first_step: `agent`: choose at the first step as at every other. `carried`: use the carried state and
            forget it afterwards, as the released code of Gui et al. (2019) does. That code also reinforces
            the choice; here it has no effect and gets no credit.
    """

    first_step: str = choice_field("agent", "carried")

    @property
    def forgets_carried(self) -> bool:
        """See `TimeSkip`."""
        return self.first_step == "carried"

    def carried_first(self, inputs: SkipInputs, choice: Choice) -> Choice:
        """Return `choice`, with the carried state at first steps where `first_step` says so."""
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
        """Return the slot in 0..K-1 of each skip k in 1..K; 0 at padding, where k is 0."""
        return jnp.clip(action.astype(jnp.int32) - 1, 0, self.max_skip - 1)

    def decide(self, params, inputs, observation, skip_state, choice, mode) -> Decision:
        """See `TimeSkip`; the action is K."""
        zeros = jnp.zeros(inputs.step.shape, observation.dtype)
        k = jnp.full_like(inputs.step, self.max_skip, jnp.int32)
        return self.without_credit(inputs, Decision(k, zeros, zeros))

    def without_credit(self, inputs: SkipInputs, decision: Decision) -> Decision:
        """Return `decision`, with k = 1 and no credit at first steps that use the carried state."""
        if not self.forgets_carried:
            return decision
        first = inputs.step == 0
        return decision._replace(
            action=jnp.where(first, 1, decision.action),
            log_prob=jnp.where(first, 0, decision.log_prob),
            entropy=jnp.where(first, 0, decision.entropy),
        )
