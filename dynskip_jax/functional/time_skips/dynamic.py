"""Attention and dynamic skips: agents over the last K states (Gui et al. 2019)."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import log_softmax
from jaxtyping import Array, Bool, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import (
    ActionMode,
    AgentParams,
    agent_logits,
    choose,
    content_logits,
    entropy,
    masked_logit,
    project_agent_input,
    where_allowed,
)
from dynskip_jax.functional.relaxation import (
    RELAXATIONS,
    bounded_temperature,
    policy_temperature,
    relaxed_weights,
)
from dynskip_jax.functional.sharding import explicit_spec, match_batch
from dynskip_jax.functional.time_skips.base import (
    BufferSkip,
    Choice,
    Decision,
    SkipInputs,
    choice_field,
)
from dynskip_jax.functional.time_skips.candidates import Candidates, Every


@dataclasses.dataclass(frozen=True)
class PolicySkip(BufferSkip):
    """A time skip whose agent (Eq. 1) computes a distribution over the last K states.

    Attributes:
        agent: Kind of agent. `mlp`: logits are computed from s(t) = h(t-1) ⊕ x(t), Eq. 1.
            `content`: logits are dot products of the K stored h with a query that is computed from
            s(t). `both`: the sum of the two, so the agent knows how far a state is and what it is.
        agent_input: State in s(t) of an `mlp` agent. `previous`: h(t-1), Eq. 1. `mean`: the mean of
            the K stored h, as in the authors' released code. Agents that compare states always use
            h(t-1).
        empty_slots: What happens to empty slots before K steps have passed. `initial`: they contain
            the initial state and may be chosen, as in the released code. `masked`: they may not be
            chosen.
        agent_keys: What the query of a `content` or `both` agent is compared with. `states`:
            h(t-k), where we were. `followed`: the pair of h(t-k) and x(t-k+1), where we were and
            what came next there. No gradient of a sampled or relaxed choice flows into x(t-k+1).
        among: Candidates, the states that may enter, such as `LogSpaced()`, `Segments(16)` or
            `Every(3)`.
    """

    agent: str = choice_field("mlp", "content", "both")
    agent_input: str = choice_field("previous", "mean")
    agent_keys: str = choice_field("states", "followed")
    empty_slots: str = choice_field("initial", "masked")
    among: Candidates = Every()  # noqa: RUF009 (immutable)

    def __post_init__(self) -> None:
        if not isinstance(self.among, Candidates):
            raise UserError(
                f"expected among to be Candidates, such as LogSpaced(), got {self.among!r}"
            )
        super().__post_init__()
        if self.observes_inputs and not self.compares_states:
            raise UserError(
                f"agent_keys='followed' is for agent='content' or 'both', got agent={self.agent!r}"
            )

    # What choices observe.

    @property
    def compares_states(self) -> bool:
        """Whether the agent's logits depend on the stored states by a dot product."""
        return self.agent in ("content", "both")

    @property
    def observes_inputs(self) -> bool:
        return self.agent_keys == "followed"

    @property
    def observation_kind(self) -> str:
        if self.compares_states:
            return "memory"
        return self.agent_input

    # The candidates.

    @property
    def num_candidates(self) -> int:
        """Number n of candidates, the states for which the agent computes logits."""
        return self.among.count(self.max_skip)

    def candidates(self, step: Int[Array, "*batch"]) -> np.ndarray | Int[Array, "*batch_or_1 n"]:
        slots = self._candidate_slots(step)
        return slots.reshape((1,) * (step.ndim + 1 - slots.ndim) + slots.shape)

    def _candidate_slots(self, step: Int[Array, "*batch"]) -> np.ndarray | Int[Array, "*batch n"]:
        """Return `among.slots`, checked if they are known.

        Others outside 0..K-1 become 0, State(t-1), which counts once: they are no candidates.
        """
        slots = self.among.slots(self.max_skip, step)
        n = self.num_candidates
        # Slots that are the same at all steps are NumPy's, so their values are known.
        if isinstance(slots, np.ndarray):
            inside = {*slots.tolist()} & {*range(self.max_skip)}
            fits = len(slots) == len(inside) == n and slots[0] == 0
        else:
            fits = slots.shape[-1] == n <= self.max_skip
        if not fits:
            wanted = f"{n} different slots in 0..{self.max_skip - 1}, 0 first"
            raise UserError(f"expected {self.among} to have {wanted}, got {slots}")
        if isinstance(slots, np.ndarray):
            return slots
        is_inside = (slots >= 0) & (slots < self.max_skip)
        return jnp.where(is_inside, slots, 0)

    # The agent and its distribution.

    def init(self, key, in_features, hidden, units, init) -> AgentParams:
        first_key, b_key, out_key, b_out_key = jax.random.split(key, 4)
        # Draw one matrix for h ⊕ x: its fan-in, and hence its scale, is that of the concatenation.
        first = init.draw(init.kernel, first_key, (hidden + in_features, units))
        w_x = first[hidden:]
        if init.agent_input is not None:
            w_x = init.draw(
                init.agent_input, jax.random.fold_in(first_key, 1), (in_features, units)
            )
        # The last layer computes a query that is compared with h, or with h ⊕ x, and then logits
        # that depend on k only through s(t). An agent has the first, the second, or both.
        out = 0
        if self.compares_states:
            out += hidden
        if self.observes_inputs:
            out += in_features
        if self.agent in ("mlp", "both"):
            out += self.num_candidates
        w_out = init.draw(init.kernel, out_key, (units, out))
        if self.agent == "both":
            # Random preferences for some distances would hide the states at others at first.
            w_out = w_out.at[:, -self.num_candidates :].set(0)
        return AgentParams(
            first[:hidden],
            w_x,
            init.draw(init.bias, b_key, (units,)),
            w_out,
            init.draw(init.bias, b_out_key, (self.num_candidates,)),
        )

    def project(self, params: AgentParams, x):
        """Return the part of the agent's first layer that depends on the input.

        No gradient flows from an agent that samples (`is_stochastic`) into the input x. Attention
        is an ordinary differentiable part of the network.
        """
        if self.is_stochastic:
            x = jax.lax.stop_gradient(x)
        return project_agent_input(params, x)

    def allowed(self, step, policy_mask):
        """Combine `policy_mask` with the mask of empty slots.

        If both together leave no candidate, State(t-1) may still be chosen.
        """
        slots = self.candidates(step)
        allowed = None
        # Slot 0 holds the initial state before the first step, so there are step + 1 states.
        if self.empty_slots == "masked":
            allowed = slots <= step[..., None]
        if policy_mask is not None:
            lead = (1,) * (slots.ndim - policy_mask.ndim)
            policy_mask = policy_mask.reshape(lead + policy_mask.shape)
            by_policy = jnp.take_along_axis(policy_mask, slots, axis=-1)
            allowed = _both(by_policy, allowed)
            allowed = allowed | ((slots == 0) & ~jnp.any(allowed, axis=-1, keepdims=True))
        # Equal slots are one candidate, the first of them.
        if not isinstance(slots, np.ndarray):
            is_first = ~jnp.tril(slots[..., None] == slots[..., None, :], -1).any(axis=-1)
            allowed = _both(is_first, allowed)
        return allowed

    def logits(
        self, params: AgentParams, inputs: SkipInputs, observation: Any, mode: ActionMode = "sample"
    ) -> Float[Array, "*batch n"]:
        """Return the candidates' logits, unnormalised log π of a policy of this mode."""
        if self.agent == "mlp":
            logits = agent_logits(params, inputs.projected, observation)
        else:
            slots = None
            if self.among != Every():
                slots = self._candidate_slots(inputs.step)
            logits = content_logits(params, inputs.projected, observation, slots, inputs.followed)
        # Masked after the division, so that no temperature lets a masked candidate in.
        logits = logits / policy_temperature(self.mode_of(mode), inputs.temperature)
        return where_allowed(logits, inputs.allowed)

    def log_weights(self, logits: Float[Array, "*batch n"]) -> Float[Array, "*batch n"]:
        """Return the logarithms of the candidates' probabilities (or weights) from their logits."""
        return log_softmax(logits)

    def log_distribution(
        self, params, x, step, observation, policy_mask=None, temperature=1.0, followed=None
    ):
        """Return log π; it is very negative for states that are not candidates."""
        allowed = self.allowed(step, policy_mask)
        inputs = SkipInputs(
            projected=project_agent_input(params, x),
            step=step,
            allowed=allowed,
            temperature=bounded_temperature(temperature, observation.dtype),
            followed=followed,
        )
        log_probs = self.log_weights(self.logits(params, inputs, observation))
        if self.among == Every():
            return log_probs
        # Candidate i is state `slots[i]` of the K. Equal candidates count once, as the largest.
        is_slot = jax.nn.one_hot(self.candidates(step), self.max_skip, dtype=bool)
        lowest = jnp.finfo(log_probs.dtype).min / 8
        return jnp.where(is_slot, log_probs[..., None], lowest).max(axis=-2)

    # Choices, in terms of slots.

    def slots_of(
        self, step: Int[Array, "*batch"], index: Int[Array, "*batch m"]
    ) -> Int[Array, "*batch m"]:
        """Return the slots of the candidates with the indices `index`."""
        if self.among == Every():
            return index
        candidates = jnp.asarray(self.candidates(step))
        if explicit_spec(index) is not None:
            # Candidates that are the same at all steps have no sharding of their own.
            candidates = jnp.broadcast_to(candidates, (*index.shape[:-1], candidates.shape[-1]))
            candidates = match_batch(candidates, index)
        return jnp.take_along_axis(candidates, index, axis=-1).astype(jnp.int32)

    def mean_choice(self, step: Int[Array, "*batch"], weights: Float[Array, "*batch n"]) -> Choice:
        """Return the choice of the candidates' mean under `weights`."""
        if self.among == Every():
            return Choice(weights=weights)
        return Choice(
            jnp.broadcast_to(self.candidates(step), weights.shape).astype(jnp.int32), weights
        )

    def mean_decision(self, choice: Choice, log_probs: Float[Array, "*batch n"]) -> Decision:
        """Return the trace of a choice with weights on several states.

        The action is the k of the largest weight, the log-probability is 0, and the entropy is that
        of `log_probs`.
        """
        heaviest = jnp.argmax(choice.weights, axis=-1).astype(jnp.int32)
        if choice.slot is not None:
            heaviest = jnp.take_along_axis(choice.slot, heaviest[..., None], axis=-1)[..., 0]
        return Decision(
            heaviest + 1, jnp.zeros(heaviest.shape, log_probs.dtype), entropy(log_probs)
        )


def _both(mask: Bool[Array, "..."], other: Bool[Array, "..."] | None) -> Bool[Array, "..."]:
    """Return where both masks are True; None allows all."""
    if other is None:
        return mask
    return mask & other


@dataclasses.dataclass(frozen=True)
class Attention(PolicySkip):
    """Attention: the mean of the last K states, weighted by the agent's distribution, enters.

    It stands for the attention baseline of Gui et al. (2019), who give no formula. With
    `agent="content"` it is dot-product attention of a query, computed from s(t), over the stored h.
    """

    def mode_of(self, mode) -> str:
        return "soft"

    def choose(self, params, inputs, observation, skip_state, mode):
        logits = self.logits(params, inputs, observation)
        return self.mean_choice(inputs.step, jax.nn.softmax(logits)), skip_state

    def trace(self, params, inputs, observation, choice, mode) -> Decision:
        return self.mean_decision(choice, log_softmax(self.logits(params, inputs, observation)))


@dataclasses.dataclass(frozen=True)
class Dynamic(PolicySkip):
    """Dynamic skip: one of the last K states enters, chosen by the agent (Eq. 1).

    The agent is trained by the score function of its choices (`rl.reinforce`). In a relaxed mode it
    is trained by the gradient of the loss through weights on all K states (`relaxation.py`). No
    gradient flows into the agent's inputs. The exception is a relaxed agent that compares states:
    its gradient reaches them, as in attention.
    """

    @property
    def num_choices(self) -> int:
        return self.num_candidates

    def choose(self, params, inputs, observation, skip_state, mode):
        if inputs.action is not None:
            return Choice(slot=self.slot_of(inputs.action)), skip_state
        # Only a relaxed agent that compares states sends a gradient into what it observes.
        if mode not in RELAXATIONS or not self.compares_states:
            observation = jax.lax.stop_gradient(observation)
        logits = self.logits(params, inputs, observation, mode)
        if mode in RELAXATIONS:
            temperature = inputs.temperature
            if mode == "soft":
                temperature = 1.0  # its logits have been divided by τ
            weights = relaxed_weights(log_softmax(logits), inputs.noise, mode, temperature)
            return self.mean_choice(inputs.step, weights.astype(logits.dtype)), skip_state
        # One candidate, sampled or the most probable: greedy policies have no noise.
        index = choose(logits, inputs.noise)
        return Choice(self.slots_of(inputs.step, index[..., None])[..., 0]), skip_state

    def trace(self, params, inputs, observation, choice: Choice, mode) -> Decision:
        log_probs = log_softmax(
            self.logits(params, inputs, jax.lax.stop_gradient(observation), mode)
        )
        if choice.weights is not None:
            return self.mean_decision(choice, log_probs)
        # A replayed action may be no candidate, and of equal slots all but the first are masked.
        is_slot = self.candidates(inputs.step) == choice.slot[..., None]
        log_prob = jnp.where(is_slot, log_probs, masked_logit(log_probs.dtype)).max(axis=-1)
        return Decision(choice.slot + 1, log_prob, entropy(log_probs))
