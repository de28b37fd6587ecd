"""The sizes at which everything is timed."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Shape:
    """One problem.

    Attributes:
        time: T, steps of each sequence.
        batch: B, sequences side by side.
        features: size of an input x(t).
        hidden: H, size of h and c.
        max_skip: K of every skip.
        mix: λ of every skip.
    """

    time: int
    batch: int
    features: int
    hidden: int
    max_skip: int
    mix: float

    def __str__(self) -> str:
        return (
            f"T={self.time:,} B={self.batch} in={self.features} H={self.hidden} "
            f"K={self.max_skip} λ={self.mix:g}"
        )

    @property
    def work(self) -> float:
        """About how many milliseconds a gradient takes on two cores, for the progress bar's estimate."""
        # Forward and backward are three products of B x (in + H) with (in + H) x 4H; a step of a loop has a
        # cost of its own as well.
        operations = 3 * 2 * self.batch * (self.features + self.hidden) * 4 * self.hidden
        return self.time * (operations / 1e8 + 0.1)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Everything that one run of the benchmark goes through.

    Attributes:
        shapes: by name, for the parts `shapes`, `compile` and `memory`.
        growth: for each axis (a field of `Shape`) the shapes along which it alone grows.
        skips: the shape of the part `skips`.
        seeds: the shape of the part `seeds`.
        num_seeds: how many seeds are trained together.
        presets: presets of `experiments.ptb` for the part `training`, with flags given beside them.
        vocabulary: number of words of the synthetic corpus.
    """

    shapes: Mapping[str, Shape]
    growth: Mapping[str, tuple[Shape, ...]]
    skips: Shape
    seeds: Shape
    num_seeds: tuple[int, ...]
    presets: Mapping[str, Mapping[str, int]]
    vocabulary: int


def grow(base: Shape, axis: str, values: tuple[int, ...]) -> tuple[Shape, ...]:
    """Returns `base` with one field at each of the values; the input is as large as the state."""
    shapes = (dataclasses.replace(base, **{axis: value}) for value in values)
    return tuple(dataclasses.replace(shape, features=shape.hidden) for shape in shapes)


NUMBER_PREDICTION = Shape(11, 128, 10, 200, 10, 0.5)
_GROWTH_BASE = Shape(100, 16, 128, 128, 5, 0.5)
_TINY = Shape(3, 2, 4, 5, 2, 0.5)

FULL = Sizes(
    shapes={
        "PTB": Shape(35, 20, 650, 650, 5, 1.0),  # the paper's size
        "number prediction": NUMBER_PREDICTION,
        "IMDB": Shape(400, 50, 300, 128, 3, 0.5),
        "NER": Shape(40, 10, 400, 200, 5, 1.0),
    },
    growth={
        "time": grow(_GROWTH_BASE, "time", (25, 100, 400, 1000, 4000)),
        "max_skip": grow(_GROWTH_BASE, "max_skip", (2, 3, 5, 7, 10)),
        "hidden": grow(_GROWTH_BASE, "hidden", (64, 128, 256, 512, 1024)),
        "batch": grow(_GROWTH_BASE, "batch", (1, 4, 16, 64, 256)),
    },
    skips=Shape(201, 32, 10, 200, 200, 0.5),  # number prediction at 201
    seeds=NUMBER_PREDICTION,
    num_seeds=(1, 2, 4, 8),
    presets={"small": {}, "paper": {}},
    vocabulary=10_000,
)

TINY = Sizes(
    shapes={"tiny": _TINY},
    growth={
        axis: grow(_TINY, axis, values)
        for axis, values in dict(time=(2, 3), max_skip=(2,), hidden=(5,), batch=(1,)).items()
    },
    skips=_TINY,
    seeds=_TINY,
    num_seeds=(1, 2),
    presets={"small": dict(features=5, num_layers=1, num_steps=3, batch_size=2)},
    vocabulary=10,
)
