"""Gated windows of neighbouring tokens (Wu et al. 2016, Section 5.1)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dynskip_jax.functional.product import affine
from dynskip_jax.functional.sequence import length_mask, where_each
from dynskip_jax.functional.serialization import register_for_export


@register_for_export
class WindowGates(NamedTuple):
    """Weights of the gates of a window of d tokens, from the tokens side by side to d gates."""

    w: Float[Array, "window d"]
    b: Float[Array, " d"]


def gated_window(
    params: WindowGates,
    x: Float[Array, "batch time features"],
    seq_lengths: Int[Array, " batch"] | None = None,
) -> Float[Array, "batch time window"]:
    """Return the d tokens around each step, each multiplied by its gate, and concatenated.

    At step t the result is [r_1 x(t - ⌊d/2⌋); …; r_d x(t + ⌊d/2⌋)] with the gates
    r = σ(W [x(t - ⌊d/2⌋); …; x(t + ⌊d/2⌋)] + b) and an odd d. Tokens before the start and past the
    end of a sequence are zeros. The paper calls r a logistic gate of size d, without defining its
    input. Here the input is the window.
    """
    d = params.b.shape[0]
    time = x.shape[1]
    if seq_lengths is not None:
        x = where_each(length_mask(seq_lengths, time), x, 0)
    padded = jnp.pad(x, ((0, 0), (d // 2, d // 2), (0, 0)))
    tokens = jnp.stack([padded[:, k : k + time] for k in range(d)], axis=2)
    r = jax.nn.sigmoid(affine(tokens.reshape(*x.shape[:2], d * x.shape[2]), params.w, params.b))
    return (r[..., None] * tokens).reshape(*x.shape[:2], d * x.shape[2])
