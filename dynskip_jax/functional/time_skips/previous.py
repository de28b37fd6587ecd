"""No skip over time: the previous state enters, as in any recurrent network."""

import dataclasses
from typing import ClassVar

from dynskip_jax.functional.time_skips.base import TimeSkip


@dataclasses.dataclass(frozen=True)
class Previous(TimeSkip):
    """State(t-1) enters."""

    name: ClassVar[str] = "lstm"  # the baseline's name in every table, whatever the transition
    takes_max_skip: ClassVar[bool] = False

    @property
    def fixed_slot(self) -> int:
        """The newest."""
        return 0
