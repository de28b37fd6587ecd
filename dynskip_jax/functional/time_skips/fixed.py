"""A skip of a fixed distance (Zhang et al. 2016)."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp

from dynskip_jax.functional.time_skips.base import Choice
from dynskip_jax.functional.time_skips.buffer_skip import BufferSkip


@dataclasses.dataclass(frozen=True)
class Fixed(BufferSkip):
    """State(t-K) enters, so that K = 1 is no skip at all."""

    name: ClassVar[str] = "fixed"

    @property
    def fixed_slot(self) -> int | None:
        """The oldest, but for a first step of its own."""
        return None if self.forgets_carried else self.max_skip - 1

    def choose(self, params, inputs, observation, skip_state, mode):
        """See `TimeSkip`."""
        if self.fixed_slot is not None:
            return Choice(), skip_state
        oldest = jnp.full(inputs.step.shape, self.max_skip - 1, jnp.int32)
        return self.carried_first(inputs, Choice(slot=oldest)), skip_state
