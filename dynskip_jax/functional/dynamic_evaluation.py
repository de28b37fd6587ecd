"""Dynamic evaluation: parameters follow the text that is read (Krause et al. 2018)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

PyTree = Any


class GradientScale(NamedTuple):
    """How large the gradients of a trained model are on its training text.

    Attributes:
        rms: √MS_g, the root of each parameter's mean squared gradient; like the parameters.
        mean: its mean over all parameters.
    """

    rms: PyTree
    mean: Float[Array, ""]


def gradient_scale(mean_squares: PyTree) -> GradientScale:
    """Returns the scale of gradients whose squares have these means."""
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
    """One step towards the segment just read, and back towards what was trained.

    Krause et al. (2018), Section 5, "RMS with a global prior":

        θ - η ∇L / (√MS_g + ε) + λ (θ_g - θ) ⊙ √MS_g / mean(√MS_g).

    As in their code no element is pulled back further than to θ_g. (Their code takes the mean over the means
    of the arrays that the parameters come in; here, as printed, it does not matter what these are.) A
    parameter without gradient in training, such as an agent's under greedy choices, stays as it is.

    Args:
        params: θ, as adapted so far.
        grads: ∇L, of the mean loss of a segment.
        trained: θ_g.
        scale: √MS_g.
        learning_rate: η.
        decay: λ.
        epsilon: ε, above 0.

    Returns:
        θ for the next segment.
    """

    def update(p, gradient, p_g, rms):
        pull = jnp.minimum(decay * rms / scale.mean, 1.0)
        return p - learning_rate * gradient / (rms + epsilon) + pull * (p_g - p)

    return jax.tree.map(update, params, grads, trained, scale.rms)
