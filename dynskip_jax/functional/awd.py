"""Regularisers of the AWD-LSTM (Merity et al. 2018): dropout of features, words and weights; AR and TAR."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from dynskip_jax.functional.dropout import dropout, dropout_mask


def variational_dropout(
    keys: Key[Array, ""] | Key[Array, " batch"] | None, rate: float, x: Float[Array, "batch time features"]
) -> Float[Array, "batch time features"]:
    """Variational dropout: what is dropped in a sequence is dropped at all its steps (Gal & Ghahramani 2016).

    Merity et al. (2018), Section 4.2: on a layer's input and output; another mask for each use, each example
    and each segment. No step enters another, so padding needs no care.

    Args:
        keys: one key, or one per example, whose mask then depends on no other; None: the identity.
        rate: in [0, 1); 0 is the identity.
        x: (batch, time, features).

    Returns:
        x with features zero and the others scaled by 1 / (1 - rate).
    """
    if keys is None or rate == 0.0:
        return x
    batch, _, features = x.shape
    return x * dropout_mask(keys, rate, (batch, 1, features), x.dtype)


def embedding_dropout(
    key: Key[Array, ""] | None, rate: float, table: Float[Array, "words features"]
) -> Float[Array, "words features"]:
    """Drops words: whole rows of an embedding table, wherever they occur (Gal & Ghahramani 2016).

    Merity et al. (2018), Section 4.3: one mask for a segment, for all streams. Where the table is the
    softmax's too, only the lookup is given what this returns.

    Args:
        key: one for the segment; None: the identity.
        rate: in [0, 1); 0 is the identity.
        table: (words, features).

    Returns:
        The table with rows zero and the others scaled by 1 / (1 - rate).
    """
    if key is None or rate == 0.0:
        return table
    return table * dropout_mask(key, rate, (table.shape[0], 1), table.dtype)


def weight_dropout(
    key: Key[Array, ""] | None, rate: float, w: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """DropConnect: drops single weights, not states (Wan et al. 2013).

    Merity et al. (2018), Section 2: on the hidden-to-hidden weights of all gates, before the first step, so
    that one mask holds for all steps and streams of a segment.

    Args:
        key: one for the segment; None: the identity.
        rate: in [0, 1); 0 is the identity.
        w: of any shape.

    Returns:
        w with elements zero and the others scaled by 1 / (1 - rate).
    """
    return dropout(key, rate, w)


def activation_regularisation(
    dropped_output: Float[Array, "batch time features"],
    coef: float | Float[Array, ""],
    valid: Bool[Array, "batch time"] | None = None,
) -> Float[Array, ""]:
    """AR: α · mean of (m ⊙ h(t))², which keeps activations small.

    Merity et al. (2018), Section 4.6. They print the norm of a vector; their code, and this, averages squares
    over all elements. It stands beside the mean loss of a token, not beside the sum over a segment.

    Args:
        dropped_output: m ⊙ h(t), the last layer's output after its dropout, (batch, time, features).
        coef: α; theirs is 2.
        valid: False at padding, (batch, time), which then counts neither above nor below the fraction line.
    """
    return coef * _mean_square(dropped_output, valid)


def temporal_activation_regularisation(
    output: Float[Array, "batch time features"],
    coef: float | Float[Array, ""],
    valid: Bool[Array, "batch time"] | None = None,
) -> Float[Array, ""]:
    """TAR: β · mean of (h(t) - h(t+1))², which keeps activations from changing fast.

    Merity et al. (2018), Section 4.6, with averages as in `activation_regularisation`; the step from one
    segment to the next is no part of it. A segment of one step has no change, and costs 0.

    Args:
        output: h(t), the last layer's output without dropout, (batch, time, features).
        coef: β; theirs is 1.
        valid: False at padding, (batch, time): a change counts where both its ends are valid.
    """
    changes = None if valid is None else valid[:, :-1] & valid[:, 1:]
    return coef * _mean_square(output[:, :-1] - output[:, 1:], changes)


def _mean_square(
    x: Float[Array, "batch time features"], valid: Bool[Array, "batch time"] | None
) -> Float[Array, ""]:
    """The mean over all elements that are valid; 0 where there is none."""
    if valid is None:
        return jnp.square(x).sum() / max(x.size, 1)
    # Padding is replaced before it is squared: whatever stands there, the gradient too is 0.
    total = jnp.square(jnp.where(valid[..., None], x, 0)).sum()
    return total / jnp.maximum(valid.sum(dtype=x.dtype) * x.shape[-1], 1)
