"""Attention and dynamic skips over the last K states (Gui et al. 2019), whose weights an agent computes."""

import dataclasses
import functools
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.nn import log_softmax
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import (
    AgentParams,
    agent_logits,
    choice_noise,
    choose,
    content_logits,
    entropy,
    project_agent_input,
)
from dynskip_jax.functional.relaxation import RELAXATIONS, draws_noise, relaxed_weights
from dynskip_jax.functional.time_skips.base import (
    BufferSkip,
    Choice,
    Decision,
    Observed,
    SkipInputs,
    choice_field,
)


@dataclasses.dataclass(frozen=True)
class PolicySkip(BufferSkip):
    """A time skip with an agent, Eq. 1, that distributes over the last K states.

    Attributes:
        agent: `mlp`: compute logits from s(t) = h(t-1) ⊕ x(t), Eq. 1. `content`: compare a query made of s(t)
            with the K stored h (dot products).
        agent_input: the state in s(t). `previous`: h(t-1), Eq. 1. `mean`: the mean of the K stored h, as in
            the authors' released code.
        empty_slots: before K steps have passed, missing states are the `initial` state and may be chosen, as
            in the released code; or they are `masked` out.
        stride: distance between the states that may be chosen: k = 1, 1 + stride, 1 + 2 stride, …
    """

    agent: str = choice_field("mlp", "content")
    agent_input: str = choice_field("previous", "mean")
    empty_slots: str = choice_field("initial", "masked")
    stride: int = 1

    has_agent = True

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.stride < 1:
            raise UserError(f"a skip's stride is at least 1, got {self.stride}")

    @property
    def observed(self) -> Observed:
        """See `TimeSkip`."""
        return "stored" if self.agent == "content" else self.agent_input

    def init(self, key, in_features, hidden, units, init) -> AgentParams:
        """Draw the agent's weights; see `TimeSkip`."""
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
        """Return the part of the agent's first layer that depends on the input.

        A sampled agent is trained only by its score function, so no gradient flows from it into its input.
        Attention is an ordinary differentiable part of the network.
        """
        return project_agent_input(params, jax.lax.stop_gradient(x) if self.is_stochastic else x)

    def logits(self, params: AgentParams, inputs: SkipInputs, observation: Any) -> Float[Array, "*batch K"]:
        """Return unnormalised log-probabilities of the K states."""
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
        """Combine `policy_mask` with the masks of empty slots and of the stride; return None for no mask.

        Where nothing is left, only State(t-1) may be chosen.

        Args:
            step: number of steps before this one; `*batch` may contain the time axis.
            policy_mask: (K,), or with the axes of `step` before K (ones broadcast).
        """
        masks = []
        if policy_mask is not None:
            masks.append(
                policy_mask.reshape((1,) * step.ndim + (-1,)) if policy_mask.ndim == 1 else policy_mask
            )
        slots = jnp.arange(self.max_skip).reshape((1,) * step.ndim + (-1,))
        if self.empty_slots == "masked":
            # Slot 0 holds the initial state before the first step, so there are step + 1 states.
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
        """Return the trace of weights on all states: k of the largest, and log-probability 0."""
        heaviest = jnp.argmax(weights, axis=-1).astype(jnp.int32) + 1
        return Decision(heaviest, jnp.zeros(heaviest.shape, log_probs.dtype), entropy(log_probs))


@dataclasses.dataclass(frozen=True)
class Attention(PolicySkip):
    """The mean of the last K states under the agent's distribution enters: the baseline of their tables."""

    name: ClassVar[str] = "attention"

    def differentiable(self, mode, replayed) -> bool:
        """See `TimeSkip`."""
        return True

    def choose(self, params, inputs, observation, skip_state, mode):
        """See `TimeSkip`."""
        log_probs = log_softmax(self.logits(params, inputs, observation))
        weights = relaxed_weights(log_probs, None, "soft", inputs.temperature)
        return self.carried_first(inputs, Choice(weights=weights)), skip_state

    def decide(self, params, inputs, observation, skip_state, choice, mode) -> Decision:
        """See `TimeSkip`."""
        log_probs = log_softmax(self.logits(params, inputs, observation))
        return self.without_credit(inputs, self.weighted(choice.weights, log_probs))


@dataclasses.dataclass(frozen=True)
class ContentAttention(Attention):
    """Dot-product attention: its weights compare a query made of s(t) with the K stored h."""

    name: ClassVar[str] = "content"
    agent: str = dataclasses.field(default="content", metadata={"choices": ("content",)})


@dataclasses.dataclass(frozen=True)
class Dynamic(PolicySkip):
    """One of the last K states enters, chosen by the agent, Eq. 1.

    The agent is trained by the score function of its choices (`reinforce_loss`), or in a relaxed mode by the
    gradient of the loss through weights on all K states (`relaxation.py`). No gradient flows into what the
    agent sees. The exception is a relaxed content-based agent: its gradient reaches the stored states, as in
    attention.
    """

    name: ClassVar[str] = "dynamic"
    is_stochastic = True

    def differentiable(self, mode, replayed) -> bool:
        """See `TimeSkip`."""
        return mode in RELAXATIONS and not replayed

    def noise(self, keys, step, mode, replayed, dtype):
        """See `TimeSkip`."""
        if replayed or not (mode == "sample" or (mode in RELAXATIONS and draws_noise(mode))):
            return None
        return choice_noise(keys, step, self.max_skip, dtype)

    def choose(self, params, inputs, observation, skip_state, mode):
        """See `TimeSkip`."""
        if inputs.action is not None:
            return self.carried_first(inputs, Choice(slot=self.slot_of(inputs.action))), skip_state
        if mode not in RELAXATIONS or self.agent != "content":
            observation = jax.lax.stop_gradient(observation)
        logits = self.logits(params, inputs, observation)
        if mode in RELAXATIONS:
            weights = relaxed_weights(log_softmax(logits), inputs.noise, mode, inputs.temperature)
            choice = Choice(weights=weights.astype(logits.dtype))
        else:
            choice = Choice(slot=choose(logits, inputs.noise))
        return self.carried_first(inputs, choice), skip_state

    def decide(self, params, inputs: SkipInputs, observation, skip_state, choice: Choice, mode) -> Decision:
        """See `TimeSkip`."""
        log_probs = log_softmax(self.logits(params, inputs, jax.lax.stop_gradient(observation)))
        if choice.weights is not None:
            return self.without_credit(inputs, self.weighted(choice.weights, log_probs))
        log_prob = jnp.take_along_axis(log_probs, choice.slot[..., None], axis=-1)[..., 0]
        return self.without_credit(inputs, Decision(choice.slot + 1, log_prob, entropy(log_probs)))
