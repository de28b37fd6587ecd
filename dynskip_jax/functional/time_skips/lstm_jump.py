"""LSTM-Jump (Yu et al. 2017): after some tokens, an agent samples how far to jump ahead."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import log_softmax
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.agent import choose, entropy
from dynskip_jax.functional.checks import check_whole
from dynskip_jax.functional.product import affine
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.time_skips.base import Choice, Decision, ReadingSkip


@register_for_export
class JumpParams(NamedTuple):
    """Weights W and b of the softmax over jumps."""

    w: Float[Array, "hidden jumps"]
    b: Float[Array, " jumps"]


@register_for_export
class JumpCounts(NamedTuple):
    """State that LSTM-Jump carries from step to step."""

    to_read: Int[Array, "*batch"]  # tokens to read before the next jump
    to_skip: Int[Array, "*batch"]  # tokens still to be skipped
    jumps: Int[Array, "*batch"]  # jumps left; -1 once reading has stopped


@dataclasses.dataclass(frozen=True)
class LSTMJump(ReadingSkip):
    """LSTM-Jump: after R tokens, sample κ in 0..K, and read the κ-th token ahead next.

    κ is drawn from softmax(W h + b). Reading stops at κ = 0, or when R tokens have been read after
    the last of N jumps. A token that is not read changes no state. The softmax is trained by
    REINFORCE. At a jump, `Decision.log_prob` is the log-probability of κ and `Decision.action` is κ
    + 1. At all other steps both are 0. The score function trains only the weights of the softmax,
    as in the paper: no gradient flows into h. Jumps have no relaxation, so they are greedy in
    relaxed modes.

    Attributes:
        max_jump: K, the largest κ.
        read_steps: R, the number of tokens read between jumps.
        max_jumps: N, the number of jumps in a sequence.
    """

    max_jump: int = 5
    read_steps: int = 20
    max_jumps: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("max_jump", "read_steps", "max_jumps"):
            check_whole(f"LSTMJump.{name}", getattr(self, name))

    @property
    def num_choices(self) -> int:
        return self.max_jump + 1

    @property
    def action_range(self) -> tuple[int, int]:
        return 0, self.max_jump + 1

    def mode_of(self, mode) -> str:
        if mode == "sample":
            return "sample"
        return "greedy"

    def init(self, key, in_features, hidden, units, init) -> JumpParams:
        w_key, b_key = jax.random.split(key)
        w = init.draw(init.kernel, w_key, (hidden, self.num_choices))
        return JumpParams(w, init.draw(init.bias, b_key, (self.num_choices,)))

    def init_skip_state(self, batch, dtype) -> JumpCounts:
        counts = (self.read_steps, 0, self.max_jumps)
        return JumpCounts(*(jnp.full(batch, count, jnp.int32) for count in counts))

    def choose(self, params: JumpParams, inputs, observation, skip_state: JumpCounts, mode):
        # κ, the jump that would be made at this step.
        to_read, to_skip, jumps = skip_state
        if inputs.action is None:
            jump = choose(self._logits(params, inputs, observation), inputs.noise)
        else:
            jump = jnp.clip(inputs.action.astype(jnp.int32) - 1, 0, self.max_jump)
        # A jump is made where nothing is left to skip and to read. Reading ends at κ = 0, and where
        # a jump is due and none is left.
        is_due = (to_skip == 0) & (to_read == 0)
        at_jump = is_due & (jumps > 0)
        ended = (jumps < 0) | (is_due & (jumps == 0)) | (at_jump & (jump == 0))
        # The κ-th token ahead is read next: κ - 1 tokens are skipped, this one first.
        to_skip = jnp.where(at_jump, jnp.maximum(jump - 1, 0), to_skip)
        to_read = jnp.where(at_jump, self.read_steps, to_read)
        reads = ~ended & (to_skip == 0)
        counts = JumpCounts(
            to_read=to_read - reads.astype(jnp.int32),
            to_skip=jnp.maximum(to_skip - 1, 0),
            jumps=jnp.where(ended, -1, jumps - at_jump.astype(jnp.int32)),
        )
        action = jnp.where(at_jump, jump + 1, 0)
        return Choice(update=reads.astype(observation.dtype), action=action), counts

    def trace(self, params: JumpParams, inputs, observation, choice: Choice, mode) -> Decision:
        log_probs = log_softmax(self._logits(params, inputs, observation))
        jump = jnp.maximum(choice.action - 1, 0)
        log_prob = jnp.take_along_axis(log_probs, jump[..., None], axis=-1)[..., 0]
        # Only steps with a jump have a distribution.
        drawn = choice.action > 0
        log_prob = jnp.where(drawn, log_prob, 0)
        jump_entropy = jnp.where(drawn, entropy(log_probs), 0)
        return Decision(choice.action, log_prob, jump_entropy, choice.update)

    def _logits(self, params: JumpParams, inputs, observation: Float[Array, "*batch hidden"]):
        logits = affine(jax.lax.stop_gradient(observation), params.w, params.b)
        return logits / inputs.temperature
