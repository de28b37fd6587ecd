"""Interface of skips over time: which earlier state enters a step, and how much is written."""

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import ActionMode
from dynskip_jax.functional.checks import check_fields, check_mix, check_whole
from dynskip_jax.functional.memory import Memory
from dynskip_jax.functional.relaxation import RELAXATIONS
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Initializers, Transition

ObservationKind = Literal["previous", "mean", "slots", "memory"]


@register_for_export
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


@register_for_export
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
        followed: Inputs that followed the last K states, x(t-k+1) for each k, as a `Memory`; None
            if the skip does not observe them.
    """

    projected: Any = None
    step: Int[Array, "*batch"] | None = None
    noise: Float[Array, "*batch choices"] | None = None
    allowed: Bool[Array, "*batch_or_1 n"] | None = None
    action: Int[Array, "*batch"] | None = None
    temperature: Float[Array, ""] | float = 1.0
    followed: Memory | None = None


@dataclasses.dataclass(frozen=True)
class TimeSkip:
    """Interface of a skip over time: which state enters a step, and what is written.

    To write your own, derive a frozen dataclass, declare what differs from the defaults below, and
    make a `Choice` in `choose`. The reference and the fused unroll read and write the buffer of
    states. Time skips are hashable, so they can be static arguments under `jit`.

    A skip declares, by class attributes or properties:

    * `observation_kind` (`previous`): what `choose` observes of the last K states; see there.
    * `observes_inputs` (False): `choose` also observes the inputs that followed these states,
      `SkipInputs.followed`.
    * `num_choices` (0): number of options from which one is sampled or replayed; 0 if a choice is
      computed without options.
    * `action_range` (1, K): smallest and largest action that can be replayed.
    * `fixed_slot` (None): slot of the state that enters every step; None if it is chosen.
    * `writes_all` (True): every new state is written as a whole, so that `Choice.update` is None.
    * `forgets_carried` (False): the carried state enters the first step, and the initial one
      replaces it.

    Everything else follows: `has_agent`, `has_distribution` and `is_stochastic` are derived.

    Attributes:
        max_skip: K, the number of states in the buffer.
        mix: Skip weight λ in [0, 1]: λ State(t-k) + (1 - λ) State(t-1) enters the transition, Gui
            et al. (2019), Eq. 2.
    """

    observation_kind: ClassVar[ObservationKind] = "previous"
    observes_inputs: ClassVar[bool] = False
    num_choices: ClassVar[int] = 0
    fixed_slot: ClassVar[int | None] = None
    writes_all: ClassVar[bool] = True
    forgets_carried: ClassVar[bool] = False
    max_skip: int = 1
    mix: float = 1.0

    def __post_init__(self) -> None:
        """Make the fields hashable, and check them and what the class declares."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            # Arrays become Python numbers and tuples.
            if hasattr(value, "tolist") and not isinstance(value, jax.core.Tracer):
                value = value.tolist()
            if isinstance(value, list):
                value = tuple(value)
            object.__setattr__(self, field.name, value)
            known = field.metadata.get("choices")
            if known is not None and value not in known:
                raise UserError(f"unknown {field.name} {value!r}: choose one of {', '.join(known)}")
        check_mix(self.mix)
        check_whole("max_skip (K)", self.max_skip)
        check_fields(self)
        self._check_declarations()

    def _check_declarations(self) -> None:
        """Check that what the class declares fits together."""
        cls = type(self)
        kind = self.observation_kind
        if kind not in get_args(ObservationKind):
            known = ", ".join(get_args(ObservationKind))
            name = f"{cls.__name__}.observation_kind"
            raise UserError(f"unknown {name} {kind!r}: choose one of {known}")
        # Without log π in the trace, no gradient would reach the parameters.
        if self.is_stochastic and self.has_params and cls.trace is TimeSkip.trace:
            raise TypeError(
                f"{cls.__name__} samples with parameters: return log π of the choice in `trace`"
            )
        # Histories have the initial state in place of the forgotten one. Loops replace it at the
        # first step, but not where an update or a state depends on older states.
        has_state = cls.init_skip_state is not TimeSkip.init_skip_state
        if self.forgets_carried and kind != "previous" and (has_state or not self.writes_all):
            raise UserError(
                f"{cls.__name__} has an update or a state: "
                "with forgets_carried it observes `previous`"
            )

    # What follows from the declarations and from the methods below.

    @property
    def has_params(self) -> bool:
        """Whether the skip has parameters: it overrides `init`."""
        return type(self).init is not TimeSkip.init

    @property
    def has_agent(self) -> bool:
        """Whether parameters decide which state enters: those of an agent or of attention."""
        return self.has_params and self.fixed_slot is None

    @property
    def has_distribution(self) -> bool:
        """Whether there is a distribution over the K states: the skip has `log_distribution`."""
        return type(self).log_distribution is not TimeSkip.log_distribution

    @property
    def is_stochastic(self) -> bool:
        """Whether a policy that samples makes the skip sample one of its options.

        Losses train the parameters of such a skip by log π of the `trace`.
        """
        return self.num_choices > 0 and self.mode_of("sample") == "sample"

    def draws(self, mode: ActionMode, replayed: bool) -> bool:
        """Return whether choices are sampled and need keys; replayed actions are not."""
        # `soft` weighs all options, without noise.
        is_random = self.mode_of(mode) not in ("none", "greedy", "soft")
        return is_random and self.num_choices > 0 and not replayed

    def differentiable(self, mode: ActionMode, replayed: bool) -> bool:
        """Return whether a gradient flows through the `weights` or the `update` of a choice.

        If not, choices and the skip's state are constants.
        """
        # A fixed slot and whole new states leave nothing to choose, and actions are whole numbers.
        is_chosen = self.fixed_slot is None or not self.writes_all
        is_replayed = replayed and self.num_choices > 0
        return is_chosen and not is_replayed and self.mode_of(mode) in (*RELAXATIONS, "none")

    # What a skip may define.

    @property
    def action_range(self) -> tuple[int, int]:
        """Smallest and largest action that can be replayed."""
        return 1, self.max_skip

    def observation_arrays(self, transition: Transition) -> tuple[str, ...]:
        """Return the names of the state's arrays that `choose` observes, side by side."""
        return ("h",)

    def mode_of(self, mode: ActionMode) -> str:
        """Return how the skip makes its choices where the policy has `mode`.

        That is `sample`, `greedy`, a relaxation, or `none` if the skip computes its choices without
        options to select from. A gradient flows through the choices of the last two. A relaxation
        that a skip does not have becomes another mode. By default a skip with options has all
        modes.
        """
        if self.num_choices == 0:
            return "none"
        return mode

    def init(
        self, key: Key[Array, ""], in_features: int, hidden: int, units: int, init: Initializers
    ) -> Any:
        """Draw the parameters, with `units` hidden units of an agent; None without parameters.

        Layers take a named tuple of arrays, or of tuples of arrays.
        """
        return None

    def init_skip_state(self, batch: tuple[int, ...], dtype: Any) -> Any:
        """Return the skip's own state before the first step: a pytree with the `batch` axes."""
        return ()

    def project(self, params: Any, x: Float[Array, "*batch in"]) -> Any:
        """Compute the part of the choice that needs no state, for all steps at once."""
        return None

    def candidates(self, step: Int[Array, "*batch"]) -> np.ndarray | Int[Array, "*batch_or_1 n"]:
        """Return the slots among which the skip chooses, with as many axes as `step`.

        By default these are all K.
        """
        return np.arange(self.max_skip, dtype=np.int32).reshape((1,) * step.ndim + (-1,))

    def allowed(
        self, step: Int[Array, "*batch"], policy_mask: Bool[Array, "*batch_or_none K"] | None
    ) -> Bool[Array, "*batch_or_1 n"] | None:
        """Return a mask of the candidates that may be chosen at each step; None allows all.

        `policy_mask` is False for skips that the policy forbids: (K,), or with the axes of `step`
        before K.
        """
        return None

    def choose(
        self, params: Any, inputs: SkipInputs, observation: Any, skip_state: Any, mode: ActionMode
    ) -> tuple[Choice, Any]:
        """Make the choice of a step, or of all steps at once: accept any leading axes.

        `observation` is of this `observation_kind`:

        * `previous`: State(t-1), (*batch, hidden);
        * `mean`: the mean of the last K states, (*batch, hidden);
        * `slots`: all of them, newest first, (*batch, K, hidden);
        * `memory`: a `Memory`, which compares a query with all of them at less cost.

        `skip_state` is the skip's own state before the step; return it after the step, too.
        """
        return Choice(), skip_state

    def trace(
        self, params: Any, inputs: SkipInputs, observation: Any, choice: Choice, mode: ActionMode
    ) -> Decision:
        """Return the trace of `choice`; see `choose` for the other arguments.

        By default it is k, or K for a weighted mean, without a log-probability.
        """
        # State(t-k) is in slot k - 1.
        slot = choice.slot
        if self.fixed_slot is not None:
            slot = self.fixed_slot
        if slot is None or choice.weights is not None:
            slot = self.max_skip - 1
        zeros = jnp.zeros(inputs.step.shape, observation.dtype)
        k = jnp.broadcast_to(slot + 1, inputs.step.shape).astype(jnp.int32)
        return Decision(k, zeros, zeros)

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


def choice_field(*known: str) -> Any:
    """Return a dataclass field that accepts only the strings `known`, by default the first."""
    return dataclasses.field(default=known[0], metadata={"choices": known})


@dataclasses.dataclass(frozen=True)
class ReadingSkip(TimeSkip):
    """A time skip that decides which tokens are read: a new state is not always written.

    State(t-1) enters every step. By default `Decision.action` is 1 where a token is read, and 2
    where it is not.
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
        """Return the slot in 0..K-1 of each `action` k in 1..K; 0 at padding, of action 0."""
        return jnp.clip(action.astype(jnp.int32) - 1, 0, self.max_skip - 1)
