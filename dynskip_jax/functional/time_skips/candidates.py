"""Some of the last K states, among which an agent chooses or attention weighs: `among=`."""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dynskip_jax.functional.checks import check_fields, check_whole


@dataclasses.dataclass(frozen=True)
class Candidates:
    """Interface: which of the last K states may enter.

    It is hashable, because it is a field of a time skip.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    def count(self, max_skip: int) -> int:
        """Return the number n of candidates among K = `max_skip` states."""
        raise NotImplementedError

    def slots(
        self, max_skip: int, step: Int[Array, "*batch"]
    ) -> np.ndarray | Int[Array, "*batch n"]:
        """Return the slots of the candidates in 0..K-1; the first one is slot 0, State(t-1).

        The result is a NumPy array (n,) of different slots if they are the same at all steps, and
        otherwise (*batch, n), of which equal slots count once and others than these K not at all.
        `step` is the number of steps before this one.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class LogSpaced(Candidates):
    """State(t-1), State(t-2), State(t-4), State(t-8), …: ten candidates for K = 512.

    These are the scales of log-linear attention (Guo et al. 2025).
    """

    def count(self, max_skip):
        return max_skip.bit_length()

    def slots(self, max_skip, step):
        return 2 ** np.arange(self.count(max_skip), dtype=np.int32) - 1


@dataclasses.dataclass(frozen=True)
class Every(Candidates):
    """State(t-1), State(t-1-size), State(t-1-2 size), …; by default all K states."""

    size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(f"{type(self).__name__}.size", self.size)

    def count(self, max_skip):
        return -(-max_skip // self.size)

    def slots(self, max_skip, step):
        return np.arange(0, max_skip, self.size, dtype=np.int32)


@dataclasses.dataclass(frozen=True)
class Segments(Every):
    """State(t-1) and the states at the ends of segments of `size` steps.

    Memory Caching (2026) stores these. The initial state stands for the ends of all segments before
    the sequence.
    """

    def count(self, max_skip):
        return 1 + (max_skip - 1) // self.size

    def slots(self, max_skip, step):
        # The slot of the end of the last segment before State(t-1): 1..size.
        last_end = (step[..., None] - 1) % self.size + 1
        segments = jnp.arange(self.count(max_skip) - 1, dtype=last_end.dtype)
        older = last_end + self.size * segments.reshape((1,) * step.ndim + (-1,))
        return jnp.concatenate([jnp.zeros_like(last_end), older], axis=-1)
