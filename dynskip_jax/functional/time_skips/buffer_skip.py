"""What skips over time that look back over the last K states have in common."""

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import (
    AgentParams,
    agent_logits,
    content_logits,
    entropy,
    project_agent_input,
)
from dynskip_jax.functional.time_skips.base import (
    Choice,
    Decision,
    Observed,
    SkipInputs,
    TimeSkip,
    choice_field,
)


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


@dataclasses.dataclass(frozen=True)
class PolicySkip(BufferSkip):
    """A time skip with an agent, Eq. 1, that distributes over the last K states.

    Attributes:
        agent: `mlp`: logits are made of s(t) = h(t-1) ⊕ x(t), Eq. 1; or by `content`: a query made of s(t)
            is compared with the K stored h.
        agent_input: the MLP sees x(t) and `previous`: h(t-1), Eq. 1; or `mean`: the mean of the K
            stored h, as in the authors' released code.
        empty_slots: before K steps have passed, the missing states are the `initial` state and may be
            chosen, as in the released code; or they are `masked` out of the policy.
        stride: only every so many-th of the K states may be chosen, k = 1, 1 + stride, 1 + 2 stride, …
    """

    agent: str = choice_field("mlp", "content")
    agent_input: str = choice_field("previous", "mean")
    empty_slots: str = choice_field("initial", "masked")
    stride: int = 1

    has_agent = True

    def __post_init__(self) -> None:
        """Checks the stride too."""
        super().__post_init__()
        if self.stride < 1:
            raise UserError(f"a skip's stride is at least 1, got {self.stride}")

    @property
    def observed(self) -> Observed:
        """See `TimeSkip`."""
        return "stored" if self.agent == "content" else self.agent_input

    def init(self, key, in_features, hidden, units, init) -> AgentParams:
        """Draws the agent's weights; see `TimeSkip`."""
        first_key, b_key, out_key, b_out_key = jax.random.split(key, 4)
        # One matrix acts on h ⊕ x: its fan-in, and hence its scale, is that of the concatenation.
        first = init.draw(init.kernel, first_key, (hidden + in_features, units))
        w_x = first[hidden:]
        if init.agent_input is not None:
            w_x = init.draw(init.agent_input, jax.random.fold_in(first_key, 1), (in_features, units))
        out = hidden if self.agent == "content" else self.max_skip
        return AgentParams(
            first[:hidden],
            w_x,
            init.draw(init.bias, b_key, (units,)),
            init.draw(init.kernel, out_key, (units, out)),
            init.draw(init.bias, b_out_key, (self.max_skip,)),
        )

    def project(self, params: AgentParams, x):
        """The input's share of the agent's first layer.

        A sampled agent is trained by its score function alone: no gradient flows from it into the network it
        steers, so its input is stopped. Attention is an ordinary differentiable part of the network.
        """
        return project_agent_input(params, jax.lax.stop_gradient(x) if self.is_stochastic else x)

    def logits(self, params: AgentParams, inputs: SkipInputs, observation: Any) -> Float[Array, "*batch K"]:
        """Unnormalised log-probabilities of the K states."""
        score = content_logits if self.agent == "content" else agent_logits
        return score(params, inputs.projected, observation, inputs.allowed)

    def log_distribution(self, params, x, step, observation, policy_mask=None):
        """See `TimeSkip`."""
        allowed = self.allowed(step, policy_mask)
        inputs = SkipInputs(project_agent_input(params, x), step, allowed=allowed)
        return log_softmax(self.logits(params, inputs, observation))

    def allowed(
        self, step: Int[Array, "*batch"], policy_mask: Bool[Array, "*batch_or_none K"] | None
    ) -> Bool[Array, "*batch_or_1 K"] | None:
        """Joins the caller's mask over K with those of slots that no step has filled yet, and of the stride.

        Where both together leave nothing, State(t-1) is all that may be chosen.

        Args:
            step: steps taken before this one; `*batch` may contain the time axis.
            policy_mask: (K,), or with the axes of `step` before K (ones broadcast).
        """
        masks = []
        if policy_mask is not None:
            masks.append(
                policy_mask.reshape((1,) * step.ndim + (-1,)) if policy_mask.ndim == 1 else policy_mask
            )
        slots = jnp.arange(self.max_skip).reshape((1,) * step.ndim + (-1,))
        if self.empty_slots == "masked":
            # Slot 0 holds the initial state before the first step, so step + 1 states exist at step `step`.
            masks.append(slots <= step[..., None])
        if self.stride > 1:
            masks.append(slots % self.stride == 0)
        if not masks:
            return None
        allowed = functools.reduce(operator.and_, masks)
        if policy_mask is not None:
            allowed = allowed | ((slots == 0) & ~jnp.any(allowed, axis=-1, keepdims=True))
        return allowed

    def weighted(self, weights: Float[Array, "*batch K"], log_probs: Float[Array, "*batch K"]) -> Decision:
        """The trace of weights on all states: the heaviest, and no score, for the loss reaches the agent."""
        heaviest = jnp.argmax(weights, axis=-1).astype(jnp.int32) + 1
        return Decision(heaviest, jnp.zeros(heaviest.shape, log_probs.dtype), entropy(log_probs))


def log_softmax(logits: Float[Array, "*batch K"]) -> Float[Array, "*batch K"]:
    """log P, Eq. 1, in nats."""
    return jax.nn.log_softmax(logits, axis=-1)
