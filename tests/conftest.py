"""Configure all tests: no silent rank promotion, several devices, compiled programs cached between
runs.
"""

import functools
import gc
import hashlib
import importlib.metadata
import os
import platform
import re
import signal
from pathlib import Path

# Set before JAX starts: eight virtual devices; XLA optimizes little, because tests mostly compile.
os.environ.setdefault(
    "XLA_FLAGS",
    " ".join(
        [
            "--xla_force_host_platform_device_count=8",
            "--xla_backend_optimization_level=0",
            "--xla_llvm_disable_expensive_passes=true",
            "--xla_cpu_parallel_codegen_split_count=1",
            # Halves the time to compile; newer versions of JAX have no such flag.
            *["--xla_cpu_use_fusion_emitters=false"]
            * importlib.metadata.version("jax").startswith("0.10."),
        ]
    ),
)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("MPLBACKEND", "agg")
# XLA warns on standard error of its own tuning hints when it loads a program; tests check standard
# error.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jaxtyping
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jaxtyping import install_import_hook
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["cpu_time"]

jax.config.update("jax_numpy_rank_promotion", "raise")
# Finding them takes a tenth of the lowering time.
jax.config.update("jax_traceback_in_locations_limit", 0)
# Looking for cycles after each 700 new objects takes a fifth of the tracing time.
gc.set_threshold(50_000)

ROOT = Path(__file__).parents[1]
# Fixtures of finished runs that several test files share; see `tests/experiments/conftest.py`.
SHARED_RUNS = re.compile(r"\b(finished_ptb|compared_ptb)\b")


def pytest_addoption(parser):
    parser.addoption(
        "--check-shapes",
        action="store_true",
        help="Check every annotated shape and dtype of the library at run time (beartype).",
    )


def pytest_configure(config):
    if config.getoption("check_shapes"):
        install_import_hook("dynskip_jax", "beartype.beartype")
        # Beartype warns about Flax's own annotations.
        flax = "ignore::beartype.roar.BeartypeDecorHintPep585DeprecationWarning"
        config.addinivalue_line("filterwarnings", flax)
    if config.pluginmanager.has_plugin("cacheprovider"):  # not with -p no:cacheprovider
        keep_compiled_programs(config.cache.mkdir(f"compiled-{versions()}"))
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:  # as background jobs and nohup have them
            signal.signal(number, handler)


def versions():
    """Return a digest of everything that a compiled program depends on besides its own key."""
    names = ("jax", "jaxlib", "flax", "optax", "numpy")
    parts = [platform.python_version(), platform.machine(), os.environ["XLA_FLAGS"]]
    parts += [importlib.metadata.version(name) for name in names]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def keep_compiled_programs(folder):
    """Make all workers share the compiled programs in `folder`, now and in later runs.

    JAX writes entries in place, so another worker could read half of one: here they are renamed
    when written.
    """
    from jax._src import lru_cache

    def put(cache, key, value):
        entry = cache.path / f"{key}{lru_cache._CACHE_SUFFIX}"
        if not entry.exists():
            unfinished = cache.path / f"{key}.{os.getpid()}.unfinished"
            unfinished.write_bytes(value)
            os.replace(unfinished, entry)

    lru_cache.LRUCache.put = put
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX asks for the folder only once


class ByFile(LoadScopeScheduling):
    """Scheduler that gives each worker whole files, and all files that share finished runs to one
    worker.
    """

    def _split_scope(self, nodeid):
        return scope_of(nodeid.partition("::")[0])


@functools.cache
def scope_of(file):
    return (
        "finished runs" if SHARED_RUNS.search((ROOT / file).read_text(encoding="utf-8")) else file
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return ByFile(config, log)


@pytest.fixture
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def as_users():
    """Switch off the checks of `--check-shapes`, which would raise before the errors that users
    see.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """Clear compiled programs when there are many: a process can have at most 65,530 memory
    maps.
    """
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > 20_000:
        jax.clear_caches()
