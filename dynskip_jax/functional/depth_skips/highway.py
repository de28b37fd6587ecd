"""Highway LSTM (Zhang et al. 2016): a depth gate adds the cell state of the layer below."""

import dataclasses
from typing import NamedTuple

import jax
from jax.nn import sigmoid
from jaxtyping import Array, Float

from dynskip_jax.functional.depth_skips.base import DepthSkip
from dynskip_jax.functional.product import product, row
from dynskip_jax.functional.serialization import register_for_export


@register_for_export
class HighwayGateParams(NamedTuple):
    """Weights of the depth gate."""

    w_x: Float[Array, "in hidden"]  # W_xd, on the layer's input
    w_c: Float[Array, " hidden"]  # w_cd, on the layer's own c(t-1)
    w_l: Float[Array, " hidden"]  # w_ld, on c(t) of the layer below
    b: Float[Array, " hidden"]


@dataclasses.dataclass(frozen=True)
class Highway(DepthSkip):
    """Depth skip that adds the gated cell state of the layer below (Zhang et al. 2016).

    It was proposed by Yao et al. (2015), too.

    c^l = d ⊙ c^{l-1} + f ⊙ c^l(t-1) + i ⊙ g, where the depth gate is
    d = σ(b_d + W_xd x + w_cd ⊙ c^l(t-1) + w_ld ⊙ c^{l-1}(t)).
    """

    enters = "cell"
    layers_below = 1
    source = "cell_state"

    def init(self, key, in_features, below, hidden, widths, init) -> HighwayGateParams:
        x_key, *vector_keys = jax.random.split(key, 4)
        vectors = (init.draw(init.bias, k, (hidden,)) for k in vector_keys)
        return HighwayGateParams(init.draw(init.kernel, x_key, (in_features, hidden)), *vectors)

    def project(self, params: HighwayGateParams, x, below):
        return below, product(x, params.w_x) + row(params.w_l, below) * below

    def add(self, params: HighwayGateParams, inputs, entering, h, new, dense):
        # The part of the gate that needs no state is in the projected inputs.
        below, gate = inputs
        gate = sigmoid(gate + row(params.w_c, entering) * entering + row(params.b, entering))
        return new + gate * below
