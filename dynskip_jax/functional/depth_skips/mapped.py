"""Depth skips of Wu et al. (2016): to the gates, to the internal state and to the output.

`ToGates` is Eq. 32, `ToInternal` Eq. 33-34, `ToOutput` Eq. 35-36, and `gated=True` Eq. 49. The
paper's h^{l-1} is the layer's input x here, and its h^{l-2} is `below`.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float, Key

from dynskip_jax.errors import UserError
from dynskip_jax.functional.depth_skips.base import DepthSkip
from dynskip_jax.functional.product import product
from dynskip_jax.functional.serialization import register_for_export
from dynskip_jax.functional.transitions.base import Dense, Transition

_OTHER_SIZE = "this transition has gates of another size than the layer's: skip to the output"


@register_for_export
class GatesParams(NamedTuple):
    """Matrices I^l, one for each array of `Transition.project`; empty if I^l is not learned."""

    w: tuple[Float[Array, "below gates"], ...] = ()


@register_for_export
class MappingParams(NamedTuple):
    """Weights of a mapping and its gate; None for each part that the skip does not have."""

    w_m: Float[Array, "below hidden"] | None = None  # of the `linear` mapping
    w_gx: Float[Array, "in hidden"] | None = None  # gate, on the layer's input
    w_gh: Float[Array, "hidden hidden"] | None = None  # gate, on h(t-1)
    b_g: Float[Array, " hidden"] | None = None


@dataclasses.dataclass(frozen=True)
class _Mapped(DepthSkip):
    """A depth skip that applies a mapping m to h^{l-2}: one of `mappings`."""

    mappings: ClassVar[tuple[str, ...]]
    mapping: str = "identity"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mapping not in self.mappings:
            raise UserError(
                f"unknown mapping {self.mapping!r}: choose one of {', '.join(self.mappings)}"
            )

    def check_below(self, below: int, hidden: int) -> None:
        if self.mapping != "linear":  # which accepts any size
            super().check_below(below, hidden)


@dataclasses.dataclass(frozen=True)
class ToGates(_Mapped):
    """Depth skip that adds I^l h^{l-2} to all gates and to the candidate, Eq. 32.

    I^l is learned with `mapping="linear"`, and otherwise the identity for each gate.
    """

    enters = "gates"
    mappings = ("identity", "linear")

    def check_transition(self, transition: Transition) -> None:
        if self.mapping != "linear" and transition.has_small_gates:
            raise UserError(_OTHER_SIZE)

    def init(self, key, in_features, below, hidden, widths, init) -> GatesParams:
        if self.mapping != "linear":
            return GatesParams()

        def draw(key: Key[Array, ""], width: int) -> Float[Array, "below gates"]:
            # One block for each gate of the layer's size.
            if width % hidden:
                return init.draw(init.kernel, key, (below, width))
            return init.blocks(init.kernel, key, below, hidden, width // hidden)

        return GatesParams(tuple(map(draw, jax.random.split(key, len(widths)), widths)))

    def project(self, params, x, below) -> None:
        """Return None: `into_gates` computes the whole skip."""

    def into_gates(self, params: GatesParams, below, inputs):
        # The projected inputs are arrays with one or several gates side by side.
        leaves, structure = jax.tree.flatten(inputs)
        if self.mapping == "linear":
            added = [product(below, w) for w in params.w]
        elif any(x.shape[-1] % below.shape[-1] for x in leaves):
            raise UserError(_OTHER_SIZE)
        else:
            added = [
                jnp.concatenate([below] * (x.shape[-1] // below.shape[-1]), axis=-1) for x in leaves
            ]
        return structure.unflatten([x + more for x, more in zip(leaves, added, strict=True)])


@dataclasses.dataclass(frozen=True)
class DenseToGates(ToGates):
    """Dense connections (Huang et al. 2017; Ding et al. 2018): gates see all lower layers' h.

    It adds I^l [h^1; …; h^{l-2}] to the projections of all gates and of the candidate, with a
    learned I^l. Together with the layer's input h^{l-1}, these are the outputs of all lower layers,
    as in DenseNet.
    """

    all_below = True
    mappings = ("linear",)
    mapping: str = "linear"


@dataclasses.dataclass(frozen=True)
class _Gateable(_Mapped):
    """A mapped skip m(h^{l-2}), optionally multiplied by a gate at every step (Eq. 49).

    Attributes:
        mapping: Kind of m: `identity`; `linear`, a learned matrix; or `sigmoid`, σ(h^{l-2})
            (Section 6.1.4).
        gated: Whether the skip has the gate g = σ(W x + U h(t-1) + b).
    """

    mappings = ("identity", "linear", "sigmoid")
    gated: bool = False

    def init(self, key, in_features, below, hidden, widths, init) -> MappingParams:
        m_key, x_key, h_key, b_key = jax.random.split(key, 4)
        w_m = None
        if self.mapping == "linear":
            w_m = init.draw(init.kernel, m_key, (below, hidden))
        if not self.gated:
            return MappingParams(w_m)
        w_gx = init.draw(init.kernel, x_key, (in_features, hidden))
        w_gh = init.draw(init.recurrent, h_key, (hidden, hidden))
        return MappingParams(w_m, w_gx, w_gh, init.draw(init.bias, b_key, (hidden,)))

    def project(self, params: MappingParams, x, below):
        """Return m(h^{l-2}) and the gate's projected input, None without a gate."""
        mapped = below
        if self.mapping == "linear":
            mapped = product(below, params.w_m)
        elif self.mapping == "sigmoid":
            mapped = sigmoid(below)
        gate = None
        if self.gated:
            gate = product(x, params.w_gx)
        return mapped, gate

    def add(self, params: MappingParams, inputs, entering, h, new, dense: Dense):
        # The gate, Eq. 49, sees the h that enters at every step.
        mapped, gate = inputs
        if self.gated:
            mapped = dense(params.w_gh, h, gate, params.b_g, activations=("sigmoid",)) * mapped
        return new + mapped


@dataclasses.dataclass(frozen=True)
class ToInternal(_Gateable):
    """Depth skip to the internal state: c = f ⊙ c(t-1) + i ⊙ s + h^{l-2}, Eq. 33-34.

    A gated one adds g ⊙ h^{l-2}. For transitions whose cell state is h, the skip is added to h.
    """

    enters = "cell"


@dataclasses.dataclass(frozen=True)
class ToOutput(_Gateable):
    """Depth skip to the output: h = o ⊙ tanh(c) + h^{l-2}, Eq. 35-36; g ⊙ h^{l-2} if gated.

    The gated one is the best kind of depth skip in the paper.
    """

    enters = "output"
