"""Skips over depth to the gates, Wu et al. (2016), Eq. 32."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.depth_skips.base import Mapped, tiled
from dynskip_jax.functional.product import product


class GatesParams(NamedTuple):
    """Attributes:
    w: I^l, a matrix for each of the transition's projected arrays; none of them where it is the identity.
    """

    w: tuple[Float[Array, "below gates"], ...] = ()


@dataclasses.dataclass(frozen=True)
class ToGates(Mapped):
    """h^{l-2} is added to the projections of all gates and of the candidate; I^l is the identity for each.

    With `mapping="linear"` I^l is learned. The paper gives it no gate.
    """

    name: ClassVar[str] = "gates"

    def __post_init__(self) -> None:
        """Checks the options."""
        super().__post_init__()
        if self.gated:
            raise UserError("a skip to the gates has no gate of its own: use output or internal")

    def init(self, key, in_features, below, hidden, widths, init):
        """Draws I^l, a matrix for each projected array, where it is learned; see `DepthSkip`."""
        self.check_below(below, hidden)
        if self.mapping != "linear":
            return GatesParams()
        keys = jax.random.split(key, len(widths))
        return GatesParams(
            tuple(
                init.blocks(init.kernel, k, below, hidden, width // hidden)
                for k, width in zip(keys, widths, strict=True)
            )
        )

    def project(self, params, x, below):
        """Nothing is left for the loop to do."""
        return None

    def into_gates(self, params, below, inputs):
        """Adds I^l h^{l-2}; see `DepthSkip`."""
        leaves, structure = jax.tree.flatten(inputs)
        if self.mapping == "linear":
            added = [product(below, w) for w in params.w]
        else:
            below = jax.nn.sigmoid(below) if self.mapping == "sigmoid" else below
            added = [tiled(below, leaf.shape[-1]) for leaf in leaves]
        return jax.tree.unflatten(structure, [leaf + more for leaf, more in zip(leaves, added, strict=True)])
