"""Check the updates of dynamic evaluation against loops over their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dynskip_jax.functional import adapt, gradient_scale

pytestmark = pytest.mark.usefixtures("double_precision")
SHAPES = {"table": (5, 3), "bias": (4,), "w": (2, 3)}


def trees(seed, count):
    rng = np.random.default_rng(seed)
    return [
        {name: jnp.asarray(rng.normal(size=shape)) for name, shape in SHAPES.items()} for _ in range(count)
    ]


def flat(tree):
    return np.concatenate([np.ravel(tree[name]) for name in SHAPES])


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    learning_rate=st.floats(0, 1),
    decay=st.floats(0, 3),
    epsilon=st.floats(1e-6, 1),
)
def test_it_is_its_definition(seed, learning_rate, decay, epsilon):
    params, grads, trained, past = trees(seed, 4)
    squares = jax.tree.map(jnp.square, past)
    found = adapt(
        params,
        grads,
        trained,
        gradient_scale(squares),
        learning_rate=learning_rate,
        decay=decay,
        epsilon=epsilon,
    )
    rms = [abs(float(g)) for g in flat(past)]
    mean = sum(rms) / len(rms)
    numbers = zip(flat(params), flat(grads), flat(trained), rms, strict=True)
    expected = [
        p - learning_rate * g / (r + epsilon) + min(decay * r / mean, 1) * (p_g - p)
        for p, g, p_g, r in numbers
    ]
    np.testing.assert_allclose(flat(found), expected, rtol=1e-9, atol=1e-12)


def test_without_gradient_it_returns_to_what_was_trained_and_no_further():
    params, trained, past = trees(0, 3)
    scale = gradient_scale(jax.tree.map(jnp.square, past))
    zeros = jax.tree.map(jnp.zeros_like, params)
    rates = dict(learning_rate=0.1, epsilon=1e-5)
    before = abs(flat(params) - flat(trained))
    after = abs(flat(adapt(params, zeros, trained, scale, decay=0.3, **rates)) - flat(trained))
    assert (after < before).all()
    np.testing.assert_allclose(flat(adapt(params, zeros, trained, scale, decay=1e9, **rates)), flat(trained))
