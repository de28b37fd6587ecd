"""Returns: sums of the rewards with which an action is credited."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dynskip_jax.functional.decisions import DecisionTrace


def reward_to_go(
    rewards: Float[Array, "*batch time"], discount: float = 1.0, *, reverse: bool = False
) -> Float[Array, "*batch time"]:
    """Return G(t) = Σ_{u ≥ t} discount^(u - t) r(u), the rewards that the action at t can still change.

    With `reverse`, for a layer that reads from the end, the sum is over u ≤ t.
    """

    def back(following, reward):
        total = reward + discount * following
        return total, total

    time_major = jnp.moveaxis(rewards, -1, 0)
    nothing = jnp.zeros_like(time_major, shape=time_major.shape[1:])
    if time_major.shape[0]:  # zeros with the sharding of the batch
        nothing = jnp.zeros_like(time_major[0])
    _, totals = jax.lax.scan(back, nothing, time_major, reverse=not reverse)
    return jnp.moveaxis(totals, 0, -1)


def credited(
    trace: DecisionTrace, rewards: Float[Array, "*batch time"], discount: float
) -> Float[Array, "*batch time"]:
    """Return the return of each action of a layer, in the direction in which it reads.

    If a layer above reads in the other direction, an action also changes earlier rewards, and
    G(t) = Σ_u discount^|u - t| r(u).
    """
    later = reward_to_go(rewards, discount, reverse=trace.reverse)
    if not trace.noncausal:
        return later
    return later + reward_to_go(rewards, discount, reverse=not trace.reverse) - rewards
