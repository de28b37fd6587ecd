"""Attention over the last K states (Gui et al. 2019, the baseline of their tables)."""

import dataclasses
from typing import ClassVar

from dynskip_jax.functional.relaxation import relaxed_weights
from dynskip_jax.functional.time_skips.base import Choice, Decision
from dynskip_jax.functional.time_skips.buffer_skip import PolicySkip, log_softmax


@dataclasses.dataclass(frozen=True)
class Attention(PolicySkip):
    """The mean of the last K states under the agent's distribution enters, differentiable throughout."""

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
    """Attention whose weights compare a query made of s(t) with the K stored h."""

    name: ClassVar[str] = "content"
    agent: str = dataclasses.field(default="content", metadata={"choices": ("content",)})
