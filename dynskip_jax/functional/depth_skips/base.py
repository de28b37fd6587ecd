"""Interface of skips over depth: connections to a layer from layers further below in the stack.

A depth skip is part of the recurrence: it changes the state that a step passes to the next one.
"""

import dataclasses
from typing import Any, ClassVar, Literal

from jaxtyping import Array, Float, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.checks import check_fields
from dynskip_jax.functional.transitions.base import Dense, Initializers, Transition


@dataclasses.dataclass(frozen=True)
class DepthSkip:
    """Interface of a skip over depth: which lower layers are its sources, and where they enter.

    Depth skips are hashable, so they can be static arguments under `jit`. A skip declares, by class
    attributes:

    * `enters`: `gates` (the skip has `into_gates`), `cell` or `output` (it has `add`).
    * `layers_below` (2): distance from the layer down to its nearest source; 1 is the layer just
      below.
    * `all_below` (False): all layers from there down are sources, concatenated, bottom layer first.
    * `source` (`output`): array of each source that enters: its `output` h, or its `cell_state`.
    * `same_size` (False): every source needs the size of the layer.
    """

    enters: ClassVar[Literal["gates", "cell", "output"]]
    layers_below: ClassVar[int] = 2
    all_below: ClassVar[bool] = False
    source: ClassVar[Literal["output", "cell_state"]] = "output"
    same_size: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_fields(self)

    def init(
        self,
        key: Key[Array, ""],
        in_features: int,
        below: int,
        hidden: int,
        widths: Any,
        init: Initializers,
    ) -> Any:
        """Draw the parameters; return None for a skip without parameters.

        `below` is the number of features of all sources together, and `widths` are the sizes of the
        last axes of the arrays that `Transition.project` returns.
        """
        raise NotImplementedError

    def check_below(self, below: int, hidden: int) -> None:
        """Raise a `UserError` unless `below` source features fit a layer of size `hidden`."""
        if below != hidden:
            raise UserError(
                f"a skip over depth from a layer of size {below} to one of size {hidden} needs "
                "mapping='linear'"
            )

    def check_transition(self, transition: Transition) -> None:
        """Raise a `UserError` unless the skip fits layers with this transition."""

    def project(
        self, params: Any, x: Float[Array, "*batch in"], below: Float[Array, "*batch below"]
    ) -> Any:
        """Compute the part of the skip that needs no state, for all steps at once.

        `x` is the layer's input, and `below` the outputs or cell states of the sources; `*batch`
        may contain the time axis.
        """
        raise NotImplementedError

    def into_gates(self, params: Any, below: Float[Array, "*batch below"], inputs: Any) -> Any:
        """Return the transition's projected `inputs` plus the skip; for skips to the gates."""
        raise NotImplementedError

    def add(
        self,
        params: Any,
        inputs: Any,
        entering: Float[Array, "*batch hidden"],
        h: Float[Array, "*batch hidden"],
        new: Float[Array, "*batch hidden"],
        dense: Dense,
    ) -> Float[Array, "*batch hidden"]:
        """Return `new` plus the skip; for skips to the cell state or the output.

        `new` is the new cell state or the new h. `inputs` is the result of `project`, `entering`
        the cell state or h that enters the step, and `h` the h that enters it. `dense` multiplies
        by a matrix.
        """
        raise NotImplementedError
