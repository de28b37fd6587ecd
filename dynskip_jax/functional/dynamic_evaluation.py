"""Dynamic evaluation (Krause et al. 2018): adapt parameters to the text during evaluation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

PyTree = Any


class GradientScale(NamedTuple):
    """The scale of a trained model's gradients on its training text."""

    # root mean square √MS_g of each parameter's gradient, in the structure of the parameters
    rms: PyTree
    mean: Float[Array, ""]  # mean of `rms` over all elements of all parameters


def gradient_scale(mean_squares: PyTree) -> GradientScale:
    """Return the gradient scale, given the mean square MS_g of each parameter's gradient."""
    rms = jax.tree.map(jnp.sqrt, mean_squares)
    leaves = jax.tree.leaves(rms)
    return GradientScale(
        rms, sum(leaf.sum() for leaf in leaves) / sum(leaf.size for leaf in leaves)
    )


def adapt(
    params: PyTree,
    grads: PyTree,
    trained: PyTree,
    scale: GradientScale,
    *,
    learning_rate: Float[Array, ""] | float,
    decay: Float[Array, ""] | float,
    epsilon: Float[Array, ""] | float,
) -> PyTree:
    """Return the parameters after one update: it fits a segment, and decays towards the trained.

    Krause et al. (2018), Section 5, "RMS with a global prior":

        θ - η ∇L / (√MS_g + ε) + λ (θ_g - θ) ⊙ √MS_g / mean(√MS_g).

    As in the authors' code, the decay moves no element past θ_g. Their code averages the means of
    the parameter arrays; this function takes the mean over all elements, as the paper does. A
    parameter whose gradient is always 0, such as an agent's under greedy choices, does not change.

    `params` are θ, adapted to the segments so far, `grads` is the gradient of a segment's mean
    loss, and `trained` are θ_g. The rates are η, λ and ε > 0.
    """

    def update(p, gradient, p_g, rms):
        pull = jnp.minimum(decay * rms / scale.mean, 1.0)
        return p - learning_rate * gradient / (rms + epsilon) + pull * (p_g - p)

    return jax.tree.map(update, params, grads, trained, scale.rms)
