"""Dense connections (Huang et al. 2017; Ding et al. 2018): a layer receives all lower layers' outputs."""

import dataclasses
from typing import ClassVar

from dynskip_jax.functional.depth_skips.mapped import ToGates


@dataclasses.dataclass(frozen=True)
class DenseToGates(ToGates):
    """Depth skip that adds I^l [h^1; …; h^{l-2}] to the projections of all gates and of the candidate.

    I^l is a learned matrix. Together with the layer's input h^{l-1}, the gates receive the outputs of all
    lower layers, as in DenseNet.
    """

    all_below: ClassVar[bool] = True
    mapping: str = "linear"

    def __post_init__(self) -> None:
        """Check the options."""
        self._check_option("mapping", ("linear",))
