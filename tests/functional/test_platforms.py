"""Check that programs for a CPU, a GPU and a TPU weigh states and multiply in the way of their
platform.
"""

import jax
import jax.numpy as jnp
import pytest
from recurrences import problem

from dynskip_jax import functional as F


def program(recurrence, platform):
    params, carry, x, _ = problem(recurrence, jnp.float32)

    def loss(params, x):
        return jnp.sum(F.unroll(params, carry, x, recurrence)[1].h)

    traced = jax.jit(jax.grad(loss, argnums=(0, 1))).trace(params, x)
    return traced.lower(lowering_platforms=(platform,)).as_text()


PLATFORMS = pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])


@PLATFORMS
def test_loops_over_k_and_over_the_time_of_linear_transitions_are_for_the_cpu(platform):
    """On a GPU, a loop over K inside the loop over time would launch a kernel for each state."""
    recurrences = F.Recurrence(F.Mean(5, 0.5)), F.Recurrence(transition=F.MinGRU())
    mean, linear = (
        program(recurrence, platform).count("stablehlo.while") for recurrence in recurrences
    )
    assert linear == (2 if platform == "cpu" else 0)
    assert mean > 2 if platform == "cpu" else mean == 2


@PLATFORMS
def test_copies_of_transposed_weights_are_for_the_cpu(platform):
    is_there = "dims = [1, 0] : (tensor<4x16xf32>) -> tensor<16x4xf32>" in program(
        F.Recurrence(), platform
    )
    assert is_there == (platform == "cpu")


@pytest.mark.parametrize("skip", [F.Attention, F.Dynamic])
def test_no_product_asks_for_the_highest_precision(skip):
    """The highest precision would turn TF32 off."""
    assert "HIGHEST" not in program(F.Recurrence(skip(3, 0.5, agent="content")), "cuda")
