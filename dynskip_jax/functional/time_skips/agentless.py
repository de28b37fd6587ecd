"""Time skips without an agent: the previous state, a fixed one, the mean of the last K, or a random one."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float
from typing_extensions import override

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import choice_noise, choose
from dynskip_jax.functional.time_skips.base import BufferSkip, Choice, Decision, TimeSkip


@dataclasses.dataclass(frozen=True)
class Previous(TimeSkip):
    """No skip over time: State(t-1) enters, as in an ordinary recurrent network."""

    name: ClassVar[str] = "lstm"  # the baseline's name in every table, for any transition
    takes_max_skip: ClassVar[bool] = False

    @property
    def fixed_slot(self) -> int:
        """Slot of the newest state."""
        return 0


@dataclasses.dataclass(frozen=True)
class Fixed(BufferSkip):
    """Fixed skip: State(t-K) enters (Zhang et al. 2016). K = 1 is no skip."""

    name: ClassVar[str] = "fixed"

    @property
    def fixed_slot(self) -> int | None:
        """Slot of the oldest state; None if the first step uses the carried state instead."""
        return None if self.forgets_carried else self.max_skip - 1

    @override
    def choose(self, params, inputs, observation, skip_state, mode):
        if self.fixed_slot is not None:
            return Choice(), skip_state
        oldest = jnp.full_like(inputs.step, self.max_skip - 1, jnp.int32)
        return self.carried_first(inputs, Choice(slot=oldest)), skip_state


@dataclasses.dataclass(frozen=True)
class Mean(BufferSkip):
    """Uniform average of the last K states: the control for attention.

    `Decision.action` is K.
    """

    name: ClassVar[str] = "mean"
    has_distribution: ClassVar[bool] = True

    @override
    def choose(self, params, inputs, observation, skip_state, mode):
        weights = jnp.full_like(inputs.step, 1 / self.max_skip, observation.dtype)
        weights = jnp.repeat(weights[..., None], self.max_skip, axis=-1)
        return self.carried_first(inputs, Choice(weights=weights)), skip_state

    @override
    def log_distribution(self, params, x, step, observation, policy_mask=None):
        return jnp.full((*step.shape, self.max_skip), -math.log(self.max_skip), x.dtype)


@dataclasses.dataclass(frozen=True)
class Random(BufferSkip):
    """Random skip: one of the last K states enters, sampled with fixed rates in every mode.

    It is the control for an agent.

    Attributes:
        rates: Relative frequency of each k; None for equal frequencies. With the frequencies of a trained
            agent, the control skips as often as the agent, but independently of the input.
    """

    name: ClassVar[str] = "random"
    is_stochastic: ClassVar[bool] = True
    has_distribution: ClassVar[bool] = True
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

    @override
    def draws(self, mode, replayed) -> bool:
        return not replayed

    @override
    def noise(self, keys, step, mode, replayed, dtype):
        return None if replayed else choice_noise(keys, step, self.max_skip, dtype)

    @override
    def choose(self, params, inputs, observation, skip_state, mode):
        if inputs.action is not None:
            return self.carried_first(inputs, Choice(slot=self.slot_of(inputs.action))), skip_state
        log_rates = jnp.broadcast_to(self._log_rates(), inputs.noise.shape)
        return self.carried_first(inputs, Choice(slot=choose(log_rates, inputs.noise))), skip_state

    def decide(self, params, inputs, observation, skip_state, choice: Choice, mode) -> Decision:
        """See `TimeSkip`; log-probabilities and entropies are 0, because nothing is learned."""
        zeros = jnp.zeros(choice.slot.shape, observation.dtype)
        return self.without_credit(inputs, Decision(choice.slot + 1, zeros, zeros))

    def log_distribution(self, params, x, step, observation, policy_mask=None):
        """See `TimeSkip`; a rate of 0 gives a finite, very negative number instead of -inf."""
        rates = jnp.exp(self._log_rates())
        tiny = jnp.finfo(rates.dtype).tiny
        log_probs = jnp.log(jnp.maximum(rates / rates.sum(), tiny))
        return jnp.broadcast_to(log_probs, (*step.shape, self.max_skip))

    def _log_rates(self) -> Float[Array, " K"]:
        rates = jnp.ones(self.max_skip) if self.rates is None else jnp.asarray(self.rates)
        return jnp.log(rates)


def dilated(num_layers: int, base: int = 2) -> tuple[Fixed, ...]:
    """Return the time skips of a dilated RNN (Chang et al. 2017), one for each layer.

    Args:
        num_layers: Number of layers.
        base: Growth of the distance with depth: State(t - base^l) enters layer l = 0, 1, …

    Example::

        >>> [skip.max_skip for skip in dilated(4)]
        [1, 2, 4, 8]
    """
    return tuple(Fixed(base**layer) for layer in range(num_layers))
