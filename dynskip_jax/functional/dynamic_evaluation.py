"""Dynamic evaluation (Krause et al. 2018): parameters adapt to the text during evaluation."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

PyTree = Any


class GradientScale(NamedTuple):
    """The scale of a trained model's gradients on its training text.

    Attributes:
        rms: √MS_g, the root mean square of each parameter's gradient; a tree like the parameters.
        mean: mean of `rms` over all parameters.
    """

    rms: PyTree
    mean: Float[Array, ""]


def gradient_scale(mean_squares: PyTree) -> GradientScale:
    """Return the scale of gradients with these mean squares."""
    rms = jax.tree.map(jnp.sqrt, mean_squares)
    leaves = jax.tree.leaves(rms)
    return GradientScale(rms, sum(leaf.sum() for leaf in leaves) / sum(leaf.size for leaf in leaves))


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
    """Return parameters moved towards the last segment, and back towards the trained parameters.

    Krause et al. (2018), Section 5, "RMS with a global prior":

        θ - η ∇L / (√MS_g + ε) + λ (θ_g - θ) ⊙ √MS_g / mean(√MS_g).

    As in their code, no element moves past θ_g. Their code takes the mean over the means of the parameter
    arrays; here, as in the paper, it is the mean over all elements. A parameter without a gradient in
    training, such as an agent's under greedy choices, does not change.

    Args:
        params: θ, as adapted so far.
        grads: ∇L, the gradient of a segment's mean loss.
        trained: θ_g, the trained parameters.
        scale: √MS_g and its mean.
        learning_rate: η.
        decay: λ.
        epsilon: ε > 0.

    Returns:
        θ for the next segment.
    """

    def update(p, gradient, p_g, rms):
        pull = jnp.minimum(decay * rms / scale.mean, 1.0)
        return p - learning_rate * gradient / (rms + epsilon) + pull * (p_g - p)

    return jax.tree.map(update, params, grads, trained, scale.rms)
