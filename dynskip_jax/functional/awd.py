"""Penalties of the AWD-LSTM (Merity et al. 2018): AR and TAR. `dropout` has its dropouts."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynskip_jax.functional.product import wider


def activation_regularisation(
    dropped_output: Float[Array, "batch time features"],
    coef: float | Float[Array, ""],
    valid: Bool[Array, "batch time"] | None = None,
) -> Float[Array, ""]:
    """Return the AR penalty α · mean of (m ⊙ h(t))², which keeps activations small.

    Merity et al. (2018), Section 4.6. The paper writes the norm of a vector. Their code and this
    function average squares over all elements. Add the penalty to the mean loss per token, not to
    the sum over a segment.

    `dropped_output` is m ⊙ h(t), the last layer's output after dropout, and `coef` is α, 2 in the
    paper. `valid` is False at padding, which is excluded from the mean.
    """
    # In float16, sums and counts above 65,504 are infinite.
    wide = wider(dropped_output.dtype, jnp.float32)
    x = dropped_output.astype(wide)
    if valid is None:
        size = max(x.size, 1)
    else:
        # Padding is replaced before squaring, so that its gradient is 0 whatever its value.
        x = jnp.where(valid[..., None], x, 0)
        size = jnp.maximum(valid.sum(dtype=wide) * x.shape[-1], 1)
    return coef * (jnp.square(x).sum() / size).astype(dropped_output.dtype)


def temporal_activation_regularisation(
    output: Float[Array, "batch time features"],
    coef: float | Float[Array, ""],
    valid: Bool[Array, "batch time"] | None = None,
) -> Float[Array, ""]:
    """Return the TAR penalty β · mean of (h(t) - h(t+1))², which keeps activations slow.

    Merity et al. (2018), Section 4.6, averaged as in `activation_regularisation`. The change from
    one segment to the next is excluded. A segment of one step has the penalty 0.

    `output` is h(t), the last layer's output without dropout, and `coef` is β, 1 in the paper. A
    difference counts if both of its steps are `valid`.
    """
    changes = None
    if valid is not None:
        changes = valid[:, :-1] & valid[:, 1:]
    return activation_regularisation(output[:, :-1] - output[:, 1:], coef, changes)
