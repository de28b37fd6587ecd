"""Check that the loss takes lengths, directions and kinds of skips from the output of the layers."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from flax import nnx

from dynskip_jax import AgentObjective, SkipLSTM
from dynskip_jax import functional as F
from dynskip_jax.errors import UserError

X = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 2)), jnp.float32)
LENGTHS = jnp.array([5, 3, 1])
VALID = np.arange(5) < np.asarray(LENGTHS)[:, None]
NLL = jnp.asarray(np.random.default_rng(1).exponential(size=(3, 5)), jnp.float32)


def layers(**options):
    """Return layers with uniform weights, drawn by NumPy."""
    abstract = nnx.eval_shape(lambda: SkipLSTM(2, 4, rngs=nnx.Rngs(0), **options))
    graphdef, params = nnx.split(abstract, nnx.Param)
    rng = np.random.default_rng(2)
    draw = lambda leaf: jnp.asarray(rng.uniform(-1, 1, leaf.shape), leaf.dtype)
    return nnx.merge(graphdef, jax.tree.map(draw, params))


def loss_of(objective, out, nll=NLL, **given):
    scheduled = objective.schedule(1).at(0)
    return float(jax.jit(partial(objective.loss, scheduled, **given))(nll, out.decisions))


def test_padded_rows_count_without_a_mask_of_ones_own():
    """Regression: a separate argument `valid=` could be forgotten."""
    objective = AgentObjective(entropy_coef=0.3)
    out = compiled(layers(skip=F.Dynamic(3)))(X, seq_lengths=LENGTHS, rngs=jax.random.key(0))
    found = loss_of(objective, out)
    np.testing.assert_allclose(loss_of(objective, out, jnp.where(VALID, NLL, 1e3)), found, rtol=1e-6)
    expected = 0.0
    for row, length in enumerate(np.asarray(LENGTHS)):
        alone = jax.tree.map(lambda leaf, i=row, n=length: leaf[i : i + 1, :n], out.decisions[0])
        alone = dataclasses.replace(alone, valid=None)
        expected += float(objective.loss(objective.schedule(1).at(0), NLL[row : row + 1, :length], alone))
    np.testing.assert_allclose(found, expected / 3, rtol=1e-5)


def test_steps_that_a_task_leaves_out_are_in_no_sum():
    objective = AgentObjective(entropy_coef=0.3)
    out = compiled(layers(skip=F.Dynamic(3)))(X, seq_lengths=LENGTHS, rngs=jax.random.key(0))
    counted = jnp.asarray(np.arange(5) != 1)[None, :] & jnp.ones((3, 5), bool)
    traces = [trace.where(counted) for trace in out.decisions]
    odd = jnp.where(counted & VALID, NLL, 1e3)
    values = [float(objective.loss(objective.schedule(1).at(0), nll, traces)) for nll in (NLL, odd)]
    np.testing.assert_allclose(*values, rtol=1e-6)
    assert abs(values[0] - loss_of(objective, out)) > 1e-3


def test_layers_that_do_not_sample_and_directions_are_told_by_the_output():
    """The output replaces the former arguments `skips=`, `reverse=` and `both_ways=` of each layer."""
    objective = AgentObjective(entropy_coef=0.0, discount=0.5)
    module = layers(skip=[F.Dynamic(3), F.Attention(3)], bidirectional=True)
    out = compiled(module)(X, seq_lengths=LENGTHS, rngs=jax.random.key(0))
    expected = np.where(VALID, NLL, 0).sum() / 3
    for trace in out.decisions[:2]:  # below a bidirectional layer, an action changes all steps
        log_prob = np.asarray(trace.log_prob)
        for row, length in enumerate(np.asarray(LENGTHS)):
            for t in range(length):
                gain = sum(0.5 ** abs(u - t) * -NLL[row, u] for u in range(length))
                expected -= log_prob[row, t] * gain / 3
    np.testing.assert_allclose(loss_of(objective, out), expected, rtol=1e-5)


@pytest.mark.parametrize("size", [3, 5], ids=["rows", "as many rows as steps"])
def test_layers_that_lead_with_time_have_the_same_loss(size):
    x, nll = (jnp.resize(array, (size, *array.shape[1:])) for array in (X, NLL))
    skip, lengths = F.Dynamic(3), jnp.resize(LENGTHS, size)
    actions = jnp.asarray(np.random.default_rng(3).integers(1, 4, size=(size, 5)))
    objective = AgentObjective(discount=0.5, baseline="batch", entropy_coef=0.3)
    values = []
    for time_major in (False, True):
        turn = jnp.swapaxes if time_major else lambda array, *axes: jnp.asarray(array)
        module = compiled(layers(skip=skip, time_major=time_major))
        out = module(turn(x, 0, 1), seq_lengths=lengths, actions=[turn(actions, 0, 1)])
        values.append(loss_of(objective, out, turn(nll, 0, 1)))
    np.testing.assert_allclose(*values, rtol=1e-5)


@pytest.mark.parametrize("traced", [False, True])
def test_a_skip_rnns_updates_are_paid_for(traced):
    """Regression: without the former argument `skips=`, the cost could be left out."""
    module = layers(skip=[F.SkipRNN(), F.Dynamic(3)])
    out = compiled(module)(X, seq_lengths=LENGTHS, rngs=jax.random.key(0))
    update = np.asarray(out.decisions[0].update)
    assert out.decisions[0].update_is_differentiable and set(np.unique(update[VALID])) <= {0, 1}

    def loss(cost):
        objective = AgentObjective(update_cost=cost)
        call = lambda scheduled: objective.loss(scheduled, NLL, out)
        return float((jax.jit(call) if traced else call)(objective.schedule(1).at(0)))

    np.testing.assert_allclose(loss(0.25) - loss(0.0), 0.25 * update[VALID].sum() / 3, rtol=1e-4)


def test_old_arguments_are_no_arguments():
    objective = AgentObjective()
    out = compiled(layers(skip=F.Dynamic(3)))(X, rngs=jax.random.key(0))
    for name in ("valid", "skips", "reverse", "both_ways"):
        with pytest.raises(TypeError, match=name):
            objective.loss(objective.schedule(1).at(0), NLL, out, **{name: None})


def test_a_loss_of_an_output_without_decisions_is_refused(as_users):
    objective = AgentObjective()
    with pytest.raises(UserError, match="expected the output of a layer"):
        objective.loss(objective.schedule(1).at(0), NLL, jnp.ones((3, 5)))
