"""Time skips without an agent: State(t-1), State(t-K), the mean of the last K, or a random one."""

import dataclasses
import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.agent import choose
from dynskip_jax.functional.time_skips.base import BufferSkip, Choice, TimeSkip


@dataclasses.dataclass(frozen=True)
class Previous(TimeSkip):
    """No skip over time: State(t-1) enters, as in an ordinary recurrent network."""

    fixed_slot = 0


@dataclasses.dataclass(frozen=True)
class Fixed(BufferSkip):
    """Fixed skip: State(t-K) enters (Zhang et al. 2016). K = 1 is no skip.

    Layers with K = 1, 2, 4, 8, … are a dilated RNN (Chang et al. 2017): `[F.Fixed(2**n) for n in
    range(4)]`.
    """

    @property
    def fixed_slot(self) -> int:
        return self.max_skip - 1


@dataclasses.dataclass(frozen=True)
class Mean(BufferSkip):
    """Uniform average of the last K states: the control for attention. `Decision.action` is K."""

    def choose(self, params, inputs, observation, skip_state, mode):
        shape = (*inputs.step.shape, self.max_skip)
        return Choice(weights=jnp.full(shape, 1 / self.max_skip, observation.dtype)), skip_state

    def differentiable(self, mode, replayed) -> bool:
        return False  # the weights are constants

    def log_distribution(self, params, x, step, observation, policy_mask=None, temperature=1.0):
        return jnp.full((*step.shape, self.max_skip), -math.log(self.max_skip), x.dtype)


@dataclasses.dataclass(frozen=True)
class Random(BufferSkip):
    """Random skip, the control for an agent: one of the last K states, sampled in every mode.

    Attributes:
        rates: Relative frequency of each k; None for equal frequencies. With the frequencies of a
            trained agent, the control skips as often as the agent, but independently of the input.
    """

    rates: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rates is None:
            return
        if len(self.rates) != self.max_skip:
            raise UserError(
                f"random:{self.max_skip} takes {self.max_skip} rates, got {len(self.rates)}"
            )
        if not all(math.isfinite(rate) and rate >= 0 for rate in self.rates) or not any(self.rates):
            raise UserError(
                f"rates are numbers of at least 0, and one is more than that, got {self.rates}"
            )

    @property
    def num_choices(self) -> int:
        return self.max_skip

    def mode_of(self, mode) -> str:
        return "sample"

    def choose(self, params, inputs, observation, skip_state, mode):
        # Gumbel noise on the logarithms of the rates makes the largest a sample.
        if inputs.action is not None:
            return Choice(slot=self.slot_of(inputs.action)), skip_state
        log_rates = jnp.broadcast_to(jnp.log(self._rates()), inputs.noise.shape)
        return Choice(slot=choose(log_rates, inputs.noise)), skip_state

    def log_distribution(self, params, x, step, observation, policy_mask=None, temperature=1.0):
        """Return log π; a rate of 0 gives a finite, very negative number instead of -inf."""
        rates = self._rates()
        log_probs = jnp.log(jnp.maximum(rates / rates.sum(), jnp.finfo(rates.dtype).tiny))
        return jnp.broadcast_to(log_probs, (*step.shape, self.max_skip))

    def _rates(self) -> Float[Array, " K"]:
        if self.rates is None:
            return jnp.ones(self.max_skip)
        return jnp.asarray(self.rates)
