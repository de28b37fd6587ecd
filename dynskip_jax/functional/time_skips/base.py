"""Interface of skips over time: which earlier state enters a step, and how much is written."""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.errors import UserError, described
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.checks import check_fields, check_mix, check_whole
from dynskip_jax.functional.relaxation import RELAXATIONS
from dynskip_jax.functional.transitions.base import Initializers, Transition

ObservationKind = Literal["previous", "mean", "slots", "memory"]


class Choice(NamedTuple):
    """Choice of a time skip at one step.

    Attributes:
        slot: Slot in 0..K-1 of the state that enters, State(t-1-slot), (*batch,); None if the slot
            is fixed. If only n of the K states have weights, the slots of these states, (*batch,
            n).
        weights: Weights of the states whose weighted mean enters, (*batch, K), or (*batch, n) for
            the states in `slot`; None if one state enters.
        update: Fraction of the new state that is written, (*batch,). The rest is
            `Transition.unread_state`, by default State(t-1). None if the whole new state is
            written.
        action: Chosen action if it is not a slot, (*batch,); otherwise None.
    """

    slot: Int[Array, "*batch_and_n"] | None = None
    weights: Float[Array, "*batch n"] | None = None
    update: Float[Array, "*batch"] | None = None
    action: Int[Array, "*batch"] | None = None


class Decision(NamedTuple):
    """Trace of the choices at one step or at all steps.

    Attributes:
        action: k in 1..K, where State(t-k) was selected; 0 at padding. Skips that leave tokens out
            document their own actions.
        log_prob: log π(k | s) of an agent's choice, in nats; 0 for other choices and for weighted
            means.
        entropy: Entropy H(π(· | s)) of an agent's or attention's distribution, in nats; 0 without
            one.
        update: Fraction of the new state that was written; 0 where the token was not read. None if
            the time skip writes every new state as a whole.
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
        noise: Noise for `agent.choose`; None if nothing is sampled.
        allowed: Result of `TimeSkip.allowed`, (*batch, n), where batch axes may have size 1; None
            if everything is allowed.
        action: Action to replay instead of choosing, (*batch,); None to choose.
        temperature: Temperature τ of the policy, a number; see `policy_temperature`.
        followed: Inputs that followed the last K states, x(t-k+1) for each k, as a
            `Memory`; None if the skip does not observe them.
    """

    projected: Any = None
    step: Int[Array, "*batch"] | None = None
    noise: Float[Array, "*batch choices"] | None = None
    allowed: Bool[Array, "*batch_or_1 n"] | None = None
    action: Int[Array, "*batch"] | None = None
    temperature: Float[Array, ""] | float = 1.0
    followed: Any = None


@dataclasses.dataclass(frozen=True)
class TimeSkip:
    """Interface of a skip over time: which state enters a step, and what is written.

    Time skips are hashable, so they can be static arguments under `jit`. To write your own, derive
    a frozen dataclass, declare what differs from the defaults of this table, and make a `Choice` in
    `choose`. The reference and the fused unroll read and write the buffer of states.

    | attribute (or property) | default | meaning |
    | --- | --- | --- |
    | `name` | | name on the command line, followed by a colon and K for a skip over K states |
    | `has_agent` | False | an agent or attention with weights computes a distribution over K states
    | | `has_distribution` | False | there is such a distribution, with weights or without:
    `log_distribution` | | `is_stochastic` | False | choices are sampled; losses train `params` by
    log π of the `trace` | | `writes_all` | True | every new state is written as a whole, so that
    `Choice.update` is None | | `fixed_slot` | None | slot of the state that enters every step; None
    if it is chosen | | `forgets_carried` | False | the carried state enters the first step, and the
    initial one replaces it | | `observation_kind` | `previous` | what `choose` sees of the stored states;
    see there | | `observes_inputs` | False | `choose` also sees the inputs that followed them:
    `SkipInputs.followed` | | `num_choices` | 0 | number of options from which one is sampled or
    replayed; 0 if there are none | | `action_range` | 1, K | smallest and largest action that can
    be replayed |

    Attributes:
        max_skip: K, the number of states in the buffer.
        mix: Skip weight λ in [0, 1]: λ State(t-k) + (1 - λ) State(t-1) enters the transition, Gui
            et al. (2019), Eq. 2.
    """

    name: ClassVar[str] = ""
    has_agent: ClassVar[bool] = False
    has_distribution: ClassVar[bool] = False
    is_stochastic: ClassVar[bool] = False
    writes_all: ClassVar[bool] = True
    fixed_slot: ClassVar[int | None] = None
    forgets_carried: ClassVar[bool] = False
    observation_kind: ClassVar[ObservationKind] = "previous"
    observes_inputs: ClassVar[bool] = False
    num_choices: ClassVar[int] = 0
    max_skip: int = 1
    mix: float = 1.0

    def __init_subclass__(cls) -> None:
        """Refuse a class whose choices would not be sampled, or whose parameters no gradient would
        reach.
        """
        if cls.is_stochastic and cls.init is not TimeSkip.init and cls.trace is TimeSkip.trace:
            raise TypeError(
                f"{cls.__name__} samples with parameters: return log π of the choice in `trace`"
            )
        if cls.is_stochastic and cls.num_choices == 0:
            raise TypeError(f"{cls.__name__} samples: set num_choices, the number of its options")

    def __post_init__(self) -> None:
        """Convert arrays to Python numbers and tuples, so that the skip is hashable; check the
        values.
        """
        name = type(self).__name__
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "tolist") and not isinstance(value, jax.core.Tracer):
                value = value.tolist()
            value = tuple(value) if isinstance(value, list) else value
            object.__setattr__(self, field.name, value)
            known = field.metadata.get("choices")
            if known is not None and value not in known:
                raise UserError(f"unknown {field.name} {value!r}: choose one of {', '.join(known)}")
        check_mix(self.mix)
        check_whole("max_skip (K)", self.max_skip)
        check_fields(self)
        if self.observation_kind not in get_args(ObservationKind):
            known = ", ".join(get_args(ObservationKind))
            raise UserError(
                f"unknown {name}.observation_kind {self.observation_kind!r}: choose one of {known}"
            )
        writes_more = (
            not self.writes_all or type(self).init_skip_state is not TimeSkip.init_skip_state
        )
        if self.forgets_carried and self.observation_kind != "previous" and writes_more:
            raise UserError(
                f"{name} has an update or a state: with forgets_carried it observes `previous`"
            )

    @property
    def action_range(self) -> tuple[int, int]:
        return 1, self.max_skip

    def observation_arrays(self, transition: Transition) -> tuple[str, ...]:
        """Return the names of the state's arrays that `choose` observes, side by side."""
        return ("h",)

    def mode_of(self, mode: ActionMode) -> str:
        """Return how the skip makes its choices where the policy has `mode`.

        That is `sample`, `greedy`, a relaxation, or `none` if the skip computes its choices without
        options to select from. A gradient flows through the choices of the last two. A relaxation
        that a skip does not have becomes another mode. By default a stochastic skip has all modes.
        """
        return mode if self.is_stochastic else "none"

    def draws(self, mode: ActionMode, replayed: bool) -> bool:
        """Return whether choices are sampled and need keys; replayed actions are not."""
        is_random = self.mode_of(mode) not in ("none", "greedy", "soft")
        return is_random and self.num_choices > 0 and not replayed

    def differentiable(self, mode: ActionMode, replayed: bool) -> bool:
        """Return whether a gradient flows through the `weights` or the `update` of a choice.

        If not, choices and the skip's state are constants.
        """
        is_chosen = self.fixed_slot is None or not self.writes_all
        is_replayed = replayed and self.num_choices > 0
        return is_chosen and not is_replayed and self.mode_of(mode) in (*RELAXATIONS, "none")

    def init(
        self, key: Key[Array, ""], in_features: int, hidden: int, units: int, init: Initializers
    ) -> Any:
        """Draw the parameters, with `units` hidden units of an agent; None for a skip without
        parameters.

        Layers take a named tuple of arrays, or of tuples of arrays.
        """
        return None

    def init_skip_state(self, batch: tuple[int, ...], dtype: Any) -> Any:
        """Return the skip's own state before the first step: a pytree whose leaves have the `batch`
        axes.
        """
        return ()

    def project(self, params: Any, x: Float[Array, "*batch in"]) -> Any:
        """Compute the part of the choice that needs no state, for all steps at once."""
        return None

    def candidates(self, step: Int[Array, "*batch"]) -> np.ndarray | Int[Array, "*batch_or_1 n"]:
        """Return the slots among which the skip chooses, by default all K, with as many axes as
        `step`.
        """
        return np.arange(self.max_skip, dtype=np.int32).reshape((1,) * step.ndim + (-1,))

    def allowed(
        self, step: Int[Array, "*batch"], policy_mask: Bool[Array, "*batch_or_none K"] | None
    ) -> Bool[Array, "*batch_or_1 n"] | None:
        """Return a mask of the candidates that may be chosen at each step; None if all may be
        chosen.

        `policy_mask` is False for skips that the policy forbids: (K,), or with the axes of `step`
        before K.
        """
        return None

    def choose(
        self, params: Any, inputs: SkipInputs, observation: Any, skip_state: Any, mode: ActionMode
    ) -> tuple[Choice, Any]:
        """Make the choice of a step, or of all steps at once: accept any leading axes.

        The observation is of the kind `observation_kind`. `previous`: State(t-1), (*batch, hidden). `mean`:
        the mean of the last K states. `slots`: all of them, newest first, (*batch, K, hidden).
        `memory`: a `Memory`, which compares a query with all of them at less cost.
        `skip_state` is the skip's own state before the step; return it after the step, too.
        """
        return Choice(), skip_state

    def make_choice(
        self, params: Any, inputs: SkipInputs, observation: Any, skip_state: Any, mode: ActionMode
    ) -> tuple[Choice, Any]:
        """Return the result of `choose`, checked.

        Slots are clipped to 0..K-1. Those of a distribution over the K states are among them, and
        each operation of a step has its price on a TPU.
        """
        made = self.choose(params, inputs, observation, skip_state, mode)
        _check_choice(self, made, inputs.step.shape)
        choice, skip_state = made
        if choice.slot is not None and not self.has_distribution:
            choice = choice._replace(slot=jnp.clip(choice.slot, 0, self.max_skip - 1))
        if self.differentiable(mode, inputs.action is not None):
            return choice, skip_state
        return jax.lax.stop_gradient((choice, skip_state))

    def trace(
        self, params: Any, inputs: SkipInputs, observation: Any, choice: Choice, mode: ActionMode
    ) -> Decision:
        """Return the trace of `choice`; see `choose` for the other arguments.

        By default it is k, or K for a weighted mean, without a log-probability.
        """
        slot = choice.slot if self.fixed_slot is None else self.fixed_slot
        slot = self.max_skip - 1 if slot is None or choice.weights is not None else slot
        zeros = jnp.zeros(inputs.step.shape, observation.dtype)
        return Decision(
            jnp.broadcast_to(slot + 1, inputs.step.shape).astype(jnp.int32), zeros, zeros
        )

    def decide(self, params: Any, inputs: SkipInputs, *others: Any) -> Decision:
        """Return the `trace`, without credit for a first step that uses the carried state."""
        decision, lead = self.trace(params, inputs, *others), inputs.step.shape
        _check_arrays(f"{type(self).__name__}.trace", decision, Decision(lead, lead, lead, lead))
        if not self.forgets_carried:
            return decision
        first = inputs.step == 0
        return jax.tree.map(
            lambda new, old: jnp.where(first, new, old), Decision(1, 0, 0), decision
        )

    def log_distribution(
        self,
        params: Any,
        x: Float[Array, "*batch in"],
        step: Int[Array, "*batch"],
        observation: Any,
        policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
        temperature: float | Float[Array, ""] = 1.0,
    ) -> Float[Array, "*batch K"]:
        """Return log π of each of the K states, in nats, differentiable in all arguments.

        `x` is the layer's input, and the temperature divides the logits; see `allowed` and `choose`
        for the other arguments. A skip that `observes_inputs` also takes `followed`; see
        `SkipInputs`.
        """
        raise UserError(f"{type(self).__name__} has no distribution over the last K states")


def _check_choice(skip: TimeSkip, made: Any, lead: tuple[int, ...]) -> None:
    """Check what `skip.choose` has returned for steps with the axes `lead`."""
    name = f"{type(skip).__name__}.choose"
    if type(made) is not tuple or len(made) != 2 or not isinstance(made[0], Choice):
        raise UserError(
            f"expected {name} to return a Choice and the skip's state, got {described(made)}"
        )
    choice = made[0]
    if skip.fixed_slot is None and choice.slot is None and choice.weights is None:
        raise UserError(f"expected a slot or weights from {name}, got neither")
    if skip.writes_all == (choice.update is not None):
        raise UserError(f"expected an update from {name} if writes_all is False, and only then")
    num_weighted = () if choice.weights is None else (skip.max_skip,)
    if num_weighted and choice.slot is not None:
        num_weighted = jnp.shape(choice.slot)[-1:]
    _check_arrays(name, choice, Choice((*lead, *num_weighted), (*lead, *num_weighted), lead, lead))


def _check_arrays(name: str, made: Any, shapes: Choice | Decision) -> None:
    """Check the arrays of what the method `name` has returned; None passes."""
    if not isinstance(made, type(shapes)):
        raise UserError(
            f"expected {name} to return a {type(shapes).__name__}, got {described(made)}"
        )
    for field, value, shape in zip(made._fields, made, shapes, strict=True):
        kind = jnp.integer if field in ("slot", "action") else jnp.floating
        dtype = getattr(value, "dtype", None)
        if value is not None and (
            dtype is None or not jnp.issubdtype(dtype, kind) or value.shape != shape
        ):
            raise UserError(
                f"expected {field} of {name} to be {kind.__name__} {shape}, got {described(value)}"
            )


def choice_field(*known: str) -> Any:
    """Return a dataclass field that accepts only the strings `known`; the first one is the
    default.
    """
    return dataclasses.field(default=known[0], metadata={"choices": known})


@dataclasses.dataclass(frozen=True)
class ReadingSkip(TimeSkip):
    """A time skip that decides which tokens are read: State(t-1) enters, and not every state is
    written.

    By default `Decision.action` is 1 where a token is read, and 2 where it is not.
    """

    writes_all = False
    action_range = (1, 2)
    fixed_slot = 0
    max_skip: int = dataclasses.field(default=1, init=False)
    mix: float = dataclasses.field(default=1.0, init=False)

    def trace(self, params, inputs, observation, choice, mode) -> Decision:
        zeros = jnp.zeros_like(choice.update)
        action = jnp.where(choice.update >= 0.5, 1, 2).astype(jnp.int32)
        return Decision(action, zeros, zeros, choice.update)


@dataclasses.dataclass(frozen=True)
class BufferSkip(TimeSkip):
    """A time skip over the last K states, with an option for the first step of a sequence.

    Attributes:
        max_skip: K, which has no default: with K = 1, nothing would be skipped.
        first_step: State that enters the first step. `agent`: a chosen state, as at every other
            step. `carried`: the carried state, which is forgotten afterwards, as in the released
            code of Gui et al. (2019). That code also reinforces the choice; here the choice has no
            effect and gets no credit.
    """

    max_skip: int = dataclasses.field()
    first_step: str = choice_field("agent", "carried")

    @property
    def forgets_carried(self) -> bool:
        return self.first_step == "carried"

    def slot_of(self, action: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """Return the slot in 0..K-1 of each `action` k in 1..K; 0 at padding, where the action is
        0.
        """
        return jnp.clip(action.astype(jnp.int32) - 1, 0, self.max_skip - 1)
