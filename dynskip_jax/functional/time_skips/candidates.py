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
    """A skip whose candidates are State(t-1), State(t-2), State(t-4), State(t-8), … within the last K.

    These are the scales of log-linear attention (Guo et al. 2025). With K = 512 there are ten candidates.
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
    """Attention over the states at distances 1, 2, 4, … up to K: their weighted mean enters."""

    name: ClassVar[str] = "log_attention"


@dataclasses.dataclass(frozen=True)
class LogDynamic(LogSpaced, Dynamic):
    """Dynamic skip: the agent chooses one of the states at distances 1, 2, 4, … up to K."""

    name: ClassVar[str] = "log_dynamic"


@dataclasses.dataclass(frozen=True)
class Segmented(PolicySkip):
    """A skip whose candidates are State(t-1) and the states at the ends of segments, within the last K.

    A sequence is divided into segments of `stride` steps. The initial state stands for the ends of all
    segments before the sequence. Memory Caching (2026) stores such states.
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
    """Attention over State(t-1) and the states at the ends of segments: their weighted mean enters."""

    name: ClassVar[str] = "segment_attention"
    agent: str = dataclasses.field(default="content", metadata={"choices": ("content", "mlp")})


@dataclasses.dataclass(frozen=True)
class SegmentDynamic(Segmented, Dynamic):
    """Dynamic skip: the agent chooses State(t-1) or a state at the end of a segment."""

    name: ClassVar[str] = "segment_dynamic"


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
