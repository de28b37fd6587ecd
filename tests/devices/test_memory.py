"""Check the memory of a compiled program: its arguments and results, and what it needs to run."""

import jax
import jax.numpy as jnp
import pytest

from dynskip_jax.devices.memory import memory_line


@pytest.mark.parametrize(
    ("program", "size", "line"),
    [
        (jax.jit(lambda x: x + 1), 2**28, "2.00 GiB on each device (state and batch 2.00, work 0.00)"),
        (
            jax.jit(lambda x: x + 1, donate_argnums=0),
            2**28,
            "1.00 GiB on each device (state and batch 1.00, work 0.00)",
        ),
        # The whole product has to be in memory before it is sorted.
        (
            jax.jit(lambda x: jnp.sort(x + x)[0]),
            2**28,
            "2.00 GiB on each device (state and batch 1.00, work 1.00)",
        ),
    ],
)
def test_arguments_results_and_work_are_counted(program, size, line):
    assert memory_line(program, jax.ShapeDtypeStruct((size,), jnp.float32)) == f"memory: {line}"
