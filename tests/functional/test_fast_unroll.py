"""The unroll with a derivative of its own against the scan of the readable step."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError
from dynskip_jax.functional import fused

BATCH, TIME, INPUT, HIDDEN, UNITS = 3, 7, 2, 4, 5

SKIPS = {
    "lstm": F.Previous(),
    "lstm-mixed": F.Fixed(1, 0.3),
    **{
        f"{kind}:3 {mix}": F.TimeSkip(kind, 3, mix)
        for kind, mix in itertools.product(("fixed", "attention", "dynamic"), (1.0, 0.5))
    },
    "attention mean": F.Attention(3, 0.5, agent_input="mean"),
    "attention masked": F.Attention(4, 1.0, empty_slots="masked"),
    "dynamic:1": F.Dynamic(1, 0.5),
    "dynamic mean": F.Dynamic(3, 0.5, agent_input="mean"),
    "dynamic masked": F.Dynamic(4, 0.5, empty_slots="masked"),
    "dynamic carried": F.Dynamic(3, 0.5, first_step="carried"),
    "attention carried": F.Attention(3, 0.5, first_step="carried"),
    "fixed carried": F.Fixed(3, 0.5, first_step="carried"),
    "longer than the sequence": F.Dynamic(12, 0.5),
    "fixed, longer": F.Fixed(12, 0.5),
    "released": F.Dynamic(4, 1.0, agent_input="mean", first_step="carried"),
}


def problem(skip, dtype=jnp.float64, seed=0, steps=0):
    """Weights, a carry whose slots all differ, and inputs."""
    keys = iter(jax.random.split(jax.random.key(seed), 12))
    draw = lambda *shape: jax.random.normal(next(keys), shape, dtype)
    lstm = F.LSTMParams(draw(INPUT, 4 * HIDDEN), draw(HIDDEN, 4 * HIDDEN), draw(4 * HIDDEN))
    K = skip.max_skip
    agent = F.AgentParams(draw(HIDDEN, UNITS), draw(INPUT, UNITS), draw(UNITS), draw(UNITS, K), draw(K))
    carry = F.SkipCarry(
        h=draw(BATCH, K, HIDDEN),
        c=draw(BATCH, K, HIDDEN),
        step=jnp.full(BATCH, steps, jnp.int32),
        key=jax.random.split(next(keys), BATCH),
    )
    return F.LayerParams(lstm, agent if skip.has_agent else None), carry, draw(BATCH, TIME, INPUT)


def everything(implementation, skip, params, carry, x, mix=None, **options):
    """Outputs, and the gradients of all that has one, of a loss in which every output takes part."""

    def loss(params, h, c, mask, x, mix):
        start = carry._replace(h=h, c=c, recurrent_mask=mask)
        end, out = F.unroll(params, start, x, skip, mix=mix, implementation=implementation, **options)
        parts = [out.h, out.decision.log_prob, out.decision.entropy, end.h, end.c]
        weights = iter(jax.random.split(jax.random.key(9), len(parts)))
        total = sum(jnp.sum(jax.random.normal(next(weights), p.shape, p.dtype) * jnp.sin(p)) for p in parts)
        return total, (end._replace(key=jax.random.key_data(end.key)), out)

    arguments = [params, carry.h, carry.c, carry.recurrent_mask, x, mix]
    wanted = [i for i, a in enumerate(arguments) if a is not None]
    (_, outputs), grads = jax.jit(jax.value_and_grad(loss, argnums=wanted, has_aux=True))(*arguments)
    return outputs, grads


def assert_same(skip, *problem, rtol=1e-10, **options):
    fast = everything("fast", skip, *problem, **options)
    readable = everything("readable", skip, *problem, **options)
    np.testing.assert_array_equal(fast[0][1].decision.action, readable[0][1].decision.action)
    for (path, a), b in zip(jax.tree.leaves_with_path(fast), jax.tree.leaves(readable), strict=True):
        assert a.dtype == b.dtype, path
        scale = max(1.0, float(np.abs(b).max()))
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * scale, err_msg=jax.tree_util.keystr(path))


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", SKIPS)
def test_outputs_and_gradients_equal_those_of_the_readable_step(double_precision, name):
    skip = SKIPS[name]
    assert_same(skip, *problem(skip), seq_lengths=jnp.array((7, 2, 5)))


@pytest.mark.parametrize("name", ["lstm", "fixed:3 0.5", "attention:3 1.0", "dynamic:3 1.0"])
def test_without_lengths_too(double_precision, name):
    assert_same(SKIPS[name], *problem(SKIPS[name]))


@pytest.mark.parametrize("mode", F.RELAXATIONS)
@pytest.mark.parametrize("name", ["dynamic:3 0.5", "dynamic mean", "dynamic masked", "released"])
def test_relaxed_choices_too(double_precision, name, mode):
    options = dict(mode=mode, temperature=jnp.asarray(0.7))
    assert_same(SKIPS[name], *problem(SKIPS[name]), seq_lengths=jnp.array((7, 2, 5)), **options)
    allowed = jnp.array([True] * (SKIPS[name].max_skip - 1) + [False])
    assert_same(SKIPS[name], *problem(SKIPS[name]), policy_mask=allowed, **options)


def test_attention_at_a_temperature(double_precision):
    for name in ("attention:3 0.5", "attention mean", "attention masked"):
        assert_same(SKIPS[name], *problem(SKIPS[name]), temperature=0.7)


@pytest.mark.parametrize("name", ["lstm", "attention mean", "released"])
def test_and_in_float32(name):
    skip = SKIPS[name]
    assert_same(skip, *problem(skip, jnp.float32), seq_lengths=jnp.array((7, 2, 5)), rtol=1e-5)


@pytest.mark.parametrize("name", ["lstm", "attention:3 0.5", "dynamic:3 0.5"])
def test_the_options_of_the_unroll(double_precision, name):
    skip = SKIPS[name]
    params, carry, x = problem(skip, steps=2)
    mask = F.dropout_mask(jax.random.key(3), 0.5, carry.h[:, 0].shape, x.dtype)
    dropped = carry._replace(recurrent_mask=mask)
    lengths = jnp.array((7, 2, 5))
    mix = jnp.asarray(0.3, x.dtype)
    assert_same(skip, params, dropped, x, mix, seq_lengths=lengths, reverse=True, keep_order=True)
    assert_same(skip, params, carry, x[:, :1], seq_lengths=jnp.array((1, 0, 1)))
    if skip.has_agent:
        allowed = np.ones((BATCH, skip.max_skip), bool)
        allowed[0, 1] = allowed[2, :2] = False
        assert_same(skip, params, carry, x, policy_mask=jnp.array(allowed), mode="greedy")
        assert_same(skip, params, carry, x, policy_mask=jnp.array(allowed[0]), seq_lengths=lengths)
    if skip.is_stochastic:
        actions = jax.random.randint(jax.random.key(4), (BATCH, TIME), 1, skip.max_skip + 1)
        assert_same(skip, params, dropped, x, actions=actions, seq_lengths=lengths)


@pytest.mark.parametrize("name", ["lstm", "fixed:3 0.5", "attention:3 0.5", "dynamic:3 0.5"])
def test_mapped_over_seeds_and_mixes_it_is_the_same(double_precision, name):
    skip = SKIPS[name]
    problems = [problem(skip, seed=seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *problems)
    mixes = jnp.array([0.1, 0.5, 1.0])

    def gradient(problem, mix):
        params, carry, x = problem

        def loss(params, x):
            end, out = F.unroll(params, carry, x, skip, mix=mix)
            return jnp.sum(out.h**2) + jnp.sum(out.decision.log_prob) + jnp.sum(end.c)

        return jax.grad(loss, argnums=(0, 1))(params, x)

    together = jax.jit(jax.vmap(gradient))(stacked, mixes)
    for i, (one, mix) in enumerate(zip(problems, mixes, strict=True)):
        alone = gradient(one, mix)
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[i], b, rtol=1e-10, atol=1e-10)


def test_the_ways_to_multiply_by_the_transpose_are_one():
    """Sizes on each side of the limits between them; see `_times_transposed`."""
    for rows, hidden in ((3, 8), (40, 128), (40, 256)):
        w = jax.random.normal(jax.random.key(0), (hidden, 4 * hidden))
        d = jax.random.normal(jax.random.key(1), (rows, 4 * hidden))
        np.testing.assert_allclose(fused._times_transposed(w, rows)(d), d @ w.T, rtol=1e-4, atol=1e-3)


def test_an_unknown_implementation_is_an_error_of_one_line():
    skip = SKIPS["lstm"]
    params, carry, x = problem(skip, jnp.float32)
    with pytest.raises(UserError, match="unknown implementation 'quick': choose fast or readable or cudnn"):
        F.unroll(params, carry, x, skip, implementation="quick")


def test_gradients_reach_what_was_carried_from_the_segment_before(double_precision):
    """Two segments in a row, differentiated together, are one long sequence."""
    for name in ("lstm", "attention:3 0.5", "dynamic:3 0.5"):
        skip = SKIPS[name]
        params, carry, x = problem(skip)

        def loss(params, x, cut, skip=skip, carry=carry):
            end, outputs = carry, []
            for part in jnp.split(x, [cut], axis=1) if cut else [x]:
                end, out = F.unroll(params, end, part, skip)
                outputs.append(out.h)
            return jnp.sum(jnp.sin(jnp.concatenate(outputs, axis=1)))

        gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnums=2)
        whole, halves = gradient(params, x, 0), gradient(params, x, 4)
        for a, b in zip(jax.tree.leaves(halves), jax.tree.leaves(whole), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)
