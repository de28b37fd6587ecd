"""Depth skips of Wu et al. (2016): to the gates, to the internal state and to the output.

`ToGates` is Eq. 32, `ToInternal` Eq. 33-34, `ToOutput` Eq. 35-36, and `gated=True` Eq. 49. The paper's
h^{l-1} is the layer's input x here, and its h^{l-2} is `below`.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import sigmoid
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.depth_skips.base import DepthSkip, check_size
from dynskip_jax.functional.product import product
from dynskip_jax.functional.transitions.base import Dense, Initializers


class GatesParams(NamedTuple):
    """Weights of a skip to the gates.

    Attributes:
        w: Matrices I^l, one for each array that `Transition.project` returns; empty if I^l is not learned.
    """

    w: tuple[Float[Array, "below gates"], ...] = ()


class MappingParams(NamedTuple):
    """Weights of a mapping and its gate; None for each part that the skip does not have.

    Attributes:
        w_m: Matrix of the `linear` mapping, (below, hidden).
        w_gx: Gate's matrix on the input (Eq. 49) or on `below` (Section 6.1.4), (in or below, hidden).
        w_gh: Gate's matrix on h(t-1), (hidden, hidden).
        b_g: Bias of the gate, (hidden,).
    """

    w_m: Float[Array, "below hidden"] | None = None
    w_gx: Float[Array, "in hidden"] | None = None
    w_gh: Float[Array, "hidden hidden"] | None = None
    b_g: Float[Array, " hidden"] | None = None


class MappingInputs(NamedTuple):
    """Part of a mapped skip that needs no state.

    Attributes:
        mapped: Source after the mapping, m(h^{l-2}), (*batch, hidden).
        gate: Projected input of the gate, (*batch, hidden); None without a gate.
    """

    mapped: Float[Array, "*batch hidden"]
    gate: Float[Array, "*batch hidden"] | None = None


@dataclasses.dataclass(frozen=True)
class _Mapped(DepthSkip):
    """A depth skip that applies a mapping m to h^{l-2}.

    Attributes:
        mapping: Kind of m: `identity`; `linear`, a learned matrix; or `sigmoid`, σ(h^{l-2}) (Section 6.1.4).
    """

    mapping: str = "identity"

    def __post_init__(self) -> None:
        """Check the options."""
        self._check_option("mapping", ("identity", "linear", "sigmoid"))

    def _check_option(self, name: str, known: tuple[str, ...]) -> None:
        if getattr(self, name) not in known:
            raise UserError(f"unknown {name} {getattr(self, name)!r}: choose one of {', '.join(known)}")

    def check_below(self, below: int, hidden: int) -> None:
        """See `DepthSkip`; the `linear` mapping accepts any size."""
        if self.mapping != "linear":
            check_size(below, hidden)


@dataclasses.dataclass(frozen=True)
class ToGates(_Mapped):
    """Depth skip that adds I^l h^{l-2} to the projections of all gates and of the candidate, Eq. 32.

    I^l is learned with `mapping="linear"`, and otherwise the identity for each gate. With
    `mapping="sigmoid"`, σ(h^{l-2}) takes the place of h^{l-2}.
    """

    enters: ClassVar = "gates"

    def init(self, key, in_features, below, hidden, widths, init) -> GatesParams:
        """Draw I^l if `mapping` is `linear`; see `DepthSkip`."""
        self.check_below(below, hidden)
        if self.mapping != "linear":
            return GatesParams()
        keys = jax.random.split(key, len(widths))
        matrices = (
            init.blocks(init.kernel, k, below, hidden, width // hidden)
            for k, width in zip(keys, widths, strict=True)
        )
        return GatesParams(tuple(matrices))

    def project(self, params, x, below) -> None:
        """Return None: `into_gates` computes the whole skip."""

    def into_gates(self, params: GatesParams, below, inputs):
        """Add I^l h^{l-2}; see `DepthSkip`."""
        leaves, structure = jax.tree.flatten(inputs)
        if self.mapping != "linear" and any(x.shape[-1] % below.shape[-1] for x in leaves):
            raise UserError("this transition has gates of another size than the layer's: skip to the output")
        if self.mapping == "linear":
            added = [product(below, w) for w in params.w]
        else:
            mapped = sigmoid(below) if self.mapping == "sigmoid" else below
            added = [jnp.concatenate([mapped] * (x.shape[-1] // mapped.shape[-1]), axis=-1) for x in leaves]
        return structure.unflatten([x + more for x, more in zip(leaves, added, strict=True)])


@dataclasses.dataclass(frozen=True)
class _Gateable(_Mapped):
    """A mapped skip m(h^{l-2}), optionally multiplied by a gate g at every step (Eq. 49).

    Attributes:
        gated: Whether the skip has a gate.
        gate_sees: Array that enters the gate together with h(t-1). `input`: the layer's input x, so that
            g = σ(W x + U h(t-1) + b), Eq. 49. `below`: h^{l-2} in place of x, as in Section 6.1.4.
    """

    gated: bool = False
    gate_sees: str = "input"

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        self._check_option("gate_sees", ("input", "below"))

    def init(self, key, in_features, below, hidden, widths, init: Initializers) -> MappingParams:
        """Draw the weights; see `DepthSkip`."""
        self.check_below(below, hidden)
        m_key, x_key, h_key, b_key = jax.random.split(key, 4)
        params = MappingParams()
        if self.mapping == "linear":
            params = params._replace(w_m=init.draw(init.kernel, m_key, (below, hidden)))
        if self.gated:
            features = in_features if self.gate_sees == "input" else below
            params = params._replace(
                w_gx=init.draw(init.kernel, x_key, (features, hidden)),
                w_gh=init.draw(init.recurrent, h_key, (hidden, hidden)),
                b_g=init.draw(init.bias, b_key, (hidden,)),
            )
        return params

    def project(self, params: MappingParams, x, below) -> MappingInputs:
        """Return m(h^{l-2}) and the gate's projected input; see `DepthSkip`."""
        gate = product(x if self.gate_sees == "input" else below, params.w_gx) if self.gated else None
        if self.mapping == "linear":
            return MappingInputs(product(below, params.w_m), gate)
        return MappingInputs(sigmoid(below) if self.mapping == "sigmoid" else below, gate)

    def add(self, params: MappingParams, inputs: MappingInputs, entering, h, new, dense: Dense):
        """Add g ⊙ m(h^{l-2}), or m(h^{l-2}) without a gate; see `DepthSkip`."""
        if not self.gated:
            return new + inputs.mapped
        gate = dense(params.w_gh, h, inputs.gate, params.b_g, activations=("sigmoid",))
        return new + gate * inputs.mapped


@dataclasses.dataclass(frozen=True)
class ToInternal(_Gateable):
    """Depth skip to the internal state: c = f ⊙ c(t-1) + i ⊙ s + h^{l-2}, Eq. 33-34; g ⊙ h^{l-2} if gated.

    For transitions whose cell state is h, the skip is added to h.
    """

    enters: ClassVar = "cell"


@dataclasses.dataclass(frozen=True)
class ToOutput(_Gateable):
    """Depth skip to the output: h = o ⊙ tanh(c) + h^{l-2}, Eq. 35-36; g ⊙ h^{l-2} if gated.

    The gated one is the best kind of depth skip in the paper.
    """

    enters: ClassVar = "output"
