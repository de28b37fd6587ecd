"""Attention and dynamic skips: an agent computes a distribution over the last K states (Gui et al. 2019)."""

import dataclasses
import functools
import operator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_softmax
from jaxtyping import Array, Bool, Float, Int
from typing_extensions import override

from dynskip_jax.functional.agent import (
    AgentParams,
    agent_logits,
    choice_noise,
    choose,
    content_logits,
    entropy,
    masked_logit,
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
from dynskip_jax.functional.time_skips.candidates import Candidates


@dataclasses.dataclass(frozen=True)
class PolicySkip(BufferSkip):
    """A time skip whose agent (Eq. 1) computes a distribution over the last K states.

    Attributes:
        agent: Kind of agent. `mlp`: logits are computed from s(t) = h(t-1) ⊕ x(t), Eq. 1. `content`: logits
            are dot products of the K stored h with a query that is computed from s(t).
        agent_input: State in s(t) of an `mlp` agent. `previous`: h(t-1), Eq. 1. `mean`: the mean of the K
            stored h, as in the authors' released code. A `content` agent always uses h(t-1).
        empty_slots: What happens to empty slots before K steps have passed. `initial`: they contain the
            initial state and may be chosen, as in the released code. `masked`: they may not be chosen.
        among: States that may enter, such as `LogSpaced()`, `Segments(16)` or `Every(3)`; None for all K.
    """

    agent: str = choice_field("mlp", "content")
    agent_input: str = choice_field("previous", "mean")
    empty_slots: str = choice_field("initial", "masked")
    among: Candidates | None = None

    has_agent = True
    has_distribution = True

    @property
    def num_candidates(self) -> int:
        """Number of candidates, the states for which the agent computes logits."""
        return self.max_skip if self.among is None else self.among.count(self.max_skip)

    def candidates(self, step: Int[Array, "*batch"] | None) -> np.ndarray | Int[Array, "*batch n"] | None:
        """Return the slots of the candidates, see `Candidates.slots`; None if all K are candidates."""
        return None if self.among is None else self.among.slots(self.max_skip, step)

    @property
    @override
    def observed(self) -> Observed:
        return "stored" if self.agent == "content" else self.agent_input

    def init(self, key, in_features, hidden, units, init) -> AgentParams:
        """Draw the agent's weights; see `TimeSkip`."""
        first_key, b_key, out_key, b_out_key = jax.random.split(key, 4)
        # Draw one matrix for h ⊕ x: its fan-in, and hence its scale, is that of the concatenation.
        first = init.draw(init.kernel, first_key, (hidden + in_features, units))
        w_x = first[hidden:]
        if init.agent_input is not None:
            w_x = init.draw(init.agent_input, jax.random.fold_in(first_key, 1), (in_features, units))
        out = hidden if self.agent == "content" else self.num_candidates
        return AgentParams(
            first[:hidden],
            w_x,
            init.draw(init.bias, b_key, (units,)),
            init.draw(init.kernel, out_key, (units, out)),
            init.draw(init.bias, b_out_key, (self.num_candidates,)),
        )

    def project(self, params: AgentParams, x):
        """Return the part of the agent's first layer that depends on the input.

        No gradient flows from an agent that samples (`is_stochastic`) into the input x. Attention is an
        ordinary differentiable part of the network.
        """
        return project_agent_input(params, jax.lax.stop_gradient(x) if self.is_stochastic else x)

    def logits(self, params: AgentParams, inputs: SkipInputs, observation: Any) -> Float[Array, "*batch n"]:
        """Return the candidates' logits, unnormalised log-probabilities, (*batch, n)."""
        slots, allowed = self.candidates(inputs.step), inputs.allowed
        if slots is not None and allowed is not None:
            allowed = _taken(allowed, slots)
        if self.agent == "mlp":
            return agent_logits(params, inputs.projected, observation, allowed)
        return content_logits(params, inputs.projected, observation, allowed, slots)

    def log_distribution(self, params, x, step, observation, policy_mask=None, temperature=1.0):
        """See `TimeSkip`; the logits are divided by `temperature`."""
        allowed = self.allowed(step, policy_mask)
        inputs = SkipInputs(project_agent_input(params, x), step, allowed=allowed)
        return self.spread(step, self.log_weights(self.logits(params, inputs, observation) / temperature))

    def log_weights(self, logits: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        """Return the logarithms of the candidates' probabilities (or weights) from their logits."""
        return log_softmax(logits)

    def spread(
        self, step: Int[Array, "*batch_or_1"], log_probs: Float[Array, "*batch n"]
    ) -> Float[Array, "*batch K"]:
        """Return log-probabilities of all K states, very negative for states that are not candidates.

        Args:
            step: Number of steps before this one.
            log_probs: Log-probabilities of the candidates, (*batch, n).
        """
        slots = self.candidates(step)
        if slots is None:
            return log_probs
        is_slot = jax.nn.one_hot(jnp.broadcast_to(slots, log_probs.shape), self.max_skip, dtype=bool)
        found = jnp.sum(jnp.where(is_slot, log_probs[..., None], 0), axis=-2)
        return jnp.where(jnp.any(is_slot, axis=-2), found, jnp.finfo(found.dtype).min / 8)

    def slots_of(self, step: Int[Array, "*batch"], index: Int[Array, "*batch n"]) -> Int[Array, "*batch n"]:
        """Return the slots of the candidates with the indices `index`, (*batch, n)."""
        slots = self.candidates(step)
        return index if slots is None else _taken(slots, index).astype(jnp.int32)

    def candidate_of_slot(self, step: Int[Array, "*batch"], slot: Int[Array, "*batch"]):
        """Return the index of `slot` among the candidates; their number if the slot is not a candidate."""
        slots = self.candidates(step)
        if slots is None:
            return slot
        is_slot = jnp.broadcast_to(slots, (*slot.shape, slots.shape[-1])) == slot[..., None]
        return jnp.where(jnp.any(is_slot, axis=-1), jnp.argmax(is_slot, axis=-1), self.num_candidates)

    def weigh(self, step: Int[Array, "*batch"], weights: Float[Array, "*batch n"]) -> Choice:
        """Return the choice of the candidates' mean under `weights`."""
        slots = self.candidates(step)
        if slots is None:
            return Choice(weights=weights)
        return Choice(jnp.broadcast_to(slots, weights.shape).astype(jnp.int32), weights)

    def allowed(
        self, step: Int[Array, "*batch"], policy_mask: Bool[Array, "*batch_or_none K"] | None
    ) -> Bool[Array, "*batch_or_1 K"] | None:
        """Combine `policy_mask` with the masks of empty slots and of candidates; return None for no mask.

        If the masks together leave no state, State(t-1) may still be chosen.

        Args:
            step: Number of steps before this one, (*batch,); `*batch` may contain the time axis.
            policy_mask: Mask of shape (K,), or with the axes of `step` before K; axes of size 1 broadcast.
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
        candidates = self.candidates(step)
        if candidates is not None:
            candidates = candidates.reshape((1,) * (step.ndim + 1 - candidates.ndim) + candidates.shape)
            masks.append(jnp.any(candidates[..., None] == slots[..., None, :], axis=-2))
        if not masks:
            return None
        allowed = functools.reduce(operator.and_, masks)
        if policy_mask is not None:
            allowed = allowed | ((slots == 0) & ~jnp.any(allowed, axis=-1, keepdims=True))
        return allowed

    def weighted(self, choice: Choice, log_probs: Float[Array, "*batch n"]) -> Decision:
        """Return the trace of a choice with weights on several states.

        The action is the k of the largest weight, the log-probability is 0, and the entropy is that of
        `log_probs`.
        """
        heaviest = jnp.argmax(choice.weights, axis=-1).astype(jnp.int32)
        if choice.slot is not None:
            heaviest = _taken(choice.slot, heaviest[..., None])[..., 0]
        return Decision(heaviest + 1, jnp.zeros(heaviest.shape, log_probs.dtype), entropy(log_probs))


def _taken(values: Array | np.ndarray, places: Array | np.ndarray) -> Array:
    """Return `values` at the indices `places` of the last axis; all other axes broadcast."""
    lead = jnp.broadcast_shapes(values.shape[:-1], places.shape[:-1])
    values, places = (jnp.broadcast_to(array, (*lead, array.shape[-1])) for array in (values, places))
    return jnp.take_along_axis(values, places.astype(jnp.int32), axis=-1)


@dataclasses.dataclass(frozen=True)
class Attention(PolicySkip):
    """Attention: the mean of the last K states, weighted by the agent's distribution, enters.

    It is the attention baseline in the tables of Gui et al. (2019). With `agent="content"` it is dot-product
    attention of a query, computed from s(t), over the stored h.
    """

    name: ClassVar[str] = "attention"

    @override
    def differentiable(self, mode, replayed) -> bool:
        return True

    @override
    def choose(self, params, inputs, observation, skip_state, mode):
        log_probs = log_softmax(self.logits(params, inputs, observation))
        weights = relaxed_weights(log_probs, None, "soft", inputs.temperature)
        return self.carried_first(inputs, self.weigh(inputs.step, weights)), skip_state

    @override
    def decide(self, params, inputs, observation, skip_state, choice, mode) -> Decision:
        log_probs = log_softmax(self.logits(params, inputs, observation) / inputs.temperature)
        return self.without_credit(inputs, self.weighted(choice, log_probs))


@dataclasses.dataclass(frozen=True)
class Dynamic(PolicySkip):
    """Dynamic skip: one of the last K states enters, chosen by the agent (Eq. 1).

    The agent is trained by the score function of its choices (`rl.reinforce`). In a relaxed mode it is
    trained by the gradient of the loss through weights on all K states (`relaxation.py`). No gradient flows
    into the agent's inputs. The exception is a relaxed content-based agent: its gradient reaches the stored
    states, as in attention.
    """

    name: ClassVar[str] = "dynamic"
    is_stochastic = True

    @override
    def differentiable(self, mode, replayed) -> bool:
        return mode in RELAXATIONS and not replayed

    @override
    def noise(self, keys, step, mode, replayed, dtype):
        if replayed or not (mode == "sample" or (mode in RELAXATIONS and draws_noise(mode))):
            return None
        return choice_noise(keys, step, self.num_candidates, dtype)

    @override
    def choose(self, params, inputs, observation, skip_state, mode):
        if inputs.action is not None:
            return self.carried_first(inputs, Choice(slot=self.slot_of(inputs.action))), skip_state
        if mode not in RELAXATIONS or self.agent != "content":
            observation = jax.lax.stop_gradient(observation)
        logits = self.logits(params, inputs, observation)
        if mode in RELAXATIONS:
            weights = relaxed_weights(log_softmax(logits), inputs.noise, mode, inputs.temperature)
            choice = self.weigh(inputs.step, weights.astype(logits.dtype))
        else:
            index = choose(logits, inputs.noise)
            choice = Choice(self.slots_of(inputs.step, index[..., None])[..., 0])
        return self.carried_first(inputs, choice), skip_state

    @override
    def decide(self, params, inputs: SkipInputs, observation, skip_state, choice: Choice, mode) -> Decision:
        log_probs = log_softmax(self.logits(params, inputs, jax.lax.stop_gradient(observation)))
        if choice.weights is not None:
            return self.without_credit(inputs, self.weighted(choice, log_probs))
        index = self.candidate_of_slot(inputs.step, choice.slot)
        # A replayed action may be no candidate; its index is then past the end.
        fill = dict(mode="fill", fill_value=masked_logit(log_probs.dtype))
        log_prob = jnp.take_along_axis(log_probs, index[..., None], axis=-1, **fill)[..., 0]
        return self.without_credit(inputs, Decision(choice.slot + 1, log_prob, entropy(log_probs)))
