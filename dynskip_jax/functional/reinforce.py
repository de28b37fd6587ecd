"""The score-function objective with entropy regularisation, Gui et al. (2019), Eq. 4 and 5."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dynskip_jax.errors import UserError


def reward_to_go(rewards: Float[Array, "*batch time"], discount: float = 1.0) -> Float[Array, "*batch time"]:
    """G(t) = Σ_{u ≥ t} discount^(u - t) r(u), the reward that the action at step t can still influence."""

    def back(following, reward):
        total = reward + discount * following
        return total, total

    time_major = jnp.moveaxis(rewards, -1, 0)
    _, totals = jax.lax.scan(back, jnp.zeros_like(time_major[0]), time_major, reverse=True)
    return jnp.moveaxis(totals, 0, -1)


def reinforce_loss(
    log_probs: Float[Array, " time"],
    rewards: Float[Array, ""] | Float[Array, " time"],
    *,
    valid: Bool[Array, " time"] | None,
    discount: float = 1.0,
    entropy_coef: float | Float[Array, ""] = 1.0,
    baseline: Float[Array, ""] | Float[Array, " time"] | float = 0.0,
) -> Float[Array, ""]:
    """The surrogate -J_2 of one sequence, whose gradient is minus Eq. 5. `jax.vmap` maps it over a batch.

    With a terminal reward R, and β = `entropy_coef` (the paper's is 1),

        loss = -Σ_t log π(a_t | s_t) · stop_gradient(R - β (Σ_t log π(a_t | s_t) + 1) - baseline).

    With per-step rewards the return of step t counts from t on, rewards and entropy alike: what came
    before cannot depend on a(t), so the expected gradient is the same and its variance smaller,

        loss = -Σ_t log π(a_t | s_t) · stop_gradient(G_t - β - baseline_t),
        G_t  = Σ_{u ≥ t} discount^(u - t) (r_u - β log π(a_u | s_u)).

    Args:
        log_probs: log π(a_t | s_t) in nats, (time,); `Decision.log_prob`.
        rewards: R, a number, or r_t, (time,); stopped here.
        valid: False past the end of the sequence, (time,): neither log-probability nor reward counts there;
            None where all steps count. It has no default, for `nnx.RNN` leaves the decisions past the end in
            place (`SkipLayer` sets their log-probabilities to 0).
        discount: of per-step rewards.
        entropy_coef: β; 0 leaves the entropy out.
        baseline: subtracted from the return, a number, or with per-step rewards also one for each step; it
            must not depend on the action it is subtracted for. A baseline for each step beside a terminal
            reward makes that the reward of the last valid step.

    Returns:
        The loss; weight and average it over the batch as Eq. 6 does.

    Raises:
        UserError: shapes are not those of one sequence.
    """
    time = _check_sequence(log_probs, rewards=rewards, baseline=baseline, valid=valid)
    if jnp.ndim(rewards) == 0 and jnp.ndim(baseline) == 1:
        rewards, discount = at_last_step(rewards, valid, time), 1.0
    if valid is not None:
        log_probs = jnp.where(valid, log_probs, 0)
    if jnp.ndim(rewards) == 0:
        returns = rewards - entropy_coef * (log_probs.sum() + 1) - baseline
    else:
        if valid is not None:
            rewards = jnp.where(valid, rewards, 0)
        returns = reward_to_go(rewards - entropy_coef * log_probs, discount) - entropy_coef - baseline
    return -(log_probs * jax.lax.stop_gradient(returns)).sum()


def at_last_step(
    reward: Float[Array, ""], valid: Bool[Array, " time"] | None, time: int
) -> Float[Array, " time"]:
    """A terminal reward as that of a sequence's last valid step; nowhere, if it has none."""
    steps = jnp.arange(time)
    last = time - 1 if valid is None else jnp.max(jnp.where(valid, steps, -1))
    return jnp.where(steps == last, reward, 0)


def _check_sequence(log_probs: Array, **others: Any) -> int:
    """Returns the number of steps of one sequence; what stands beside it is a number or has as many."""
    if jnp.ndim(log_probs) != 1:
        raise UserError(
            f"expected log_probs of one sequence, (time,), got {jnp.shape(log_probs)}: "
            "map the loss over the batch with jax.vmap"
        )
    time = jnp.shape(log_probs)[0]
    for name, value in others.items():
        shapes = ((time,),) if name == "valid" else ((), (time,))
        if value is not None and jnp.shape(value) not in shapes:
            wanted = " or ".join(map(str, shapes))
            raise UserError(f"expected {name} of one sequence, {wanted}, got {jnp.shape(value)}")
    return time


def leave_one_out_mean(
    values: Float[Array, "group *rest"],
    axis_name: str | None = None,
    counted: Bool[Array, "group ..."] | None = None,
) -> Float[Array, "group *rest"]:
    """Return for each member of the first axis the mean of the others: a baseline its own action cannot move.

    Args:
        values: one per member of the group, (group, ...).
        axis_name: the mapped axis (`jax.pmap`) over which the group is divided; None if it is whole.
        counted: False for values that are in no mean, (group,) or (group, ...): rows that only fill a batch,
            and steps past the end of a sequence. None if all count.

    Returns:
        The means, (group, ...); 0 where no other value counts.
    """
    if counted is None:
        own, is_one = values, jnp.ones((), values.dtype)
        size = jnp.asarray(values.shape[0], values.dtype)
    else:
        is_one = counted.astype(values.dtype)
        is_one = is_one.reshape(is_one.shape + (1,) * (values.ndim - is_one.ndim))
        own, size = jnp.where(is_one > 0, values, 0), is_one.sum(axis=0, keepdims=True)
    total = own.sum(axis=0, keepdims=True)
    if axis_name is not None:
        total, size = jax.lax.psum((total, size), axis_name)
    return (total - own) / jnp.maximum(size - is_one, 1)
