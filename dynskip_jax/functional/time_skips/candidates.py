"""Skips that choose among some of the last K states: at distances 1, 2, 4, …, or at the ends of segments."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from dynskip_jax.errors import UserError
from dynskip_jax.functional.time_skips.agentless import Fixed
from dynskip_jax.functional.time_skips.dynamic import Attention, Dynamic, PolicySkip


@dataclasses.dataclass(frozen=True)
class LogSpaced(PolicySkip):
    """A skip whose candidates are State(t-1), State(t-2), State(t-4), State(t-8), … up to K.

    These are the scales of log-linear attention (Guo et al. 2025). With K = 512 there are ten.
    """

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.stride != 1:
            raise UserError("log-spaced skips have distances 1, 2, 4, …: leave out stride")

    @property
    def num_candidates(self) -> int:
        """See `PolicySkip`."""
        return self.max_skip.bit_length()

    def candidates(self, step):
        """See `PolicySkip`."""
        return 2 ** np.arange(self.num_candidates, dtype=np.int32) - 1


@dataclasses.dataclass(frozen=True)
class LogAttention(LogSpaced, Attention):
    """The mean of the states at distances 1, 2, 4, … up to K enters, weighed by attention."""

    name: ClassVar[str] = "log_attention"


@dataclasses.dataclass(frozen=True)
class LogDynamic(LogSpaced, Dynamic):
    """One of the states at distances 1, 2, 4, … up to K enters, chosen by the agent."""

    name: ClassVar[str] = "log_dynamic"


@dataclasses.dataclass(frozen=True)
class Segmented(PolicySkip):
    """A skip whose candidates are State(t-1) and the states at the ends of segments, within the last K.

    A sequence is cut into segments of `stride` steps. The initial state is the end of those before it.
    Memory Caching (2026) keeps such states.
    """

    @property
    def num_candidates(self) -> int:
        """See `PolicySkip`."""
        return 1 + (self.max_skip - 1) // self.stride

    def candidates(self, step):
        """See `PolicySkip`."""
        if self.stride == 1:
            return None
        last_end = (step[..., None] - 1) % self.stride + 1
        segments = jnp.arange(self.num_candidates - 1, dtype=last_end.dtype)
        older = last_end + self.stride * segments.reshape((1,) * step.ndim + (-1,))
        return jnp.concatenate([jnp.zeros_like(last_end), older], axis=-1)


@dataclasses.dataclass(frozen=True)
class SegmentAttention(Segmented, Attention):
    """The mean of State(t-1) and the states at the ends of segments enters, weighed by attention."""

    name: ClassVar[str] = "segment_attention"
    agent: str = dataclasses.field(default="content", metadata={"choices": ("content", "mlp")})


@dataclasses.dataclass(frozen=True)
class SegmentDynamic(Segmented, Dynamic):
    """State(t-1) or a state at the end of a segment enters, chosen by the agent."""

    name: ClassVar[str] = "segment_dynamic"


def dilated(num_layers: int, base: int = 2) -> tuple[Fixed, ...]:
    """Return the time skips of a dilated RNN (Chang et al. 2017): State(t - base^l) enters layer l = 0, 1, …

    Example::

        >>> [skip.max_skip for skip in dilated(4)]
        [1, 2, 4, 8]
    """
    return tuple(Fixed(base**layer) for layer in range(num_layers))
