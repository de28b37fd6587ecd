"""Define the candidates of a benchmark: they are prepared, and then run one step at a time."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Ready:
    """A prepared candidate.

    Attributes:
        step: Function that runs one step, waits for the result and returns it. For a layer the result is
            (loss, (gradient of the weights, gradient of the inputs)).
        peak_bytes: Function that returns the memory of one step beyond its arguments, in bytes; None if it
            cannot be measured.
    """

    step: Callable[[], Any]
    peak_bytes: Callable[[], int | None] = lambda: None


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An implementation to measure.

    Attributes:
        name: Name in the tables.
        prepare: Function that does everything before the first step, such as tracing and compiling. Data and
            weights are created before it is called.
    """

    name: str
    prepare: Callable[[], Ready]
