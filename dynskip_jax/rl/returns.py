"""Returns: sums of the rewards with which an action is credited."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def reward_to_go(rewards: Float[Array, "*batch time"], discount: float = 1.0) -> Float[Array, "*batch time"]:
    """Return G(t) = Σ_{u ≥ t} discount^(u - t) r(u), the rewards that the action at t can still change."""

    def back(following, reward):
        total = reward + discount * following
        return total, total

    time_major = jnp.moveaxis(rewards, -1, 0)
    nothing = jnp.zeros_like(time_major, shape=time_major.shape[1:])
    if time_major.shape[0]:  # zeros with the sharding of the batch
        nothing = jnp.zeros_like(time_major[0])
    _, totals = jax.lax.scan(back, nothing, time_major, reverse=True)
    return jnp.moveaxis(totals, 0, -1)


def reward_before(rewards: Float[Array, "*batch time"], discount: float = 1.0) -> Float[Array, "*batch time"]:
    """Return Σ_{u < t} discount^(t - u) r(u), the rewards of the steps before t."""
    return jnp.flip(reward_to_go(jnp.flip(rewards, -1), discount), -1) - rewards


def noncausal_return(
    rewards: Float[Array, "*batch time"], discount: float = 1.0
) -> Float[Array, "*batch time"]:
    """Return G(t) = Σ_u discount^|u - t| r(u), the return of an action that also changes earlier rewards.

    Actions of a layer change earlier rewards if a layer above reads in the other direction.
    """
    return reward_to_go(rewards, discount) + reward_before(rewards, discount)


def at_last_step(
    reward: Float[Array, ""], valid: Bool[Array, " time"] | None, time: int
) -> Float[Array, " time"]:
    """Return a reward for each step, (time,): `reward` at the last valid step, and 0 at all others.

    Args:
        reward: Terminal reward, a number.
        valid: False past the end of the sequence, (time,); None if all steps are valid. If no step is valid,
            all rewards are 0.
        time: Number of steps.
    """
    steps = jnp.arange(time)
    last = time - 1 if valid is None else jnp.max(jnp.where(valid, steps, -1))
    return jnp.where(steps == last, reward, 0)
