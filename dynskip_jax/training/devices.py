"""Prepare processes and devices as flags ask for them, before JAX is used."""

import contextlib
import os
import warnings
from pathlib import Path

import jax

from dynskip_jax.config.settings import Devices
from dynskip_jax.errors import UserError
from dynskip_jax.training.mesh import Parallel, make_parallel
from dynskip_jax.training.processes import Processes, connect

_TURNS = 4  # approximate number of virtual devices that take turns on a core of a CPU
_MOST_BYTES = 2 * 2**30  # of compiled programs, above which JAX evicts the least recently used


def join(flags: Devices, num_models: int = 1) -> Processes:
    """Connect the processes that the flags name; call this before JAX initializes its devices.

    A single process also caches its compiled programs on disk. Several processes do not: the first
    one could find a program in its cache that the others compile, and on GPUs they compile
    together.
    """
    if flags.parallel == "pmap" and (flags.coordinator, flags.process) != (None, None):
        raise UserError("--parallel pmap drives one process: leave it out, or --coordinator")
    processes = connect(flags.coordinator, flags.process)
    if processes.count == 1:
        keep_compiled_programs()
        _make_cpu_devices(max(_num_cores(), num_models))
    return processes


def choose_devices(
    flags: Devices, num_models: int, batch_size: int, processes: Processes
) -> Parallel:
    """Return the devices to train on; on a CPU, by default, the cores share the seeds.

    `num_models` is a number that divides how many models each program trains together.
    """
    devices = flags.devices
    if devices is None and processes.count == 1 and jax.default_backend() == "cpu":
        # Each device gets few seeds, because products of several seeds at once are slow on a CPU.
        # If there are more devices than cores, they take turns. A few turns also even out different
        # durations.
        fitting = [n for n in range(1, jax.device_count() + 1) if num_models % n == 0]
        devices = min(fitting, key=lambda n: abs(n - _TURNS * _num_cores()))
    how = dict(num_seeds=num_models, batch_size=batch_size, processes=processes)
    return make_parallel(devices, flags.parallel, **how)


def keep_compiled_programs() -> None:
    """Enable JAX's compilation cache in the user's cache folder, unless the user has set another.

    Call it before anything is compiled.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return
    # Only the user may write here: programs loaded from this folder are executed.
    try:
        folder = Path.home() / ".cache" / "dynskip_jax" / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home directory
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_compilation_cache_max_size", _MOST_BYTES)
    # Cache small programs too: together they take long to compile, and little disk space.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    # An entry that cannot be read (its writer was killed) or written (the disk is full) is compiled
    # instead.
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry", UserWarning
    )


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_cpu_devices(count: int) -> None:
    """Make JAX split the CPU into virtual devices, so that each can train some of the seeds.

    The cores are used badly if they share one small matrix product. A number of devices that the
    user sets (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`) stays unchanged.
    """
    is_set = "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not is_set and jax.config.jax_num_cpu_devices == -1:
        with contextlib.suppress(RuntimeError):  # JAX is in use already, in a notebook
            jax.config.update("jax_num_cpu_devices", count)
