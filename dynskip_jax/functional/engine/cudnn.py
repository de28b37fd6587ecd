"""The unroll of a plain LSTM with cuDNN, on NVIDIA GPUs. Its results are those of the other unrolls."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap
from jax.experimental import rnn
from jax.extend import backend
from jaxtyping import Array, Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.functional.step import LayerParams, Recurrence, SkipCarry, SkipOutput
from dynskip_jax.functional.time_skips import Decision, Previous
from dynskip_jax.functional.transitions import LSTM, LSTMParams, LSTMState


def fits(params: LayerParams, carry: SkipCarry, x: Any, recurrence: Recurrence, **options: Any) -> bool:
    """Return whether `implementation='auto'` uses cuDNN: it can run the call, and there is only one device.

    XLA does not partition a cuDNN call: with several devices, each one would compute the whole batch. Pass
    `implementation='cudnn'` to use it there anyway. The arguments are those of `misfit`.
    """
    if jax.device_count() > 1 or not jax.sharding.get_abstract_mesh().empty:
        return False
    return misfit(params, carry, x, recurrence, **options) is None


def misfit(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    zoneout_mask: Any = None,
    segment_ids: Any = None,
    return_cell_state: bool = False,
) -> str | None:
    """Return the reason why cuDNN cannot run this call of `unroll`; None if it can.

    The result depends only on static values: options, shapes, dtypes and the default backend.
    """
    skip, platform = recurrence.time_skip, jax.default_backend()
    floats = (*jax.tree.leaves(params.transition), x, *carry.slots)
    reasons = {
        "has no skips over time or depth": type(skip) is not Previous
        or skip.max_skip != 1
        or recurrence.depth_skip is not None,
        "runs only the LSTM, with an output gate and the usual activations": recurrence.transition != LSTM(),
        "has no recurrent dropout": carry.recurrent_mask is not None,
        "has neither segment_ids nor zoneout": segment_ids is not None or zoneout_mask is not None,
        "returns no cell states of all steps": return_cell_state,
        "computes only in float32": any(leaf.dtype != jnp.float32 for leaf in floats),
        "needs shapes that are known and not 0": any(not isinstance(n, int) or n == 0 for n in x.shape),
        f"needs an NVIDIA GPU, not a {platform}": platform != "gpu"
        or "rocm" in backend.get_backend().platform_version.lower(),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def cudnn_unroll(
    params: LayerParams,
    carry: SkipCarry,
    x: Float[Array, "batch time in"],
    recurrence: Recurrence,
    *,
    seq_lengths: Int[Array, " batch"] | None = None,
    **options: Any,
) -> tuple[SkipCarry, SkipOutput]:
    """Run a plain LSTM over all steps; see `unroll`, and `misfit` for the `options`.

    Under `vmap`, the mapped calls run one after another. A program compiled for another platform uses JAX's
    reference implementation instead of cuDNN.
    """
    reason = misfit(params, carry, x, recurrence, **options)
    if reason is not None:
        raise UserError(f"implementation 'cudnn' {reason}: use 'auto' or 'fused'")
    batch, time = x.shape[:2]
    lengths = jnp.full(batch, time, jnp.int32) if seq_lengths is None else seq_lengths.astype(jnp.int32)
    valid = jnp.arange(time)[None, :] < lengths[:, None]
    x = jnp.where(valid[..., None], x, 0)
    # cuDNN rejects sequences of length 0. They run for one step, and its results are replaced afterwards.
    start = jax.tree.map(lambda slots: slots[:, 0], carry.slots)
    h, *last = _lstm(
        x, *(state[None] for state in start), cudnn_weights(params.transition), jnp.maximum(lengths, 1)
    )
    last = LSTMState(
        *(jnp.where((lengths > 0)[:, None], new[0], old) for new, old in zip(last, start, strict=True))
    )
    zeros = jnp.zeros((batch, time), h.dtype)
    output = SkipOutput(jnp.where(valid[..., None], h, 0), Decision(valid.astype(jnp.int32), zeros, zeros))
    slots = jax.tree.map(lambda state: state[:, None], last)
    return carry._replace(slots=slots, step=carry.step + lengths.astype(carry.step.dtype)), output


@jax.custom_vjp
def _lstm(
    x: Float[Array, "batch time in"],
    h_0: Float[Array, "one batch hidden"],
    c_0: Float[Array, "one batch hidden"],
    weights: Float[Array, " weights"],
    lengths: Int[Array, " batch"],
) -> tuple[Array, Array, Array]:
    """Return h of all steps and the last h and c, like `jax.experimental.rnn.lstm`, but also under `vmap`."""
    return _forward(x, h_0, c_0, weights, lengths)[0]


def _sizes(x: Array, h_0: Array) -> tuple[int, int, int, float, bool]:
    """Return the static arguments of `rnn`: input and hidden size, one layer, no dropout, one direction."""
    return x.shape[-1], h_0.shape[-1], 1, 0.0, False


@sequential_vmap
def _forward(x, h_0, c_0, weights, lengths):
    arguments, sizes = (x, h_0, c_0, weights, lengths), _sizes(x, h_0)

    def cudnn(*arguments):
        return rnn.lstm_fwd(*arguments, *sizes, None)

    space = jax.eval_shape(cudnn, *arguments)[1][-1]

    def reference(*arguments):
        outputs = _reference(*arguments)
        return outputs, (*arguments, outputs[0], jnp.zeros(space.shape, space.dtype))

    return jax.lax.platform_dependent(*arguments, cuda=cudnn, default=reference)


@sequential_vmap
def _backward(residuals, gradients):
    sizes = _sizes(*residuals[:2])

    def cudnn(residuals, gradients):
        return rnn.lstm_bwd(*sizes, None, residuals, gradients)[:4]

    def reference(residuals, gradients):
        *floats, lengths = residuals[:5]
        return jax.vjp(lambda *floats: _reference(*floats, lengths), *floats)[1](gradients)

    return jax.lax.platform_dependent(residuals, gradients, cuda=cudnn, default=reference)


def _reference(x, h_0, c_0, weights, lengths):
    sizes = _sizes(x, h_0)
    return rnn.lstm_ref(x, h_0, c_0, *rnn.unpack_lstm_weights(weights, *sizes[:3], sizes[4]), lengths, *sizes)


_lstm.defvjp(_forward, lambda residuals, gradients: (*_backward(residuals, gradients), None))


def cudnn_weights(params: LSTMParams) -> Float[Array, " weights"]:
    """Return W_ih, W_hh, b_ih and b_hh, each with the gates i, f, g, o, as the vector that cuDNN expects."""

    def reorder(gates: Float[Array, "*rows four_hidden"]) -> Float[Array, "*rows four_hidden"]:
        g, i, f, o = jnp.split(gates, 4, axis=-1)
        return jnp.concatenate([i, f, g, o], axis=-1)

    w_x, w_h, b = (reorder(leaf) for leaf in params)
    return jnp.concatenate([w_x.T.ravel(), w_h.T.ravel(), b, jnp.zeros_like(b)])
