"""Define the sizes at which everything is measured."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of one problem.

    Attributes:
        time: T, the number of steps of each sequence.
        batch: B, the number of sequences.
        features: Size of an input x(t).
        hidden: H, the size of h and c.
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
        """Estimated milliseconds of a gradient on two cores, for the progress bar."""
        # Forward and backward pass are three products of B x (in + H) with (in + H) x 4H. Each step of the
        # loop adds a constant.
        operations = 3 * 2 * self.batch * (self.features + self.hidden) * 4 * self.hidden
        return self.time * (operations / 1e8 + 0.1)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of all parts of the benchmark.

    Attributes:
        shapes: Shapes by name, for the parts `shapes`, `transitions`, `compile` and `memory`.
        growth: For each axis (a field of `Shape`), shapes in which only that axis grows.
        skips: Shape of the part `skips`.
        seeds: Shape of the part `seeds`.
        num_seeds: Numbers of seeds in the part `seeds`.
        presets: Presets of `experiments.ptb` for the part `training`, each with additional flags.
        vocabulary: Number of words of the synthetic corpus.
    """

    shapes: Mapping[str, Shape]
    growth: Mapping[str, tuple[Shape, ...]]
    skips: Shape
    seeds: Shape
    num_seeds: tuple[int, ...]
    presets: Mapping[str, Mapping[str, int]]
    vocabulary: int


def grow(base: Shape, axis: str, values: tuple[int, ...]) -> tuple[Shape, ...]:
    """Return `base` with one field set to each of the values; the input is as large as the state.

    Args:
        base: Shape of the other fields.
        axis: Name of the field.
        values: Values of the field.
    """
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
