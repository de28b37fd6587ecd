"""Check the AWD-LSTM regularisers: dropout masks and their statistics; AR and TAR against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import and_slow

from dynskip_jax.errors import UserError
from dynskip_jax.functional import awd
from dynskip_jax.functional.awd import activation_regularisation, temporal_activation_regularisation

embedding_dropout, variational_dropout, weight_dropout = map(
    compiled, (awd.embedding_dropout, awd.variational_dropout, awd.weight_dropout)
)

RATES = [0.1, 0.5, 0.65]


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def check_factors(factors, rate):
    """Check that factors are 0 or 1 / (1 - rate), with frequencies within five standard deviations."""
    kept = np.asarray(factors) != 0
    np.testing.assert_allclose(np.asarray(factors)[kept], 1 / (1 - rate), rtol=1e-12)
    assert abs(kept.mean() - (1 - rate)) < 5 * np.sqrt(rate * (1 - rate) / kept.size)


@pytest.mark.parametrize("rate", and_slow(RATES, lambda rate: rate == 0.65))
def test_a_locked_mask_is_that_of_a_sequence_at_all_steps(rate):
    x = normal(0, 40, 7, 50)
    factors = np.asarray(variational_dropout(jax.random.key(1), rate, x)) / x
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), rtol=1e-12)
    check_factors(factors[:, 0], rate)
    assert len({row.tobytes() for row in factors[:, 0] != 0}) == 40  # each sequence has a different mask


def test_with_its_own_key_an_example_is_dropped_alike_whatever_stands_beside_it():
    x, keys = normal(2, 6, 5, 9), jax.random.split(jax.random.key(3), 6)
    whole = np.asarray(variational_dropout(keys, 0.5, x))
    order = np.array([4, 0, 5])
    np.testing.assert_array_equal(variational_dropout(keys[order], 0.5, x[order]), whole[order])
    np.testing.assert_array_equal(variational_dropout(keys[2:3], 0.5, x[2:3]), whole[2:3])
    other = np.where(np.arange(6)[:, None, None] == 1, 7.0, x)
    np.testing.assert_array_equal(np.asarray(variational_dropout(keys, 0.5, other))[2:], whole[2:])
    masks = jax.jit(jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (1, 9))))(keys)
    for b, mask in enumerate(np.asarray(masks)):
        np.testing.assert_allclose(whole[b], np.where(mask, 2 * x[b], 0), rtol=1e-12)


@pytest.mark.parametrize("rate", and_slow(RATES, lambda rate: rate == 0.65))
def test_embedding_dropout_drops_words_wherever_they_occur(rate):
    table = normal(6, 5000, 3)
    dropped = embedding_dropout(jax.random.key(7), rate, table)
    factors = np.asarray(dropped) / table
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), rtol=1e-12)
    check_factors(factors[:, 0], rate)


@pytest.mark.parametrize("rate", and_slow(RATES, lambda rate: rate == 0.65))
def test_weight_dropout_drops_single_weights(rate):
    w = normal(8, 60, 4 * 60)
    factors = np.asarray(weight_dropout(jax.random.key(9), rate, w)) / w
    check_factors(factors, rate)
    kept = factors != 0
    for axis in (0, 1):  # weights are dropped independently along both axes
        assert kept.mean(axis).std() < 2 * np.sqrt(rate * (1 - rate) / kept.shape[axis])


DROPOUTS = {
    "locked": (awd.variational_dropout, (4, 3, 5)),
    "embedding": (awd.embedding_dropout, (12, 5)),
    "weight": (awd.weight_dropout, (5, 20)),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_dropouts_are_unbiased_linear_and_off_without_key_or_rate(name):
    drop, shape = DROPOUTS[name]
    x, key = jax.device_put(normal(10, *shape)), jax.random.key(11)
    assert drop(None, 0.5, x) is x
    assert drop(key, 0.0, x) is x

    @jax.jit
    def of_keys(key, x):
        many = jax.vmap(lambda key: drop(key, 0.3, jnp.ones(shape)))(jax.random.split(key, 4000))
        gradient = jax.grad(lambda x: jnp.sum(jnp.sin(x) * drop(key, 0.3, x)))(x)
        return many.mean(0), drop(key, 0.3, jnp.ones(shape)), gradient

    mean, factors, gradient = of_keys(key, x)
    np.testing.assert_allclose(mean, np.ones(shape), atol=5.5 * np.sqrt(0.3 / 0.7 / 4000))
    # Dropped elements get no gradient, kept ones the scaled gradient.
    np.testing.assert_allclose(gradient, factors * (np.cos(x) * x + np.sin(x)), rtol=1e-9)
    with pytest.raises(UserError, match=r"\[0, 1\), got 1.0"):
        drop(key, 1.0, x)


def slow_ar(x, coef, valid):
    squares = [x[b, t, i] ** 2 for b, t, i in np.ndindex(x.shape) if valid[b, t]]
    return coef * np.mean(squares) if squares else 0.0


def slow_tar(x, coef, valid):
    batch, time, features = x.shape
    squares = [
        (x[b, t, i] - x[b, t + 1, i]) ** 2
        for b, t, i in np.ndindex(batch, time - 1, features)
        if valid[b, t] and valid[b, t + 1]
    ]
    return coef * np.mean(squares) if squares else 0.0


PENALTIES = {
    "AR": (compiled(activation_regularisation), slow_ar),
    "TAR": (compiled(temporal_activation_regularisation), slow_tar),
}


@pytest.mark.parametrize("masked", [False, True])
def test_a_mean_of_many_elements_is_finite_in_float16(masked):
    """Regression: float16 ends at 65,504, so that sums and counts above were infinite."""
    x = np.ones((2, 300, 200), np.float16)
    valid = np.ones(x.shape[:2], bool) if masked else None
    found = compiled(activation_regularisation)(x, 2.0, valid)
    assert found.dtype == np.float16 and found == 2


@pytest.mark.parametrize("name", and_slow(PENALTIES, lambda name: name == "TAR"))
@given(
    # Few shapes, because each one is compiled.
    shape=st.sampled_from([(1, 1, 2), (3, 4, 1), (2, 3, 3)]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=40)
def test_penalties_are_means_over_valid_elements(name, shape, seed):
    penalty, slow = PENALTIES[name]
    rng = np.random.default_rng(seed)
    x, valid = rng.normal(size=shape), rng.random(shape[:2]) < 0.7
    with jax.enable_x64(True):
        everywhere = penalty(x, 2.0)
        np.testing.assert_allclose(everywhere, slow(x, 2.0, np.ones(shape[:2], bool)), rtol=1e-12)
        np.testing.assert_allclose(penalty(x, 0.5, valid), slow(x, 0.5, valid), rtol=1e-12)
        full = penalty(x, 2.0, np.ones(shape[:2], bool))
        np.testing.assert_allclose(full, everywhere, rtol=1e-12)


@pytest.mark.parametrize("name", PENALTIES)
def test_nothing_enters_from_padding_not_even_nan(name):
    penalty, _ = PENALTIES[name]
    valid = np.arange(6)[None] < np.array([6, 3, 0])[:, None]
    x = np.where(valid[..., None], normal(12, 3, 6, 4), np.nan)
    value, gradient = jax.jit(jax.value_and_grad(penalty))(x, 1.0, valid)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    assert (np.asarray(gradient)[~np.asarray(valid)] == 0).all()
    assert (np.asarray(gradient)[np.asarray(valid)] != 0).all()


def test_penalties_are_those_of_the_authors_code():
    torch = pytest.importorskip("torch")
    x = normal(15, 3, 6, 4)
    theirs = torch.tensor(np.asarray(x).swapaxes(0, 1).copy(), requires_grad=True)  # time-major
    for penalty, their_penalty in (
        (activation_regularisation, 2.0 * theirs.pow(2).mean()),
        (temporal_activation_regularisation, 2.0 * (theirs[1:] - theirs[:-1]).pow(2).mean()),
    ):
        value, gradient = jax.jit(jax.value_and_grad(penalty))(x, 2.0)
        np.testing.assert_allclose(value, their_penalty.item(), rtol=1e-12)
        (their_gradient,) = torch.autograd.grad(their_penalty, theirs)
        np.testing.assert_allclose(
            np.asarray(gradient).swapaxes(0, 1), their_gradient.numpy(), rtol=1e-12, atol=1e-15
        )
