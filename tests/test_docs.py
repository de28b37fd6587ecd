"""The documentation's code: it runs, and what it makes trains and has right gradients."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax import functional as F

DOCS = Path(__file__).parents[1] / "docs"


@pytest.fixture(scope="module")
def own_pieces():
    """The names that the page's code defines."""
    names = {"__name__": "own_pieces"}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / "own_pieces.md").read_text(), re.DOTALL):
        exec(compile(code, "own_pieces.md", "exec"), names)
    return names


def test_a_transition_of_ones_own_trains_in_a_stack(own_pieces):
    errors = own_pieces["errors"]
    assert np.mean(errors[-10:]) < 0.35 * errors[0]


@pytest.mark.parametrize("depth_skip", [F.GatedToOutput(), F.ToInternal()], ids=["output", "internal"])
def test_its_fused_gradients_are_those_of_autodiff(own_pieces, depth_skip):
    for skip in (F.Dynamic(5, 0.5), own_pieces["Farthest"](4, 0.5)):
        with jax.enable_x64(True):
            recurrence = F.Recurrence(skip, own_pieces["MGU"](), depth_skip)
            params = recurrence.init(jax.random.key(0), 4, 6, init=F.Initializers(dtype=jnp.float64))
            x = jax.random.normal(jax.random.key(1), (3, 9, 4))
            below = jax.random.normal(jax.random.key(2), (3, 9, 6))
            zeros = F.zero_state(recurrence.transition, (3, 6), jnp.float64)
            carry = F.initial_carry(jax.random.split(jax.random.key(3), 3), recurrence, zeros)

            def loss(params, implementation, recurrence=recurrence, carry=carry, x=x, below=below):
                settings = dict(below=below, implementation=implementation)
                out = F.unroll(params, carry, x, recurrence, **settings)[1]
                return jnp.sum(jnp.sin(out.h)) + jnp.sum(out.decision.log_prob)

            fused, reference = (
                jax.jit(jax.grad(loss), static_argnums=1)(params, n) for n in ("fused", "reference")
            )
            for a, b in zip(jax.tree.leaves(fused), jax.tree.leaves(reference), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
                assert np.abs(a).max() > 0
