"""Skips over depth to the internal state, Wu et al. (2016), Eq. 33 and 34, plain or gated."""

import dataclasses
from typing import ClassVar

from dynskip_jax.functional.depth_skips.base import Mapped


@dataclasses.dataclass(frozen=True)
class ToInternal(Mapped):
    """c = f ⊙ c(t-1) + i ⊙ s + h^{l-2}, of which h is made; h itself, where it is the memory."""

    name: ClassVar[str] = "internal"

    def into_cell_state(self, params, inputs, h, before, cell_state, dense):
        """See `DepthSkip`."""
        return cell_state + self.entering(params, inputs, h, dense)


@dataclasses.dataclass(frozen=True)
class GatedToInternal(ToInternal):
    """The same with a gate."""

    name: ClassVar[str] = "gated_internal"
    gated: bool = True
