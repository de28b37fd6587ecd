"""Compiled programs kept on disk, so that the second start of a command does not compile again."""

import os
import warnings
from pathlib import Path

import jax

MAX_BYTES = 2 * 2**30  # beyond, what was used least recently goes


def keep_compiled_programs() -> Path | None:
    """Lets JAX keep what it compiles in the user's cache folder, unless the user has decided otherwise.

    A folder of the user's own (`$JAX_COMPILATION_CACHE_DIR`, or the JAX setting of that name) is left as it
    is; `JAX_ENABLE_COMPILATION_CACHE=false` switches it off. Call it before anything is compiled.

    Returns:
        The folder: `dynskip_jax/compiled` in `$XDG_CACHE_HOME` or `~/.cache`. None where the user has
        decided, or where no such folder can be written.
    """
    if jax.config.jax_compilation_cache_dir is not None or not jax.config.jax_enable_compilation_cache:
        return None
    try:
        folder = _cache_home() / "dynskip_jax" / "compiled"
        # Nobody else's: what is loaded from there is run.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_COMPILATION_CACHE_MAX_SIZE" not in os.environ:
        jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        # The many small programs take a while together, and little room.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # What cannot be read (its writer was killed) or written (the disk is full) is compiled, and not a word.
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning
    )
    return folder


def _cache_home() -> Path:
    """As freedesktop.org has it: a relative `$XDG_CACHE_HOME` does not count."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".cache"
