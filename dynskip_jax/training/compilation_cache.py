"""Cache compiled programs on disk, so that a restarted command does not compile again."""

import os
import warnings
from pathlib import Path

import jax

MAX_BYTES = 2 * 2**30  # above this size JAX evicts the least recently used programs


def keep_compiled_programs() -> Path | None:
    """Enable JAX's compilation cache in the user's cache folder, and return its path.

    Call it before anything is compiled. Return None if the user has set another folder or has
    switched the cache off, with JAX's environment variables, or if the folder cannot be written.
    """
    if (
        jax.config.jax_compilation_cache_dir is not None
        or not jax.config.jax_enable_compilation_cache
    ):
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
        if not cache.is_absolute():  # such a path is ignored (freedesktop.org)
            cache = Path.home() / ".cache"
        folder = cache / "dynskip_jax" / "compiled"
        # Only the user may write here: programs loaded from this folder are executed.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            return None
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ:
        jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # Cache small programs too: together they take long to compile, and little disk space.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # An entry that cannot be read (its writer was killed) or written (the disk is full) is compiled
    # instead.
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning
    )
    return folder
