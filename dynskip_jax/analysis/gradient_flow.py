"""How much of a loss's gradient reaches back to each earlier state: Gui et al. (2019), Figure 4."""

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
    """‖∂L_T/∂h_t‖ for each step t of each sequence: the total derivative, along every path from h_t to L_T.

    Choices are those that the policy makes; through how they are made no gradient flows, as in training.

    Args:
        params: the layer's weights.
        carry: where to start.
        x: the layer's inputs, sequences of the same length T.
        recurrence: what the layer computes.
        last_loss: L_T of each sequence, given h_T.
        policy: how choices are made.
        of: which array of the state, such as `h` or `c`.

    Raises:
        UserError: the state has no such array, or the layer has a skip over depth.
    """
    fields = recurrence.transition.state._fields
    if of not in fields:
        raise UserError(
            f"the state of {type(recurrence.transition).__name__} has {', '.join(fields)}, no {of}"
        )
    if recurrence.depth_skip is not None:
        raise UserError("gradient norms are those of a layer without a skip over depth")

    def unrolled(nudges: Float[Array, "time batch hidden"]) -> Float[Array, ""]:
        """The sum of all L_T, where each state is moved by a nudge as soon as it is there."""

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
    """The mean over the sequences at each step, as a share of the sum over all steps, as in Figure 4."""
    mean = np.asarray(norms, np.float64).mean(axis=0)
    return mean / mean.sum()
