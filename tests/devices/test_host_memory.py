"""Check that freed memory is kept between steps, by counting page faults."""

import os
import subprocess
import sys

import pytest

from dynskip_jax.devices.host_memory import keep_freed_memory

# Prints the page faults per call. A result takes 64 MB (16,000 pages). The first 30 calls let the heap grow.
PROGRAM = """
import resource
import jax
import jax.numpy as jnp
from dynskip_jax.devices.host_memory import keep_freed_memory

step = jax.jit(lambda x: x + 1.0)
x = jnp.ones((4000, 4000))
kept, before = keep_freed_memory(), 0
for call in range(60):
    if call == 30:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step(x).block_until_ready()
print(kept, (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 30)
"""


@pytest.mark.slow
def test_a_step_gets_the_pages_of_the_one_before():
    settings = ("MALLOC_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    output = subprocess.check_output([sys.executable, "-c", PROGRAM], text=True, env=environment)
    kept, faults = output.split()
    if kept == "False":
        pytest.skip("the C library is not glibc")
    assert float(faults) < 4_000  # it would be 16,000 without kept memory


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_has_set_is_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "2")
    assert not keep_freed_memory()
