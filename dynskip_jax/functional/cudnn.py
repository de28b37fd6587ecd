"""The plain LSTM's unroll by cuDNN, on NVIDIA GPUs; what it computes is that of the other unrolls."""

import jax
import jax.numpy as jnp
from jax.experimental import rnn
from jaxtyping import Array, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.recurrence import LayerParams, Recurrence, SkipCarry, SkipOutput
from dynskip_jax.functional.time_skips import Decision, Previous
from dynskip_jax.functional.transitions import LSTM, LSTMParams, LSTMState


def cudnn_unroll(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
) -> tuple[SkipCarry, SkipOutput]:
    """Does what `unroll` does, for a plain LSTM in float32 without recurrent dropout.

    Args:
        params: the layer's weights.
        carry: the state to start from.
        x: inputs, (batch, time, in).
        recurrence: an LSTM with no skips.
        seq_lengths: true lengths, (batch,); cuDNN takes those of at least 1.

    Returns:
        The last carry of each sequence, and the outputs of all steps, (batch, time, ...).

    Raises:
        UserError: the machine, the skip or the options are not those that cuDNN has.
    """
    skip = recurrence.time_skip
    if not isinstance(skip, Previous) or skip.max_skip != 1 or recurrence.depth_skip is not None:
        raise UserError("implementation 'cudnn' has no skips over time or depth: use 'fused'")
    if recurrence.transition != LSTM():
        raise UserError("implementation 'cudnn' runs an LSTM alone: use 'fused'")
    if carry.recurrent_mask is not None:
        raise UserError("implementation 'cudnn' has no recurrent dropout: use 'fused'")
    if any(leaf.dtype != jnp.float32 for leaf in (*params.transition, x, carry.slots.h)):
        raise UserError("implementation 'cudnn' computes in float32 alone: use 'fused'")
    if jax.default_backend() != "gpu":
        raise UserError(
            f"implementation 'cudnn' needs an NVIDIA GPU, not a {jax.default_backend()}: use 'fused'"
        )
    batch, time, features = x.shape
    hidden = carry.slots.h.shape[-1]
    lengths = jnp.full(batch, time) if seq_lengths is None else seq_lengths
    h, h_last, c_last = rnn.lstm(
        x,
        jnp.swapaxes(carry.slots.h, 0, 1),
        jnp.swapaxes(carry.slots.c, 0, 1),
        cudnn_weights(params.transition),
        lengths.astype(jnp.int32),
        features,
        hidden,
        1,
        0.0,
        False,
    )
    certain = jnp.zeros((batch, time), h.dtype)
    decision = Decision(jnp.ones((batch, time), jnp.int32), certain, certain)
    if seq_lengths is not None:
        valid = jnp.arange(time)[None, :] < seq_lengths[:, None]
        h = jnp.where(valid[..., None], h, 0)
        decision = decision._replace(action=jnp.where(valid, decision.action, 0))
    end = carry._replace(
        slots=LSTMState(jnp.swapaxes(h_last, 0, 1), jnp.swapaxes(c_last, 0, 1)),
        step=carry.step + lengths.astype(carry.step.dtype),
    )
    return end, SkipOutput(h, decision)


def cudnn_weights(params: LSTMParams) -> Float[Array, " weights"]:
    """Packs the weights as `jax.experimental.rnn` takes them: W_ih, W_hh, b_ih, b_hh; gates i, f, g, o."""

    def reordered(gates: Float[Array, "*rows four_hidden"]) -> Float[Array, "*rows four_hidden"]:
        g, i, f, o = jnp.split(gates, 4, axis=-1)
        return jnp.concatenate([i, f, g, o], axis=-1)

    w_x, w_h, b = (reordered(leaf) for leaf in params)
    return jnp.concatenate([w_x.T.ravel(), w_h.T.ravel(), b, jnp.zeros_like(b)])
