"""The dynamic skip of Gui et al. (2019): an agent samples which of the last K states enters."""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from dynskip_jax.functional.agent import choice_noise, choose, entropy
from dynskip_jax.functional.relaxation import RELAXATIONS, draws_noise, relaxed_weights
from dynskip_jax.functional.time_skips.base import Choice, Decision, SkipInputs
from dynskip_jax.functional.time_skips.buffer_skip import PolicySkip, log_softmax


@dataclasses.dataclass(frozen=True)
class Dynamic(PolicySkip):
    """One of the last K states enters, chosen by the agent, Eq. 1.

    Trained by the score function of its choices (`reinforce_loss`); or, in a relaxed mode, by the gradient of
    the loss through weights on all K states (`relaxation.py`). What it sees is stopped, but for the stored
    states that a relaxed choice by content compares, h(t-1) in the query among them: what tells them apart is
    learnt, as in attention.
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
