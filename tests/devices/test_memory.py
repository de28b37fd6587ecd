"""Check the memory of a compiled program: its arguments and results, and what it needs to run."""

import jax
import jax.numpy as jnp

from dynskip_jax.devices.memory import memory_line, program_memory


def test_arguments_results_and_work_are_counted():
    x = jnp.zeros((512, 512), jnp.float32)  # 1 MiB
    kept = program_memory(jax.jit(lambda x: jnp.sin(x)), x)
    assert kept.arguments == 2 * 2**20
    given = program_memory(jax.jit(lambda x: jnp.sin(x), donate_argnums=0), x)
    assert given.arguments == 2**20
    # The whole product has to be in memory before it is sorted.
    worked = program_memory(jax.jit(lambda x: jnp.sort((x @ x).ravel())[0]), x)
    assert worked.work >= 2**20
    assert x.is_deleted() is False  # nothing was run


def test_line_says_gibibytes():
    line = memory_line(program_memory(jax.jit(lambda x: x + 1), jax.ShapeDtypeStruct((2**28,), jnp.float32)))
    assert line == "memory: 2.00 GiB on each device (state and batch 2.00, work 0.00)"
