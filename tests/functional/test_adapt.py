"""Check the updates of dynamic evaluation against a loop over their definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.functional import adapt, gradient_scale

SHAPES = {"table": (5, 3), "bias": (4,), "w": (2, 3)}


def trees(count):
    rng = np.random.default_rng(0)
    return [{name: jnp.asarray(rng.normal(size=s)) for name, s in SHAPES.items()} for _ in range(count)]


def flat(tree):
    return np.concatenate([np.ravel(tree[name]) for name in SHAPES])


@pytest.mark.parametrize("decay", [0.0, 0.3, 3.0, 1e9])
def test_it_is_its_definition(double_precision, decay):
    """However large the decay is, it moves no element past what was trained."""
    params, grads, trained, past = trees(4)
    scale = gradient_scale(jax.tree.map(jnp.square, past))
    found = adapt(params, grads, trained, scale, learning_rate=0.1, decay=decay, epsilon=1e-3)
    rms = [abs(float(g)) for g in flat(past)]
    mean = sum(rms) / len(rms)
    numbers = zip(flat(params), flat(grads), flat(trained), rms, strict=True)
    expected = [p - 0.1 * g / (r + 1e-3) + min(decay * r / mean, 1) * (p_g - p) for p, g, p_g, r in numbers]
    np.testing.assert_allclose(flat(found), expected, rtol=1e-9, atol=1e-12)
