"""LSTM-Jump (Yu et al. 2017): after some tokens, an agent samples how far to jump ahead."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import log_softmax
from jaxtyping import Array, Float, Int
from typing_extensions import override

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import choice_noise, choose, entropy
from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.time_skips.base import Choice, Decision, ReadingSkip


class JumpParams(NamedTuple):
    """Weights of the softmax over jumps.

    Attributes:
        w: Matrix W, (hidden, max_jump + 1).
        b: Bias b, (max_jump + 1,).
    """

    w: Float[Array, "hidden jumps"]
    b: Float[Array, " jumps"]


class JumpCounts(NamedTuple):
    """State that LSTM-Jump carries from step to step.

    Attributes:
        to_read: Number of tokens to read before the next jump, (*batch,).
        to_skip: Number of tokens still to be skipped, (*batch,).
        jumps: Number of jumps left, (*batch,); -1 once reading has stopped.
    """

    to_read: Int[Array, "*batch"]
    to_skip: Int[Array, "*batch"]
    jumps: Int[Array, "*batch"]


@dataclasses.dataclass(frozen=True)
class LSTMJump(ReadingSkip):
    """LSTM-Jump: after R tokens, sample κ in 0..K from softmax(W h + b), and read the κ-th token ahead next.

    Reading stops at κ = 0, or when R tokens have been read after the last of N jumps. A token that is not
    read changes no state. The softmax is trained by REINFORCE. At a jump, `Decision.log_prob` is the
    log-probability of κ and `Decision.action` is κ + 1. At all other steps both are 0. The score function
    trains only the weights of the softmax, as in the paper: no gradient flows into h.

    Attributes:
        max_jump: K, the largest κ.
        read_steps: R, the number of tokens read between jumps.
        max_jumps: N, the number of jumps in a sequence.
    """

    name: ClassVar[str] = "lstm_jump"
    is_stochastic = True
    max_jump: int = 5
    read_steps: int = 20
    max_jumps: int = 10

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        for name in ("max_jump", "read_steps", "max_jumps"):
            if getattr(self, name) < 1:
                raise UserError(f"LSTM-Jump needs a {name} of at least 1, got {getattr(self, name)}")

    @property
    def action_range(self) -> tuple[int, int]:
        """Smallest action, 0 at a step without a jump, and largest action, K + 1."""
        return 0, self.max_jump + 1

    def init(self, key, in_features, hidden, units, init) -> JumpParams:
        """Draw the weights of the softmax; see `TimeSkip`."""
        w_key, b_key = jax.random.split(key)
        jumps = self.max_jump + 1
        return JumpParams(
            init.draw(init.kernel, w_key, (hidden, jumps)), init.draw(init.bias, b_key, (jumps,))
        )

    def init_skip_state(self, batch, dtype) -> JumpCounts:
        """Return the counts before the first step: R tokens to read, N jumps left."""
        return JumpCounts(
            jnp.full(batch, self.read_steps, jnp.int32),
            jnp.zeros(batch, jnp.int32),
            jnp.full(batch, self.max_jumps, jnp.int32),
        )

    def draws(self, mode, replayed) -> bool:
        """See `TimeSkip`; jumps have no relaxation, so they are greedy in relaxed modes."""
        return mode == "sample" and not replayed

    @override
    def noise(self, keys, step, mode, replayed, dtype):
        return choice_noise(keys, step, self.max_jump + 1, dtype) if self.draws(mode, replayed) else None

    @override
    def choose(self, params: JumpParams, inputs, observation, skip_state: JumpCounts, mode):
        at_jump = (skip_state.to_skip == 0) & (skip_state.to_read == 0) & (skip_state.jumps > 0)
        if inputs.action is None:
            jump = choose(self._logits(params, observation), inputs.noise)
        else:
            jump = jnp.clip(inputs.action.astype(jnp.int32) - 1, 0, self.max_jump)
        ends = (
            (skip_state.to_skip == 0)
            & (skip_state.to_read == 0)
            & ((skip_state.jumps == 0) | (at_jump & (jump == 0)))
        )
        ended = (skip_state.jumps < 0) | ends
        to_skip = jnp.where(at_jump, jnp.maximum(jump - 1, 0), skip_state.to_skip)
        to_read = jnp.where(at_jump, self.read_steps, skip_state.to_read)
        reads = ~ended & (to_skip == 0)
        counts = JumpCounts(
            to_read=to_read - reads.astype(jnp.int32),
            to_skip=jnp.maximum(to_skip - 1, 0),
            jumps=jnp.where(ended, -1, skip_state.jumps - at_jump.astype(jnp.int32)),
        )
        action = jnp.where(at_jump, jump + 1, 0)
        return Choice(update=reads.astype(observation.dtype), action=action), counts

    @override
    def decide(self, params: JumpParams, inputs, observation, skip_state, choice: Choice, mode) -> Decision:
        log_probs = log_softmax(self._logits(params, observation))
        jump = jnp.maximum(choice.action - 1, 0)
        log_prob = jnp.take_along_axis(log_probs, jump[..., None], axis=-1)[..., 0]
        drawn = choice.action > 0
        return Decision(
            choice.action,
            jnp.where(drawn, log_prob, 0),
            jnp.where(drawn, entropy(log_probs), 0),
            choice.update,
        )

    def _logits(self, params: JumpParams, observation: Float[Array, "*batch hidden"]):
        logits = product(jax.lax.stop_gradient(observation), params.w)
        return logits + row(params.b, logits)
