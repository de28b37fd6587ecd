"""Check the call of cuDNN. JAX's reference LSTM takes its place, because the test machines have no GPU."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import recurrences
from jax import export
from jax.experimental import rnn
from recurrences import BATCH, HIDDEN, INPUT, TIME

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional.engine import cudnn


def problem(skip=F.Previous()):  # noqa: B008 (immutable)
    return recurrences.problem(F.Recurrence(skip), jnp.float32)[:3]


def close(ours, theirs):
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5, strict=True), ours, theirs)


@pytest.fixture
def nvidia(monkeypatch):
    """Imitate a machine with an NVIDIA GPU; programs compiled for the CPU run JAX's reference LSTM."""
    monkeypatch.setattr(cudnn.jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(cudnn.jax, "device_count", lambda: 1)
    monkeypatch.setattr(
        rnn.gpu_rnn, "compute_rnn_workspace_reserve_space_sizes", lambda *sizes: (0, 7), raising=False
    )


@pytest.mark.parametrize(
    ("lengths", "reverse"),
    [pytest.param(None, False, marks=pytest.mark.slow), ((TIME, 0, 4), True), ((0, 0, 0), False)],
)
def test_outputs_carry_and_gradients_are_those_of_the_reference_unroll(nvidia, lengths, reverse):
    """Padding has no effect, not even NaN in empty sequences."""
    params, carry, x = problem()
    spoilt = x
    if lengths is not None:
        lengths = jax.device_put(np.array(lengths, np.int32))
        spoilt = jnp.where((np.arange(TIME) < np.asarray(lengths)[:, None])[..., None], x, jnp.nan)
    options = dict(seq_lengths=lengths, reverse=reverse)

    def loss(params, x, implementation):
        end, out = F.unroll(params, carry, x, F.Recurrence(), implementation=implementation, **options)
        return jnp.sum(jnp.sin(out.h)) + jnp.sum(end.slots.c * end.slots.h), (end._replace(key=None), out)

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True), static_argnums=2)
    ours, theirs = gradient(params, x, "reference"), gradient(params, spoilt, "cudnn")
    close(ours, theirs)


def test_models_stacked_by_vmap_run_one_after_another(nvidia):
    params, carry, x = problem()
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)

    def loss(params, implementation):
        out = F.unroll(params, carry, x, F.Recurrence(), implementation=implementation)[1]
        return jnp.sum(jnp.sin(out.h))

    of_all = jax.jit(jax.vmap(jax.value_and_grad(loss), (0, None)), static_argnums=1)
    close(of_all(stacked, "cudnn"), of_all(stacked, "fused"))


def which(params, carry, x, recurrence=F.Recurrence(), **options):  # noqa: B008 (immutable)
    """Return whether the implementation "auto" uses cuDNN."""
    program = jax.make_jaxpr(
        lambda params, carry, x: F.unroll(params, carry, x, recurrence, implementation="auto", **options)
    )(params, carry, x)
    return "rnn_fwd" in str(program)


def test_auto_takes_cudnn_where_it_fits_and_never_raises(nvidia, monkeypatch):
    params, carry, x = problem()
    assert which(params, carry, x)
    assert which(params, carry, x, seq_lengths=jnp.array([TIME, 0, 2]), reverse=True)
    for args, options in (
        ((carry._replace(recurrent_mask=jnp.ones((BATCH, HIDDEN))), x), {}),
        ((carry, x.astype(jnp.bfloat16)), {}),
        ((carry, x[:, :0]), {}),
        ((carry, x), dict(return_cell_state=True)),
        ((carry, x), dict(segment_ids=jnp.zeros((BATCH, TIME), jnp.int32))),
        ((carry, x), dict(recurrence=F.Recurrence(transition=F.LSTM(activation_fn=jax.nn.relu)))),
        ((problem(F.Fixed(3))[1], x), dict(recurrence=F.Recurrence(F.Fixed(3)))),
    ):
        assert not which(params, *args, **options)
    with monkeypatch.context() as patch:
        patch.setattr(cudnn.jax, "device_count", lambda: 2)
        assert not which(params, carry, x)
    with jax.set_mesh(jax.make_mesh((1,), ("data",))):
        assert not cudnn.fits(params, carry, x, F.Recurrence())
    monkeypatch.setattr(cudnn.jax, "default_backend", lambda: "cpu")
    assert not which(params, carry, x) and not cudnn.fits(params, carry, x, F.Recurrence())


def test_shapes_that_are_not_known_are_fused(nvidia):
    params, carry, x = problem()
    (time,) = export.symbolic_shape("time")
    example = jax.ShapeDtypeStruct((BATCH, time, INPUT), jnp.float32)
    program = export.export(jax.jit(lambda x: F.unroll(params, carry, x, F.Recurrence())[1].h))(example)
    assert program.call(x).shape == (BATCH, TIME, HIDDEN)


@pytest.mark.parametrize(
    ("skip", "why"),
    [
        (F.Previous(), "needs an NVIDIA GPU, not a cpu"),
        (F.Fixed(3), "no skips over time or depth"),
        (F.Previous(max_skip=3), "no skips over time or depth"),
        (type("Own", (F.Previous,), {"writes_all": False})(), "no skips over time or depth"),
    ],
)
def test_what_cudnn_cannot_do_is_said(skip, why):
    params, carry, x = problem(skip)
    with pytest.raises(UserError, match=why):
        F.unroll(params, carry, x, F.Recurrence(skip), implementation="cudnn")
