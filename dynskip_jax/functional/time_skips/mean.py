"""The mean of the last K states: what a choice among them has to beat, without any."""

import dataclasses
import math
from typing import ClassVar

import jax.numpy as jnp

from dynskip_jax.functional.time_skips.base import Choice
from dynskip_jax.functional.time_skips.buffer_skip import BufferSkip


@dataclasses.dataclass(frozen=True)
class Mean(BufferSkip):
    """The mean of the last K states enters. `Decision.action` is K."""

    name: ClassVar[str] = "mean"

    def choose(self, params, inputs, observation, skip_state, mode):
        """See `TimeSkip`."""
        weights = jnp.full((*inputs.step.shape, self.max_skip), 1 / self.max_skip, observation.dtype)
        return self.carried_first(inputs, Choice(weights=weights)), skip_state

    def log_distribution(self, params, x, step, observation, policy_mask=None):
        """See `TimeSkip`."""
        return jnp.full((*step.shape, self.max_skip), -math.log(self.max_skip), x.dtype)
