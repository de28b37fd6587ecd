"""Regularisers of the AWD-LSTM (Merity et al. 2018): variational and embedding dropout, AR and TAR.

Its weight dropout (DropConnect, Section 2) is `dropout` of the hidden-to-hidden weights of all gates, with
one mask for all steps and streams of a segment.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from dynskip_jax.functional.dropout import dropout_mask
from dynskip_jax.functional.product import wider


def variational_dropout(
    keys: Key[Array, ""] | Key[Array, " batch"] | None, rate: float, x: Float[Array, "batch time features"]
) -> Float[Array, "batch time features"]:
    """Drop the same features at all steps of a sequence (Gal & Ghahramani 2016).

    Merity et al. (2018), Section 4.2, apply it to a layer's input and output, with a new mask for each use,
    example and segment. Their code calls it locked dropout. Features that are kept are divided by 1 - rate.

    Args:
        keys: One key, or one per example; None returns `x` unchanged.
        rate: Probability of dropping a feature, in [0, 1); 0 returns `x` unchanged.
        x: Features.
    """
    if keys is None or rate == 0.0:
        return x
    batch, _, features = x.shape
    return x * dropout_mask(keys, rate, (batch, 1, features), x.dtype)


def embedding_dropout(
    key: Key[Array, ""] | None, rate: float, table: Float[Array, "words features"]
) -> Float[Array, "words features"]:
    """Drop words, that is, whole rows of an embedding table (Gal & Ghahramani 2016).

    Merity et al. (2018), Section 4.3, use one mask for all steps and streams of a segment. With tied weights,
    pass the result only to the lookup, not to the softmax. Rows that are kept are divided by 1 - rate.

    Args:
        key: Key for the segment; None returns the table unchanged.
        rate: Probability of dropping a word, in [0, 1); 0 returns the table unchanged.
        table: Embeddings.
    """
    if key is None or rate == 0.0:
        return table
    return table * dropout_mask(key, rate, (table.shape[0], 1), table.dtype)


def activation_regularisation(
    dropped_output: Float[Array, "batch time features"],
    coef: float | Float[Array, ""],
    valid: Bool[Array, "batch time"] | None = None,
) -> Float[Array, ""]:
    """Return the AR penalty α · mean of (m ⊙ h(t))², which keeps activations small.

    Merity et al. (2018), Section 4.6. The paper writes the norm of a vector. Their code and this function
    average squares over all elements. Add the penalty to the mean loss per token, not to the sum over a
    segment.

    Args:
        dropped_output: m ⊙ h(t), the last layer's output after dropout.
        coef: α; the paper uses 2.
        valid: False at padding, which is excluded from the mean.
    """
    wide = wider(dropped_output.dtype, jnp.float32)  # in float16, sums and counts above 65,504 are infinite
    x = dropped_output.astype(wide)
    if valid is None:
        size = max(x.size, 1)
    else:
        # Padding is replaced before squaring, so that its gradient is 0 whatever its value.
        x, size = jnp.where(valid[..., None], x, 0), jnp.maximum(valid.sum(dtype=wide) * x.shape[-1], 1)
    return coef * (jnp.square(x).sum() / size).astype(dropped_output.dtype)


def temporal_activation_regularisation(
    output: Float[Array, "batch time features"],
    coef: float | Float[Array, ""],
    valid: Bool[Array, "batch time"] | None = None,
) -> Float[Array, ""]:
    """Return the TAR penalty β · mean of (h(t) - h(t+1))², which keeps activations from changing fast.

    Merity et al. (2018), Section 4.6, averaged as in `activation_regularisation`. The change from one segment
    to the next is excluded. A segment of one step has the penalty 0.

    Args:
        output: h(t), the last layer's output without dropout.
        coef: β; the paper uses 1.
        valid: False at padding. A difference counts if both of its steps are valid.
    """
    changes = None if valid is None else valid[:, :-1] & valid[:, 1:]
    return activation_regularisation(output[:, :-1] - output[:, 1:], coef, changes)
