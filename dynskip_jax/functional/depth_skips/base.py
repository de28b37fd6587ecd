"""The interface of skips over depth: what a stacked layer receives from layers further below, at every step.

What enters is part of the recurrence: the state of the next step contains it.
"""

import dataclasses
from typing import Any, ClassVar, Literal

from jaxtyping import Array, Float, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.transitions.base import Dense, Initializers


@dataclasses.dataclass(frozen=True)
class DepthSkip:
    """Where the output of a layer below enters. Hashable, hence a static argument under `jit`.

    Attributes:
        name: its name on the command line.
        layers_below: how many layers below the source is, or the nearest of several.
        all_below: whether every layer from there down is a source. `below` is then what enters of each, side
            by side, bottom first.
        source: what enters: the source's `output` h, or its `cell_state`.
    """

    name: ClassVar[str] = ""
    layers_below: ClassVar[int] = 2
    all_below: ClassVar[bool] = False
    source: ClassVar[Literal["output", "cell_state"]] = "output"

    def init(
        self, key: Key[Array, ""], in_features: int, below: int, hidden: int, widths: Any, init: Initializers
    ) -> Any:
        """Draw the parameters; return None where there are none.

        Args:
            key: a PRNG key.
            in_features: size of the layer's input.
            below: size of what comes from below.
            hidden: size of the layer's state.
            widths: size of the last axis of each array that `Transition.project` returns.
            init: initializers of the parameters.
        """
        raise NotImplementedError

    def check_below(self, below: int, hidden: int) -> None:
        """Raise a `UserError` where features from below do not fit the layer; see `init`."""

    def project(self, params: Any, x: Float[Array, "*batch in"], below: Float[Array, "*batch below"]) -> Any:
        """Return the part of the computation that needs no state, for all steps at once."""
        raise NotImplementedError

    def into_gates(self, params: Any, below: Float[Array, "*batch below"], inputs: Any) -> Any:
        """Return the transition's projected `inputs` with what enters its gates."""
        return inputs

    def into_cell_state(
        self,
        params: Any,
        inputs: Any,
        h: Float[Array, "*batch hidden"],
        before: Float[Array, "*batch hidden"],
        cell_state: Float[Array, "*batch hidden"],
        dense: Dense,
    ) -> Float[Array, "*batch hidden"]:
        """Return the new cell state with what enters it.

        Args:
            params: parameters from `init`.
            inputs: result of `project`.
            h: the h that enters the step.
            before: the cell state that enters the step.
            cell_state: the new cell state.
            dense: multiplies by a matrix, as in `Transition.step`.
        """
        return cell_state

    def into_output(
        self,
        params: Any,
        inputs: Any,
        h: Float[Array, "*batch hidden"],
        output: Float[Array, "*batch hidden"],
        dense: Dense,
    ) -> Float[Array, "*batch hidden"]:
        """Return the new h, `output`, with what enters it; see `into_cell_state`."""
        return output


def check_size(below: int, hidden: int) -> None:
    """Raise a `UserError` unless the two sizes are the same."""
    if below != hidden:
        raise UserError(
            f"a skip over depth from a layer of size {below} to one of size {hidden} needs mapping='linear'"
        )
