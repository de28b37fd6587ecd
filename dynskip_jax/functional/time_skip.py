"""Skips over time: which of the last K states enters the LSTM, and the step that `jax.lax.scan` runs.

Gui et al. (2019), Eq. 1 and 2, and the other time skips of their tables: the previous state (plain
LSTM), a fixed distance k (Zhang et al. 2016), and attention over the last K states.
"""

import dataclasses
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import (
    ActionMode,
    AgentParams,
    Decision,
    agent_log_probs,
    choice_noise,
    choose,
    entropy,
    project_agent_input,
)
from dynskip_jax.functional.lstm import LSTMParams, lstm_transition, project_gates
from dynskip_jax.functional.relaxation import RELAXATIONS, draws_noise, relaxed_weights

# What the fields of `TimeSkip` that are words may be.
CHOICES = {
    "kind": ("fixed", "attention", "dynamic"),
    "agent_input": ("previous", "mean"),
    "empty_slots": ("initial", "masked"),
    "first_step": ("agent", "carried"),
}


@dataclasses.dataclass(frozen=True)
class TimeSkip:
    """Which earlier state enters the transition. Hashable, hence a static argument under `jit`.

    Attributes:
        kind: `fixed`: State(t-K), so K = 1 is the plain LSTM; `attention`: the mean of the last K states
            under the agent's distribution, differentiable; `dynamic`: one of the last K, chosen by the
            agent.
        max_skip: K, at least 1.
        mix: λ in [0, 1]: λ State(t-k) + (1 - λ) State(t-1) enters the transition (Eq. 2).
        agent_input: the agent sees x(t) and `previous`: h(t-1), Eq. 1; or `mean`: the mean of the K
            stored h, as in the authors' released code.
        empty_slots: before K steps have passed, the missing states are the `initial` state and may be
            chosen, as in the released code; or they are `masked` out of the policy.
        first_step: at a sequence's first step the `agent` chooses like at every other one; or the
            `carried` state is used whatever the agent says and then forgotten, as in the released code
            (which reinforces that choice all the same; here a choice without effect earns no credit).
    """

    kind: str = "fixed"
    max_skip: int = 1
    mix: float = 1.0
    agent_input: str = "previous"
    empty_slots: str = "initial"
    first_step: str = "agent"

    def __post_init__(self) -> None:
        """Checks the values, with messages for the person who typed them."""
        for field, known in CHOICES.items():
            if getattr(self, field) not in known:
                raise UserError(f"unknown {field} {getattr(self, field)!r}: choose one of {', '.join(known)}")
        if self.max_skip < 1:
            raise UserError(f"a skip needs max_skip (K) of at least 1, got {self.max_skip}")
        if not 0.0 <= self.mix <= 1.0:
            raise UserError(f"mix (λ) lies between 0 and 1, got {self.mix}")

    @classmethod
    def parse(cls, text: str, **options) -> "TimeSkip":
        """Reads `lstm`, `fixed:k`, `attention:k` or `dynamic:k`, the names used on the command line.

        Args:
            text: the name.
            **options: the other fields of the class.

        Raises:
            UserError: the name is not one of these, or k is not a whole number of at least 1.
        """
        kind, colon, number = text.partition(":")
        if text == "lstm":
            return cls(kind="fixed", max_skip=1, **options)
        if kind not in CHOICES["kind"] or not colon:
            raise UserError(f"unknown model {text!r}: choose lstm, fixed:k, attention:k or dynamic:k")
        if not re.fullmatch(r"-?[0-9]{1,9}", number):
            raise UserError(f"model {text!r}: k must be a whole number, as in {kind}:5")
        if int(number) < 1:
            raise UserError(f"model {text!r}: a skip needs K of at least 1, as in {kind}:5")
        return cls(kind=kind, max_skip=int(number), **options)

    @property
    def has_agent(self) -> bool:
        """Whether this skip owns an agent's weights."""
        return self.kind != "fixed"

    @property
    def is_stochastic(self) -> bool:
        """Whether the agent samples, so that it has to be trained by a score-function gradient."""
        return self.kind == "dynamic"


class SkipLSTMParams(NamedTuple):
    """All weights of one layer.

    Attributes:
        lstm: the transition's.
        agent: the agent's (or the attention's), None where the skip has none.
    """

    lstm: LSTMParams
    agent: AgentParams | None = None


class SkipCarry(NamedTuple):
    """What one step hands to the next. Every leaf leads with the batch dimensions.

    Attributes:
        h: the last K hidden states, newest first, (*batch, K, hidden).
        c: the last K cell states, newest first, (*batch, K, hidden).
        step: how many steps were taken since the carry was made, (*batch,).
        key: one PRNG key per example; step t draws with `fold_in(key, t)`, so an example's noise depends
            on its own key and its own step alone, (*batch,).
        recurrent_mask: the factor on the state that enters the gates, the same at all steps (Gal &
            Ghahramani 2016), (*batch, hidden); None without recurrent dropout.
    """

    h: Float[Array, "*batch K hidden"]
    c: Float[Array, "*batch K hidden"]
    step: Int[Array, "*batch"]
    key: Key[Array, "*batch"]
    recurrent_mask: Float[Array, "*batch hidden"] | None = None


class StepInputs(NamedTuple):
    """What a step needs that no state enters into: it can be computed for all steps before the loop.

    Attributes:
        gates: `project_gates` of x(t), (*batch, 4 * hidden).
        agent: `project_agent_input` of x(t), (*batch, units); None without an agent.
        action: k in 1..K to be replayed in place of a choice, (*batch,); None to choose.
        valid: False past the end of a sequence, (*batch,); None where there is no padding.
    """

    gates: Float[Array, "*batch gates"]
    agent: Float[Array, "*batch units"] | None = None
    action: Int[Array, "*batch"] | None = None
    valid: Bool[Array, "*batch"] | None = None


class SkipOutput(NamedTuple):
    """What a step gives to the layer above.

    Attributes:
        h: h(t), (*batch, hidden); zeros past the end of a sequence.
        decision: the trace of the choice.
    """

    h: Float[Array, "*batch hidden"]
    decision: Decision


def initial_carry(
    key: Key[Array, "*batch"],
    max_skip: int,
    h: Float[Array, "*batch hidden"],
    c: Float[Array, "*batch hidden"],
) -> SkipCarry:
    """A carry whose K slots all hold one state: zeros, a learned state, or one carried from elsewhere.

    Args:
        key: one PRNG key per example.
        max_skip: K.
        h: hidden state, (*batch, hidden).
        c: cell state, (*batch, hidden).
    """

    def fill(state: Float[Array, "*batch hidden"]) -> Float[Array, "*batch K hidden"]:
        return jnp.repeat(state[..., None, :], max_skip, axis=-2)

    return SkipCarry(h=fill(h), c=fill(c), step=jnp.zeros(key.shape, jnp.int32), key=key)


def restart_carry(carry: SkipCarry) -> SkipCarry:
    """Keeps the newest state and forgets the other K-1, as the released language model does each segment.

    The key moves on, so that the steps to come do not repeat the noise of those gone by.
    """
    fold_in = jax.random.fold_in
    for _ in carry.key.shape:
        fold_in = jax.vmap(fold_in)
    return carry._replace(
        h=carry.h.at[..., 1:, :].set(0),
        c=carry.c.at[..., 1:, :].set(0),
        step=jnp.zeros_like(carry.step),
        key=fold_in(carry.key, carry.step),
    )


def project_inputs(
    params: SkipLSTMParams,
    x: Float[Array, "*batch in"],
    skip: TimeSkip,
    *,
    action: Int[Array, "*batch"] | None = None,
    valid: Bool[Array, "*batch"] | None = None,
) -> StepInputs:
    """Everything of a step that only the input decides; `*batch` may contain the time axis.

    A sampled agent is trained by its score function alone: no gradient flows from it into the network it
    steers, so its input is stopped. Attention is an ordinary differentiable part of the network.
    """
    agent = None
    if params.agent is not None:
        agent = project_agent_input(params.agent, agent_view(x, skip))
    return StepInputs(gates=project_gates(params.lstm, x), agent=agent, action=action, valid=valid)


def skip_lstm_step(
    params: SkipLSTMParams,
    carry: SkipCarry,
    inputs: StepInputs,
    skip: TimeSkip,
    *,
    mode: ActionMode = "sample",
    temperature: float | Float[Array, ""] = 1.0,
    mix: float | Float[Array, ""] | None = None,
    policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
) -> tuple[SkipCarry, SkipOutput]:
    """One step of Eq. 1 and 2, the function that `jax.lax.scan` runs.

    Args:
        params: the layer's weights.
        carry: the K-slot buffer, counters and keys.
        inputs: `project_inputs(params, x(t), skip)`.
        skip: which state enters.
        mode: whether the agent samples, takes its most probable choice, or weighs all (`RELAXATIONS`).
        temperature: τ of `relaxed_weights`, for attention and where `mode` is a relaxation.
        mix: λ, in place of `skip.mix`; may be traced, to sweep it inside one program.
        policy_mask: False for skips the agent may not choose, (K,) or (*batch, K); masking all but the
            first K' sweeps K inside one program.

    Returns:
        The new carry, and h(t) with the trace of the decision.
    """
    options = dict(mode=mode, temperature=temperature, mix=mix, policy_mask=policy_mask)
    h, c, decision = entering_state(params, carry, inputs, skip, **options)
    if carry.recurrent_mask is not None:
        h = h * carry.recurrent_mask
    h, c = lstm_transition(params.lstm, inputs.gates, h, c)

    first = is_first_step(carry, skip)
    new = carry._replace(h=_push(carry.h, h, first), c=_push(carry.c, c, first), step=carry.step + 1)
    if inputs.valid is None:
        return new, SkipOutput(h, decision)
    new = new._replace(
        h=jnp.where(inputs.valid[..., None, None], new.h, carry.h),
        c=jnp.where(inputs.valid[..., None, None], new.c, carry.c),
        step=jnp.where(inputs.valid, new.step, carry.step),
    )
    h = jnp.where(inputs.valid[..., None], h, 0)
    decision = Decision(*(jnp.where(inputs.valid, leaf, 0) for leaf in decision))
    return new, SkipOutput(h, decision)


def entering_state(
    params: SkipLSTMParams,
    carry: SkipCarry,
    inputs: StepInputs,
    skip: TimeSkip,
    *,
    mode: ActionMode = "sample",
    temperature: float | Float[Array, ""] = 1.0,
    mix: float | Float[Array, ""] | None = None,
    policy_mask: Bool[Array, "*batch_or_none K"] | None = None,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"], Decision]:
    """h̃(t-1) and c̃(t-1) of Eq. 2: λ State(t-k) + (1 - λ) State(t-1), and how k was decided.

    Arguments are those of `skip_lstm_step`; recurrent dropout is not applied yet.
    """
    h_previous, c_previous = carry.h[..., 0, :], carry.c[..., 0, :]
    h, c, decision = _select(params, carry, inputs, skip, mode, temperature, policy_mask)
    mix = skip.mix if mix is None else mix
    h, c = mixed(mix, h, h_previous), mixed(mix, c, c_previous)
    first = is_first_step(carry, skip)
    if first is not None:
        h = jnp.where(first[..., None], h_previous, h)
        c = jnp.where(first[..., None], c_previous, c)
        decision = without_choice(decision, first)
    return h, c, decision


def mixed(
    mix: float | Float[Array, ""],
    selected: Float[Array, "*batch hidden"],
    previous: Float[Array, "*batch hidden"],
) -> Float[Array, "*batch hidden"]:
    """λ selected + (1 - λ) previous, without the arithmetic where λ is known to be 1."""
    if isinstance(mix, int | float) and mix == 1:
        return selected
    return mix * selected + (1 - mix) * previous


def is_first_step(carry: SkipCarry, skip: TimeSkip) -> Bool[Array, "*batch"] | None:
    """Which sequences take a first step that is not the agent's; None where the agent has them all."""
    return carry.step == 0 if skip.first_step == "carried" else None


def without_choice(decision: Decision, where: Bool[Array, "*batch"]) -> Decision:
    """The trace of steps at which State(t-1) entered whatever the agent said."""
    return Decision(
        action=jnp.where(where, 1, decision.action),
        log_prob=jnp.where(where, 0, decision.log_prob),
        entropy=jnp.where(where, 0, decision.entropy),
    )


def agent_view(value: Array, skip: TimeSkip) -> Array:
    """What the agent sees of the network: without a way back for the gradient if it is sampled."""
    return jax.lax.stop_gradient(value) if skip.is_stochastic else value


def relaxation_of(skip: TimeSkip, mode: ActionMode, replayed: bool) -> str | None:
    """How the states are weighed if none of them is chosen; None where one is."""
    if skip.kind == "attention":
        return "soft"
    if skip.kind == "dynamic" and mode in RELAXATIONS and not replayed:
        return mode
    return None


def allowed_skips(
    step: Int[Array, "*batch"], skip: TimeSkip, policy_mask: Bool[Array, "*batch_or_none K"] | None
) -> Bool[Array, "*batch_or_1 K"] | None:
    """Joins the caller's mask over K with the one that hides slots no step has filled yet.

    Args:
        step: steps taken before this one; `*batch` may contain the time axis.
        skip: which state enters.
        policy_mask: (K,), or with the axes of `step` before K (ones broadcast).
    """
    allowed = None
    if policy_mask is not None:
        allowed = policy_mask
        if allowed.ndim == 1:
            allowed = allowed.reshape((1,) * step.ndim + (-1,))
    if skip.empty_slots == "masked":
        # Slot 0 holds the initial state before the first step, so step + 1 states exist at step `step`.
        slots = jnp.arange(skip.max_skip).reshape((1,) * step.ndim + (-1,))
        filled = slots <= step[..., None]
        allowed = filled if allowed is None else allowed & filled
    return allowed


def trace(log_probs: Float[Array, "*batch K"], slot: Int[Array, "*batch"]) -> Decision:
    """The trace of having chosen a slot in 0..K-1."""
    log_prob = jnp.take_along_axis(log_probs, slot[..., None], axis=-1)[..., 0]
    return Decision(slot + 1, log_prob, entropy(log_probs))


def weighted_trace(weights: Float[Array, "*batch K"], log_probs: Float[Array, "*batch K"]) -> Decision:
    """The trace of weights on all states: the heaviest, and no score; the loss reaches the agent itself."""
    heaviest = jnp.argmax(weights, axis=-1).astype(jnp.int32) + 1
    return Decision(heaviest, jnp.zeros(heaviest.shape, log_probs.dtype), entropy(log_probs))


def certain_trace(batch: tuple[int, ...], max_skip: int, dtype) -> Decision:
    """The trace of a fixed skip."""
    certain = jnp.zeros(batch, dtype)
    return Decision(jnp.full(batch, max_skip, jnp.int32), certain, certain)


def slot_of(action: Int[Array, "*batch"], max_skip: int) -> Int[Array, "*batch"]:
    """The slot in 0..K-1 of a skip k in 1..K; 0 for the 0 that stands at padding."""
    return jnp.clip(action.astype(jnp.int32) - 1, 0, max_skip - 1)


def _select(
    params: SkipLSTMParams,
    carry: SkipCarry,
    inputs: StepInputs,
    skip: TimeSkip,
    mode: ActionMode,
    temperature: float | Float[Array, ""],
    policy_mask: Bool[Array, "*batch_or_none K"] | None,
) -> tuple[Float[Array, "*batch hidden"], Float[Array, "*batch hidden"], Decision]:
    """Returns State(t-k), or a mean over k, of h and c, and how it was decided."""
    if params.agent is None:
        return (
            carry.h[..., -1, :],
            carry.c[..., -1, :],
            certain_trace(carry.step.shape, skip.max_skip, carry.h.dtype),
        )

    seen = carry.h.mean(axis=-2) if skip.agent_input == "mean" else carry.h[..., 0, :]
    log_probs = agent_log_probs(
        params.agent, inputs.agent, agent_view(seen, skip), allowed_skips(carry.step, skip, policy_mask)
    )
    relaxation = relaxation_of(skip, mode, inputs.action is not None)
    noise = None
    if mode == "sample" or (relaxation and draws_noise(relaxation)):
        noise = choice_noise(carry.key, carry.step, skip.max_skip, log_probs.dtype)
    if relaxation is not None:
        weights = relaxed_weights(log_probs, noise, relaxation, temperature)
        h = jnp.einsum("...k,...kh->...h", weights, carry.h)
        c = jnp.einsum("...k,...kh->...h", weights, carry.c)
        return h, c, weighted_trace(weights, log_probs)
    slot = choose(log_probs, noise) if inputs.action is None else slot_of(inputs.action, skip.max_skip)
    where = slot[..., None, None]
    h = jnp.take_along_axis(carry.h, where, axis=-2)[..., 0, :]
    c = jnp.take_along_axis(carry.c, where, axis=-2)[..., 0, :]
    return h, c, trace(log_probs, slot)


def _push(
    slots: Float[Array, "*batch K hidden"],
    new: Float[Array, "*batch hidden"],
    forget_newest: Bool[Array, "*batch"] | None,
) -> Float[Array, "*batch K hidden"]:
    """Puts the new state in slot 0 and moves the others one slot on."""
    older = slots[..., :-1, :]
    if forget_newest is not None and slots.shape[-2] > 1:
        older = older.at[..., 0, :].set(jnp.where(forget_newest[..., None], 0, older[..., 0, :]))
    return jnp.concatenate([new[..., None, :], older], axis=-2)
