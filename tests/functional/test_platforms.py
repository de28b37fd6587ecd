"""Check that programs for a CPU, a GPU and a TPU weigh states and multiply in the way of their platform."""

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


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_loops_over_k_are_for_the_cpu(platform):
    """On a GPU, a loop over K inside the loop over time would launch a kernel for each state."""
    recurrence = F.Recurrence(F.Mean(5, 0.5))
    assert program(recurrence, "cpu").count("stablehlo.while") > 2
    assert program(recurrence, platform).count("stablehlo.while") == 2


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_copies_of_transposed_weights_are_for_the_cpu(platform):
    recurrence = F.Recurrence()
    assert "dims = [1, 0] : (tensor<4x16xf32>) -> tensor<16x4xf32>" in program(recurrence, "cpu")
    assert "dims = [1, 0] : (tensor<4x16xf32>)" not in program(recurrence, platform)


@pytest.mark.parametrize("platform", ["cpu", "cuda", "tpu"])
def test_no_product_asks_for_the_highest_precision(platform):
    """The highest precision would turn TF32 off."""
    for skip in (F.Attention(3, 0.5, agent="content"), F.Dynamic(3, 0.5, agent="content")):
        assert "HIGHEST" not in program(F.Recurrence(skip), platform)


@pytest.mark.parametrize(("platform", "loops"), [("cpu", 2), ("cuda", 0), ("tpu", 0)])
def test_a_linear_transition_runs_in_parallel_where_it_is_lowered_for_an_accelerator(platform, loops):
    """The default backend of this process, a CPU, has no say."""
    assert program(F.Recurrence(transition=F.MinGRU()), platform).count("stablehlo.while") == loops
