"""What a skip over time is: which earlier state enters a step, and how much of the new one is written."""

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
    """What was decided at a step; None where a skip leaves it open. One of `slot` and `weights`, or neither.

    Attributes:
        slot: State(t-1-slot) enters, in 0..K-1, (*batch,).
        weights: the mean of the K states under these weights enters, (*batch, K).
        update: share of the new state that is written, the rest being State(t-1), (*batch,).
        action: what was drawn, where that is not a slot, (*batch,).
    """

    slot: Int[Array, "*batch"] | None = None
    weights: Float[Array, "*batch K"] | None = None
    update: Float[Array, "*batch"] | None = None
    action: Int[Array, "*batch"] | None = None


class Decision(NamedTuple):
    """What was chosen at each step, and how willingly.

    Attributes:
        action: k in 1..K, the State(t-k) that was selected; 0 where there was no step (padding). Other time
            skips say in their own files what their actions are.
        log_prob: log π(k | s), in nats; 0 where nothing was left to chance.
        entropy: H(π(· | s)), in nats; 0 where nothing was left to chance.
        update: share of the step's new state that was written: 0 where the token was not read. None where a
            skip writes every state.
    """

    action: Int[Array, "*batch"]
    log_prob: Float[Array, "*batch"]
    entropy: Float[Array, "*batch"]
    update: Float[Array, "*batch"] | None = None


class SkipInputs(NamedTuple):
    """What of a decision needs no state; `*batch` may contain the time axis.

    Attributes:
        projected: `TimeSkip.project` of x(t).
        step: how many steps were taken before this one, (*batch,).
        noise: `TimeSkip.noise`; None where nothing is drawn.
        allowed: False for skips that must not be chosen, (*batch, K) or with ones in place of batch sizes.
        action: to be replayed in place of a choice, (*batch,); None to choose.
        temperature: τ of relaxed choices; one for all.
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

    One of your own is a frozen dataclass in a file of its own: it says what it observes of the last K states
    (`observed`, `observed_array`), makes a `Choice` of that, and tells the trace of it. Reading the buffer
    and writing to it follow from the choice, in the reference and in the fused unroll alike. `choose` and
    `decide` must work for any leading axes, for the fused unroll calls them for all steps at once.

    Attributes:
        name: on the command line, in front of a colon and K where it takes one.
        takes_max_skip: whether it does.
        max_skip: K, how many states the buffer holds.
        mix: the skip weight λ in [0, 1]: λ State(t-k) + (1 - λ) State(t-1) enters the transition (Eq. 2).
    """

    name: ClassVar[str] = ""
    takes_max_skip: ClassVar[bool] = True
    has_agent: ClassVar[bool] = False  # whether an agent or attention distributes over the last K states
    is_stochastic: ClassVar[bool] = False  # whether it samples, and is trained by a score-function gradient
    writes_all: ClassVar[bool] = True  # whether every new state is written whole: `Choice.update` is None
    max_skip: int = 1
    mix: float = 1.0

    def __post_init__(self) -> None:
        """Checks the values, with messages for the person who typed them."""
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
        """The slot that enters every step, where it is always the same; None where it is chosen."""
        return None

    @property
    def forgets_carried(self) -> bool:
        """Whether the state that entered the first step is then replaced by the initial one."""
        return False

    @property
    def action_range(self) -> tuple[int, int]:
        """The smallest and the largest action that can be replayed at a step of a sequence."""
        return 1, self.max_skip

    @property
    def observed(self) -> Observed:
        """What is seen of the stored states: the `previous` one, their `mean`, all K `slots`; or what is
        `stored`, to be compared with (see `stored.py`), which costs less.
        """
        return "previous"

    def observed_array(self, transition: Transition) -> str:
        """Which of the state's arrays is seen."""
        return "h"

    def init(self, key: Key[Array, ""], in_features: int, hidden: int, units: int, init: Initializers) -> Any:
        """Draws the parameters; None where there are none.

        Args:
            key: a PRNG key.
            in_features: size of x(t).
            hidden: size of a state.
            units: hidden units of an agent.
            init: how parameters are drawn.
        """
        return None

    def init_skip_state(self, batch: tuple[int, ...], dtype: Any) -> Any:
        """What the skip carries from step to step beside the states; every leaf leads with the batch."""
        return ()

    def project(self, params: Any, x: Float[Array, "*batch in"]) -> Any:
        """What of a decision only the input decides."""
        return None

    def noise(
        self,
        keys: Key[Array, "*batch"] | None,
        step: Int[Array, "*batch"],
        mode: ActionMode,
        replayed: bool,
        dtype: Any,
    ) -> Float[Array, "*batch choices"] | None:
        """What a decision draws, `fold_in(own key, own step)` being the key of each; None without chance."""
        return None

    def draws(self, mode: ActionMode, replayed: bool) -> bool:
        """Whether a decision is left to chance, and needs a key."""
        return self.is_stochastic and not replayed and mode not in ("greedy", "soft")

    def differentiable(self, mode: ActionMode, replayed: bool) -> bool:
        """Whether a gradient flows through the choice: through its `weights` or its `update`."""
        return False

    def choose(
        self, params: Any, inputs: SkipInputs, observation: Any, skip_state: Any, mode: ActionMode
    ) -> tuple[Choice, Any]:
        """Decides.

        Args:
            params: from `init`.
            inputs: what needs no state.
            observation: what is `observed`: (*batch, hidden); (*batch, K, hidden) of all slots, the newest
                first; or `Stored`.
            skip_state: what the skip carries.
            mode: `sample`, `greedy` or a relaxation.

        Returns:
            The choice, and what the skip carries on.
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
        """Returns log π of each of the K states, in nats, differentiable in all it is made of.

        Args:
            params: from `init`.
            x: inputs of the layer; `*batch` may contain the time axis.
            step: how many steps were taken before.
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
        """The trace of a choice; the arguments are those of `choose`, and what it returned."""
        certain = jnp.zeros(inputs.step.shape, observation.dtype)
        slot = 0 if self.fixed_slot is None else self.fixed_slot
        return Decision(jnp.full(inputs.step.shape, slot + 1, jnp.int32), certain, certain)

    def allowed(
        self, step: Int[Array, "*batch"], policy_mask: Bool[Array, "*batch_or_none K"] | None
    ) -> Bool[Array, "*batch_or_1 K"] | None:
        """Which skips may be chosen; None for all."""
        return None


def check_mix(mix: Any) -> None:
    """Raises a `UserError` where λ is no single number, or is known and does not lie in [0, 1]."""
    _check_number("mix (λ)", mix, "between 0 and 1", lambda known: 0 <= known <= 1)


def check_temperature(temperature: Any) -> None:
    """Raises a `UserError` where τ is no single number, or is known and not above 0."""
    _check_number("a temperature (τ)", temperature, "above 0", lambda known: known > 0)


def _check_number(name: str, value: Any, where: str, lies_there: Callable[[Any], bool]) -> None:
    if np.ndim(value):
        raise UserError(f"{name} is a single number, got {described(value)}")
    if not isinstance(value, jax.core.Tracer) and not lies_there(np.asarray(value)):
        raise UserError(f"{name} lies {where}, got {value}")


def choice_field(*known: str) -> Any:
    """A field of a time skip that takes one of a few words, the first one by default."""
    return dataclasses.field(default=known[0], metadata={"choices": known})


@dataclasses.dataclass(frozen=True)
class BufferSkip(TimeSkip):
    """A time skip whose first step may belong to the carried state.

    Attributes:
        first_step: at a sequence's first step the `agent` chooses like at every other one; or the
            `carried` state is used whatever the agent says and then forgotten, the initial one in its place,
            as in the released code (which reinforces that choice all the same; here a choice without effect
            earns no credit).
    """

    first_step: str = choice_field("agent", "carried")

    @property
    def forgets_carried(self) -> bool:
        """See `TimeSkip`."""
        return self.first_step == "carried"

    def carried_first(self, inputs: SkipInputs, choice: Choice) -> Choice:
        """The choice, or the carried state's slot at a first step that is not the agent's."""
        if not self.forgets_carried:
            return choice
        first = inputs.step == 0
        if choice.weights is None:
            return choice._replace(slot=jnp.where(first, 0, choice.slot))
        newest = jax.nn.one_hot(0, self.max_skip, dtype=choice.weights.dtype)
        newest = newest.reshape((1,) * (choice.weights.ndim - 1) + (-1,))
        return choice._replace(weights=jnp.where(first[..., None], newest, choice.weights))

    def slot_of(self, action: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """The slot in 0..K-1 of a skip k in 1..K; 0 for the 0 that stands at padding."""
        return jnp.clip(action.astype(jnp.int32) - 1, 0, self.max_skip - 1)

    def decide(self, params, inputs, observation, skip_state, choice, mode) -> Decision:
        """See `TimeSkip`; where nothing is left to choose, k = K."""
        certain = jnp.zeros(inputs.step.shape, observation.dtype)
        k = jnp.full(inputs.step.shape, self.max_skip, jnp.int32)
        return self.without_credit(inputs, Decision(k, certain, certain))

    def without_credit(self, inputs: SkipInputs, decision: Decision) -> Decision:
        """The decision, without credit at a first step that is not the agent's."""
        if not self.forgets_carried:
            return decision
        first = inputs.step == 0
        return decision._replace(
            action=jnp.where(first, 1, decision.action),
            log_prob=jnp.where(first, 0, decision.log_prob),
            entropy=jnp.where(first, 0, decision.entropy),
        )
