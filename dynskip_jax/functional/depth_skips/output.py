"""Skips over depth to the cell's output, Wu et al. (2016), Eq. 35 and 36, or with a gate, Eq. 49."""

import dataclasses
from typing import ClassVar

from dynskip_jax.functional.depth_skips.base import Mapped


@dataclasses.dataclass(frozen=True)
class ToOutput(Mapped):
    """h = o ⊙ tanh(c) + h^{l-2}."""

    name: ClassVar[str] = "output"

    def into_output(self, params, inputs, h, output, dense):
        """See `DepthSkip`."""
        return output + self.entering(params, inputs, h, dense)


@dataclasses.dataclass(frozen=True)
class GatedToOutput(ToOutput):
    """h = o ⊙ tanh(c) + g ⊙ h^{l-2}: the paper's best."""

    name: ClassVar[str] = "gated_output"
    gated: bool = True
