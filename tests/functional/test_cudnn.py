"""The call of cuDNN, with JAX's own reference of it in its place: the test machines have no GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import rnn

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional import cudnn

BATCH, TIME, INPUT, HIDDEN = 3, 6, 2, 4


def problem(skip=None):
    rng = np.random.default_rng(0)
    draw = lambda *shape: jax.device_put(rng.normal(size=shape).astype(np.float32))
    lstm = F.LSTMParams(draw(INPUT, 4 * HIDDEN), draw(HIDDEN, 4 * HIDDEN), draw(4 * HIDDEN))
    state = F.LSTMState(draw(BATCH, HIDDEN), draw(BATCH, HIDDEN))
    recurrence = F.Recurrence(skip or F.Previous())
    carry = F.initial_carry(jax.random.split(jax.random.key(0), BATCH), recurrence, state)
    return F.LayerParams(lstm), carry, draw(BATCH, TIME, INPUT)


@pytest.fixture
def reference(monkeypatch):
    """Stands for a machine with an NVIDIA GPU."""

    def lstm(x, h_0, c_0, weights, seq_lengths, *sizes):
        return rnn.lstm_ref(
            x, h_0, c_0, *rnn.unpack_lstm_weights(weights, *sizes[:3], sizes[4]), seq_lengths, *sizes
        )

    monkeypatch.setattr(cudnn.rnn, "lstm", lstm)
    monkeypatch.setattr(cudnn.jax, "default_backend", lambda: "gpu")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="full", marks=pytest.mark.slow),
        pytest.param({"seq_lengths": (6, 1, 4)}, id="padded", marks=pytest.mark.slow),
        pytest.param({"seq_lengths": (6, 1, 4), "reverse": True, "keep_order": True}, id="reverse"),
    ],
)
def test_outputs_carry_and_gradients_are_those_of_the_reference_unroll(reference, options):
    params, carry, x = problem()
    if "seq_lengths" in options:
        options = options | {"seq_lengths": jax.device_put(np.array(options["seq_lengths"], np.int32))}

    def loss(params, x, implementation):
        end, out = F.unroll(params, carry, x, F.Recurrence(), implementation=implementation, **options)
        return jnp.sum(jnp.sin(out.h)) + jnp.sum(end.slots.c * end.slots.h), (end._replace(key=None), out)

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
    ours, theirs = gradient(params, x, "reference"), gradient(params, x, "cudnn")
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_what_cudnn_cannot_do_is_said(monkeypatch):
    params, carry, x = problem()
    run = lambda carry, skip, x=x: F.unroll(params, carry, x, F.Recurrence(skip), implementation="cudnn")
    with pytest.raises(UserError, match="needs an NVIDIA GPU, not a cpu"):
        run(carry, F.Previous())
    skip = F.Fixed(3)
    with pytest.raises(UserError, match="no skips over time or depth"):
        run(problem(skip)[1], skip)
    with pytest.raises(UserError, match="no skips over time or depth"):
        run(problem(F.Previous(max_skip=3))[1], F.Previous(max_skip=3))
    with pytest.raises(UserError, match="no internal states of all steps"):
        F.unroll(params, carry, x, F.Recurrence(), implementation="cudnn", return_cell_state=True)
    with pytest.raises(UserError, match="no recurrent dropout"):
        run(carry._replace(recurrent_mask=jnp.ones((BATCH, HIDDEN))), F.Previous())
    with pytest.raises(UserError, match="float32 alone"):
        run(carry, F.Previous(), x.astype(jnp.bfloat16))
