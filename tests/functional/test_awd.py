"""Check dropout: masks and their statistics; and AR and TAR of the AWD-LSTM against loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import compiled
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax import functional as F
from dynskip_jax.errors import UserError

RATE = 0.65
dropout = compiled(F.dropout)
pytestmark = pytest.mark.usefixtures("double_precision")


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize(
    ("shape", "alike"), [((40, 7, 50), (1,)), ((5000, 3), (1,)), ((60, 240), ())], ids=str
)
def test_factors_are_drawn_independently_except_along_some_axes(shape, alike):
    x = normal(0, *shape)
    factors = np.asarray(dropout(jax.random.key(1), RATE, x, alike)) / x
    mask = factors[tuple(slice(0, 1 if axis in alike else None) for axis in range(len(shape)))]
    np.testing.assert_allclose(factors, np.broadcast_to(mask, shape), rtol=1e-12)
    kept = mask != 0
    np.testing.assert_allclose(mask[kept], 1 / (1 - RATE), rtol=1e-12)
    deviation = np.sqrt(RATE * (1 - RATE))
    assert abs(kept.mean() - (1 - RATE)) < 5 * deviation / np.sqrt(kept.size)
    kept = kept.reshape(kept.shape[0], -1)
    for axis in (0, 1) if kept.shape[1] > 1 else ():
        assert kept.mean(axis).std() < 2 * deviation / np.sqrt(kept.shape[axis])


def test_dropout_is_linear_and_off_without_key_or_rate():
    x, key = jax.device_put(normal(10, 4, 3, 5)), jax.random.key(11)
    assert F.dropout(None, 0.5, x) is x
    assert F.dropout(key, 0.0, x) is x

    def loss(x):
        return jnp.sum(jnp.sin(x) * F.dropout(key, 0.3, x))

    gradient, factors = jax.jit(
        lambda x: (jax.grad(loss)(x), F.dropout(key, 0.3, jnp.ones_like(x)))
    )(x)
    # Dropped elements get no gradient, kept ones the scaled gradient.
    np.testing.assert_allclose(gradient, factors * (np.cos(x) * x + np.sin(x)), rtol=1e-9)
    for rate in (1.0, -0.1, float("nan")):
        with pytest.raises(UserError, match=r"\[0, 1\), got"):
            F.dropout(key, rate, x)


def test_with_its_own_key_an_example_is_dropped_alike_whatever_stands_beside_it():
    x, keys = normal(2, 6, 5, 9), jax.random.split(jax.random.key(3), 6)
    whole = np.asarray(dropout(keys, 0.5, x, (1,)))
    order = np.array([4, 0, 5])
    np.testing.assert_array_equal(dropout(keys[order], 0.5, x[order], (1,)), whole[order])
    masks = jax.jit(jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, (1, 9))))(keys)
    np.testing.assert_allclose(whole, np.where(masks, 2 * x, 0), rtol=1e-12)


def slow_ar(x, coef, valid):
    squares = [x[place] ** 2 for place in np.ndindex(x.shape) if valid[place[:2]]]
    return coef * np.mean(squares) if squares else 0.0


def slow_tar(x, coef, valid):
    return slow_ar(x[:, :-1] - x[:, 1:], coef, valid[:, :-1] & valid[:, 1:])


PENALTIES = {
    "AR": (compiled(F.activation_regularisation), slow_ar),
    "TAR": (compiled(F.temporal_activation_regularisation), slow_tar),
}


@pytest.mark.parametrize("name", PENALTIES)
@given(
    # Few shapes, because each one is compiled.
    shape=st.sampled_from([(1, 1, 2), (2, 3, 3)]),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=20)
def test_penalties_are_means_over_valid_elements(name, shape, seed):
    penalty, slow = PENALTIES[name]
    rng = np.random.default_rng(seed)
    x, valid, every = rng.normal(size=shape), rng.random(shape[:2]) < 0.7, np.ones(shape[:2], bool)
    with jax.enable_x64(True):
        np.testing.assert_allclose(penalty(x, 2.0), slow(x, 2.0, every), rtol=1e-12)
        np.testing.assert_allclose(penalty(x, 0.5, valid), slow(x, 0.5, valid), rtol=1e-12)


@pytest.mark.parametrize(
    "mean",
    [
        lambda x, valid: F.activation_regularisation(x, 1.0),
        lambda x, valid: F.activation_regularisation(x, 1.0, valid),
        lambda x, valid: F.pool_states(x, valid, "mean"),
    ],
)
def test_a_mean_of_many_elements_is_finite_in_float16(mean):
    """Regression: float16 ends at 65,504, so that sums and counts above were infinite."""
    x = np.ones((1, 70_000, 2), np.float16)
    found = np.asarray(compiled(mean)(x, np.ones(x.shape[:2], bool)))
    assert found.dtype == np.float16 and (found == 1).all()


@pytest.mark.parametrize("name", PENALTIES)
def test_nothing_enters_from_padding_not_even_nan(name):
    penalty, _ = PENALTIES[name]
    valid = np.arange(6)[None] < np.array([6, 3, 0])[:, None]
    x = np.where(valid[..., None], normal(12, 3, 6, 4), np.nan)
    value, gradient = jax.jit(jax.value_and_grad(penalty))(x, 1.0, valid)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    np.testing.assert_array_equal(np.asarray(gradient).any(axis=-1), valid)
