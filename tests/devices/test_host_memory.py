"""Check that freed memory is kept between steps, by counting page faults."""

import os
import subprocess
import sys

import pytest

from dynskip_jax.devices.host_memory import keep_freed_memory

# Counts page faults per call. A result takes 64 MB (16,000 pages). The first 30 calls let the heap grow.
PROGRAM = """
import resource
import jax
import jax.numpy as jnp
from dynskip_jax.devices.host_memory import keep_freed_memory

step = jax.jit(lambda x: x + 1.0)
x = jnp.ones((4000, 4000))
kept = keep_freed_memory()

def faults(calls):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(calls):
        step(x).block_until_ready()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / calls

faults(30)
print(kept, faults(30))
"""
SETTINGS = ("MALLOC_", "GLIBC_TUNABLES")


@pytest.mark.slow
def test_a_step_gets_the_pages_of_the_one_before():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(SETTINGS)}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    kept, faults = done.stdout.split()
    if kept == "False":
        pytest.skip("the C library is not glibc")
    assert float(faults) < 4_000  # it would be 16,000 without kept memory


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_ARENA_MAX", "2"), ("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")]
)
def test_what_the_user_has_set_is_left_alone(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory()
