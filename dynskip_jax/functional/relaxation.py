"""Relaxed choices: weights of the last K states through which the agent receives a gradient.

The score-function estimator is unbiased, but has a high variance. With a relaxation, the gradient
of the loss flows through all states that could have entered. It is biased for the sampled policy,
but has a low variance.
"""

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Relaxation = Literal["soft", "gumbel_softmax", "straight_through", "reinmax"]
RELAXATIONS: tuple[str, ...] = get_args(Relaxation)
# These relax samples of π itself: their τ is that of the relaxation, and does not change π.
_RELAXED_SAMPLES = ("gumbel_softmax", "straight_through", "reinmax")


def policy_temperature(mode: str, temperature: Any) -> Any:
    """Return the number that divides the logits of π if choices are made in this mode."""
    return 1.0 if mode in _RELAXED_SAMPLES else temperature


def bounded_temperature(temperature: Any, dtype: Any) -> Float[Array, ""]:
    """Return τ in `dtype`, at least 1e-6, or 0.09 in float16.

    Logits divided by less, or by its square in the derivative, leave the range of the dtype.
    """
    smallest = max(1e-6, float(jnp.finfo(dtype).tiny) ** 0.25)
    return jnp.maximum(jnp.asarray(temperature, dtype), jnp.asarray(smallest, dtype))


def relaxed_weights(
    log_probs: Float[Array, "*batch K"],
    noise: Float[Array, "*batch K"] | None,
    relaxation: str,
    temperature: float | Float[Array, ""] = 1.0,
) -> Float[Array, "*batch K"]:
    """Return the weights of the K states, which sum to 1.

    With π = softmax(log_probs), g the noise, and τ the temperature:

    * `soft`: softmax(log π / τ); at τ = 1 this is attention.
    * `gumbel_softmax`: softmax((log π + g) / τ) (Jang et al. 2017; Maddison et al. 2017).
    * `straight_through`: one-hot of a sample, with the derivative of `gumbel_softmax` (Jang et al.
      2017).
    * `reinmax`: one-hot of a sample, with a second-order derivative, Heun's method (Liu et al.
      2023).

    `log_probs` is normalised log π in nats, and `noise` the result of `choice_noise`, which `soft`
    does not use. The weights are in the dtype of the noise if there is any.
    """
    if relaxation == "soft":
        return jax.nn.softmax(log_probs / temperature, axis=-1)
    log_probs = log_probs.astype(noise.dtype)  # noise is float32 at least
    temperature = jnp.asarray(temperature, noise.dtype)
    scores = log_probs + noise
    if relaxation == "gumbel_softmax":
        return jax.nn.softmax(scores / temperature, axis=-1)
    one_hot = jax.nn.one_hot(
        jnp.argmax(scores, axis=-1), log_probs.shape[-1], dtype=log_probs.dtype
    )
    if relaxation == "straight_through":
        return _with_derivative_of(one_hot, jax.nn.softmax(scores / temperature, axis=-1))
    # Liu et al. (2023), Algorithm 2: π_1 is the mean of the sample and π_τ, as a function of the
    # same logits.
    probs = jnp.exp(log_probs)
    mean = jnp.log((one_hot + jax.nn.softmax(log_probs / temperature, axis=-1)) / 2)
    pi_1 = jax.nn.softmax(jax.lax.stop_gradient(mean - log_probs) + log_probs, axis=-1)
    return _with_derivative_of(one_hot, 2 * pi_1 - probs / 2)


def _with_derivative_of(
    value: Float[Array, "*batch K"], smooth: Float[Array, "*batch K"]
) -> Float[Array, "*batch K"]:
    """Return `value`, with the derivative of `smooth`."""
    return jax.lax.stop_gradient(value) + (smooth - jax.lax.stop_gradient(smooth))
