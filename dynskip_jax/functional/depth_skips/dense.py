"""Dense connections (Huang et al. 2017; Ding et al. 2018): a layer reads all layers below it."""

import dataclasses
from typing import ClassVar

from dynskip_jax.functional.depth_skips.mapped import ToGates


@dataclasses.dataclass(frozen=True)
class DenseToGates(ToGates):
    """I^l [h^1; …; h^{l-2}] enters the projections of all gates and of the candidate, with a learned I^l.

    Together with the layer's input h^{l-1} that is the concatenation of all outputs below, as in DenseNet.
    """

    name: ClassVar[str] = "dense"
    all_below: ClassVar[bool] = True
    mapping: str = "linear"

    def __post_init__(self) -> None:
        """Check the options."""
        self._check_option("mapping", ("linear",))
