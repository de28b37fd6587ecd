"""Measure the gradient of the last step's loss with respect to earlier states (Gui et al. 2019, Figure 4)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError


def state_gradient_norms(
    params: F.LayerParams,
    carry: F.SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: F.Recurrence,
    last_loss: Callable[[Float[Array, "batch hidden"]], Float[Array, " batch"]],
    *,
    policy: F.Policy = F.Policy("greedy"),  # noqa: B008 (immutable)
    of: str = "h",
) -> Float[Array, "batch time"]:
    """Return ‖∂L_T/∂h_t‖ for each step t of each sequence.

    It is the norm of the total derivative, along every path from h_t to L_T. The policy makes the choices. As
    in training, no gradient flows through the decisions themselves.

    Args:
        params: Parameters of the layer.
        carry: Carry before the first step.
        x: Inputs of the layer, (batch, time, in). All sequences have the same length T.
        recurrence: Transition and skips of the layer.
        last_loss: Function from h_T, (batch, hidden), to L_T of each sequence, (batch,).
        policy: How choices are made.
        of: Name of the state's array to differentiate with respect to, such as `h` or `c`.

    Returns:
        Norms, (batch, time).

    Raises:
        UserError: The state has no array of this name, or the layer has a depth skip.
    """
    fields = recurrence.transition.state._fields
    if of not in fields:
        raise UserError(
            f"the state of {type(recurrence.transition).__name__} has {', '.join(fields)}, no {of}"
        )
    if recurrence.depth_skip is not None:
        raise UserError("gradient norms are those of a layer without a skip over depth")

    def unrolled(nudges: Float[Array, "time batch hidden"]) -> Float[Array, ""]:
        """Return the sum of all L_T, where `nudges` are added to the new states before they are used."""

        def step(carry, given):
            inputs, nudge = given
            after, _ = F.recurrent_step(params, carry, inputs, recurrence, policy)
            moved = getattr(after.slots, of).at[:, 0].add(nudge)
            return after._replace(slots=after.slots._replace(**{of: moved})), None

        inputs = F.project_inputs(params, jnp.swapaxes(x, 0, 1), recurrence)
        last, _ = jax.lax.scan(step, carry, (inputs, nudges))
        return last_loss(last.state.h).sum()

    nudges = jnp.zeros((x.shape[1], x.shape[0], carry.state[0].shape[-1]), x.dtype)
    return jnp.linalg.norm(jax.grad(unrolled)(nudges), axis=-1).T


def normalized(norms: Float[Any, "sequences time"]) -> Float[np.ndarray, " time"]:
    """Return the mean norm over sequences at each step, divided by its sum over all steps, as in Figure 4."""
    mean = np.asarray(norms, np.float64).mean(axis=0)
    return mean / mean.sum()
