"""Check gradient descent with momentum against values computed by hand."""

import jax.numpy as jnp
import numpy as np

from dynskip_jax.training.optimizer import make_optimizer


def test_the_direction_before_is_added():
    optimizer = make_optimizer("sgd", clip=5.0, momentum=0.5)
    params = {"w": jnp.ones(2)}
    state = optimizer.init(params)
    one, state = optimizer.update({"w": jnp.array([3.0, 4.0])}, state, params)
    two, _ = optimizer.update({"w": jnp.array([6.0, -8.0])}, state, params)  # clipped to half its norm
    np.testing.assert_allclose(one["w"], [3.0, 4.0], rtol=1e-6)
    np.testing.assert_allclose(two["w"], [3.0 + 1.5, -4.0 + 2.0], rtol=1e-6)
