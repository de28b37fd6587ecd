"""What a candidate is: something that is made ready and then computes one loss and gradient at a time."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Ready:
    """A candidate that may start.

    Attributes:
        step: computes once, waits for the result and returns it; of a layer this is
            (loss, (gradient of the weights, gradient of the inputs)).
        peak_bytes: memory that one step needs beyond its arguments, in bytes; None where nobody says.
    """

    step: Callable[[], Any]
    peak_bytes: Callable[[], int | None] = lambda: None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """Something to be timed.

    Attributes:
        name: as in the tables.
        prepare: everything between a user's code and its first step: tracing and compiling, if any. Data
            and weights exist before.
    """

    name: str
    prepare: Callable[[], Ready]
