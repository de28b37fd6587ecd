"""Depth skip by attention over the outputs of all lower layers (Attention Residuals, 2026)."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.errors import UserError
from dynskip_jax.functional.depth_skips.base import DepthSkip
from dynskip_jax.functional.product import row
from dynskip_jax.functional.serialization import register_for_export


@register_for_export
class AttentionParams(NamedTuple):
    """The layer's query. It is zero initially, which gives all layers equal weights."""

    w: Float[Array, " hidden"]


@dataclasses.dataclass(frozen=True)
class AttentionToOutput(DepthSkip):
    """Depth skip that adds a weighted mean of the outputs of all lower layers to h.

    h = o ⊙ tanh(c) + Σ_i α_i h^i over all lower layers i, with α = softmax(w · RMSNorm(h^i)).

    A layer's query w is learned and is the same at all steps. `ToOutput` adds the output of one
    lower layer instead, as a residual network does. `epsilon` is added to the mean square in
    RMSNorm.
    """

    enters = "output"
    layers_below = 1
    all_below = True
    same_size = True
    epsilon: float = 1e-6

    def init(self, key, in_features, below, hidden, widths, init) -> AttentionParams:
        return AttentionParams(jnp.zeros((hidden,), init.dtype))

    def check_below(self, below: int, hidden: int) -> None:
        if below % hidden:
            raise UserError(
                f"attention over lower layers needs layers of one size, {hidden}, "
                f"got {below} features in all"
            )

    def project(self, params: AttentionParams, x, below) -> Float[Array, "*batch hidden"]:
        # The outputs h^i of the lower layers, (*batch, layers, hidden).
        hidden = params.w.shape[0]
        outputs = below.reshape(*below.shape[:-1], below.shape[-1] // hidden, hidden)
        mean_square = jnp.mean(outputs * outputs, axis=-1, keepdims=True)
        keys = outputs * jax.lax.rsqrt(mean_square + self.epsilon)
        weights = jax.nn.softmax(jnp.sum(keys * row(params.w, keys), axis=-1), axis=-1)
        return jnp.einsum("...l,...lh->...h", weights, outputs)

    def add(self, params, inputs, entering, h, new, dense):
        return new + inputs
