"""Strict settings for every test: shapes checked, no silent rank promotion, several devices."""

import importlib.metadata
import os
from pathlib import Path

# Before JAX starts: eight virtual devices, so that code which shards is tested on any machine; and little
# optimization, since tests compile far more than they compute.
os.environ.setdefault(
    "XLA_FLAGS",
    " ".join(
        [
            "--xla_force_host_platform_device_count=8",
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
            "--xla_cpu_parallel_codegen_split_count=1",
            # Half the time to compile; JAX 0.11 has no such choice.
            *["--xla_cpu_use_fusion_emitters=false"] * importlib.metadata.version("jax").startswith("0.10."),
        ]
    ),
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")

import jax
import jaxtyping
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jaxtyping import install_import_hook

jax.config.update("jax_numpy_rank_promotion", "raise")

# Checks every annotated shape and dtype of the library at run time; but not for what users see, who have no
# such checks (tests/nn/users_table.py).
if "DYNSKIP_TEST_AS_USERS" not in os.environ:
    install_import_hook("dynskip_jax", "beartype.beartype")


@pytest.fixture
def as_users():
    """For a test's length none of these checks, which would come before the messages that users read."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """Lets go of compiled programs where there are many: a process has no more than 65,530 memory maps."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory):
    """Keeps compiled programs for the session: runs that are repeated, resumed or compared share them."""
    jax.config.update("jax_compilation_cache_dir", str(tmp_path_factory.mktemp("compiled")))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)  # others are faster compiled
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX asks for the folder only once
