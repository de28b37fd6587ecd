"""Time skips without an agent: the previous state, a fixed one, the mean of the last K, or a random one."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import choice_noise, choose
from dynskip_jax.functional.time_skips.base import BufferSkip, Choice, Decision, TimeSkip


@dataclasses.dataclass(frozen=True)
class Previous(TimeSkip):
    """State(t-1) enters, as in any recurrent network: no skip over time."""

    name: ClassVar[str] = "lstm"  # the baseline's name in every table, for any transition
    takes_max_skip: ClassVar[bool] = False

    @property
    def fixed_slot(self) -> int:
        """The newest."""
        return 0


@dataclasses.dataclass(frozen=True)
class Fixed(BufferSkip):
    """State(t-K) enters (Zhang et al. 2016). K = 1 is no skip."""

    name: ClassVar[str] = "fixed"

    @property
    def fixed_slot(self) -> int | None:
        """The oldest, unless the first step uses the carried state."""
        return None if self.forgets_carried else self.max_skip - 1

    def choose(self, params, inputs, observation, skip_state, mode):
        """See `TimeSkip`."""
        if self.fixed_slot is not None:
            return Choice(), skip_state
        oldest = jnp.full_like(inputs.step, self.max_skip - 1, jnp.int32)
        return self.carried_first(inputs, Choice(slot=oldest)), skip_state


@dataclasses.dataclass(frozen=True)
class Mean(BufferSkip):
    """The mean of the last K states enters: the control of attention. `Decision.action` is K."""

    name: ClassVar[str] = "mean"

    def choose(self, params, inputs, observation, skip_state, mode):
        """See `TimeSkip`."""
        weights = jnp.full_like(inputs.step, 1 / self.max_skip, observation.dtype)
        weights = jnp.repeat(weights[..., None], self.max_skip, axis=-1)
        return self.carried_first(inputs, Choice(weights=weights)), skip_state

    def log_distribution(self, params, x, step, observation, policy_mask=None):
        """See `TimeSkip`."""
        return jnp.full((*step.shape, self.max_skip), -math.log(self.max_skip), x.dtype)


@dataclasses.dataclass(frozen=True)
class Random(BufferSkip):
    """One of the last K states enters, sampled with fixed rates in every mode: the control of an agent.

    Attributes:
        rates: relative frequency of each k; None for equal ones. With those of a trained agent, the control
            has the agent's frequencies but not its reasons.
    """

    name: ClassVar[str] = "random"
    is_stochastic = True
    rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        """Check the rates."""
        super().__post_init__()
        if self.rates is None:
            return
        if len(self.rates) != self.max_skip:
            raise UserError(f"random:{self.max_skip} takes {self.max_skip} rates, got {len(self.rates)}")
        if not all(math.isfinite(rate) and rate >= 0 for rate in self.rates) or not any(self.rates):
            raise UserError(f"rates are numbers of at least 0, and one is more than that, got {self.rates}")

    def draws(self, mode, replayed) -> bool:
        """See `TimeSkip`."""
        return not replayed

    def noise(self, keys, step, mode, replayed, dtype):
        """See `TimeSkip`."""
        return None if replayed else choice_noise(keys, step, self.max_skip, dtype)

    def choose(self, params, inputs, observation, skip_state, mode):
        """See `TimeSkip`."""
        if inputs.action is not None:
            return self.carried_first(inputs, Choice(slot=self.slot_of(inputs.action))), skip_state
        log_rates = jnp.broadcast_to(self._log_rates(), inputs.noise.shape)
        return self.carried_first(inputs, Choice(slot=choose(log_rates, inputs.noise))), skip_state

    def decide(self, params, inputs, observation, skip_state, choice: Choice, mode) -> Decision:
        """See `TimeSkip`; the log-probabilities are 0, because nothing is learned."""
        zeros = jnp.zeros(choice.slot.shape, observation.dtype)
        return self.without_credit(inputs, Decision(choice.slot + 1, zeros, zeros))

    def log_distribution(self, params, x, step, observation, policy_mask=None):
        """See `TimeSkip`; where a rate is 0, return the smallest finite logarithm instead of -inf."""
        rates = jnp.exp(self._log_rates())
        tiny = jnp.finfo(rates.dtype).tiny
        log_probs = jnp.log(jnp.maximum(rates / rates.sum(), tiny))
        return jnp.broadcast_to(log_probs, (*step.shape, self.max_skip))

    def _log_rates(self) -> Float[Array, " K"]:
        rates = jnp.ones(self.max_skip) if self.rates is None else jnp.asarray(self.rates)
        return jnp.log(rates)
