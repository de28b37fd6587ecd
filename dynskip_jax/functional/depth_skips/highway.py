"""Highway LSTM (Zhang et al. 2016): a depth gate adds the cell state of the layer below."""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
from jax.nn import sigmoid
from jaxtyping import Array, Float
from typing_extensions import override

from dynskip_jax.functional.depth_skips.base import DepthSkip, check_size
from dynskip_jax.functional.product import product, row


class HighwayGateParams(NamedTuple):
    """Weights of the depth gate.

    Attributes:
        w_x: Matrix W_xd on the layer's input, (in, hidden).
        w_c: Vector w_cd on the layer's own c(t-1), (hidden,).
        w_l: Vector w_ld on c(t) of the layer below, (hidden,).
        b: Bias b_d, (hidden,).
    """

    w_x: Float[Array, "in hidden"]
    w_c: Float[Array, " hidden"]
    w_l: Float[Array, " hidden"]
    b: Float[Array, " hidden"]


class HighwayGateInputs(NamedTuple):
    """Part of the depth gate that needs no state.

    Attributes:
        below: Cell state c(t) of the layer below, (*batch, hidden).
        gate: Projection W_xd x + w_ld ⊙ below, (*batch, hidden).
    """

    below: Float[Array, "*batch hidden"]
    gate: Float[Array, "*batch hidden"]


@dataclasses.dataclass(frozen=True)
class Highway(DepthSkip):
    """Depth skip that adds the gated cell state of the layer below (Zhang et al. 2016; Yao et al. 2015).

    c^l = d ⊙ c^{l-1} + f ⊙ c^l(t-1) + i ⊙ g, where the depth gate is
    d = σ(b_d + W_xd x + w_cd ⊙ c^l(t-1) + w_ld ⊙ c^{l-1}(t)).
    """

    enters: ClassVar = "cell"
    layers_below: ClassVar[int] = 1
    source: ClassVar = "cell_state"

    def init(self, key, in_features, below, hidden, widths, init) -> HighwayGateParams:
        """Draw the weights; see `DepthSkip`."""
        self.check_below(below, hidden)
        x_key, *vector_keys = jax.random.split(key, 4)
        vectors = (init.draw(init.bias, k, (hidden,)) for k in vector_keys)
        return HighwayGateParams(init.draw(init.kernel, x_key, (in_features, hidden)), *vectors)

    @override
    def check_below(self, below: int, hidden: int) -> None:
        check_size(below, hidden)

    def project(self, params: HighwayGateParams, x, below) -> HighwayGateInputs:
        """Return `below` and W_xd x + w_ld ⊙ below; see `DepthSkip`."""
        return HighwayGateInputs(below, product(x, params.w_x) + row(params.w_l, below) * below)

    def add(self, params: HighwayGateParams, inputs: HighwayGateInputs, entering, h, new, dense):
        """Add d ⊙ c^{l-1}; see `DepthSkip`."""
        gate = sigmoid(inputs.gate + row(params.w_c, entering) * entering + row(params.b, entering))
        return new + gate * inputs.below
