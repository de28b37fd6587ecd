"""The command `train`: devices, data, and one experiment's models."""

import contextlib
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import jax

from dynskip_jax.devices.compilation_cache import keep_compiled_programs
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.devices.parallel import Parallel, make_parallel
from dynskip_jax.devices.processes import Processes, connect
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.experiment import Experiment
from dynskip_jax.experiments.model_spec import ModelSpec, make_spec
from dynskip_jax.experiments.run import run
from dynskip_jax.experiments.settings import Devices, Resolved, Settings, continued
from dynskip_jax.runs.run_dir import RunDir

logger = logging.getLogger(__name__)

_TURNS = 4  # devices that take turns on a core of a CPU, roughly


def train(kind: type[Experiment], resolved: Resolved) -> None:
    """Train the models that settings name, in their run folders."""
    settings = _settings_for(kind, resolved)
    experiment = kind(settings)
    # What is not known is said before anything is started.
    specs = [
        make_spec(name, experiment.settings, import_code=True)
        for name in settings.run.models(kind.default_model)
    ]
    with join(settings.devices, max(len(spec.all_seeds) for spec in specs)) as processes:
        if not processes.first:
            logging.getLogger("dynskip_jax").setLevel(logging.ERROR)
        parallel = choose_devices(experiment, specs, processes)
        data = experiment.load_data()
        sizes = ", ".join(f"{name} {size:,}" for name, size in data.sizes.items())
        logger.info("data: %s, %s (%s)", data.name, data.source, sizes)
        for line in experiment.describe_data(data):
            logger.info("%s", line)
        chosen = "the default" if resolved.sources["preset"] == "default" else "as asked"
        logger.info("preset: %s (%s); %s", settings.run.preset, chosen, devices_line(parallel))
        run(experiment, specs, data, settings.run.run_dir, parallel=parallel)


def _settings_for(kind: type[Experiment], resolved: Resolved) -> Settings:
    """Return the settings of a command; a run folder that is older than some of them keeps its behaviour."""
    folder = resolved.settings.run.run_dir
    if folder is None or not (Path(folder) / "config.json").exists():
        return resolved.settings
    config = RunDir.existing(folder).config()
    if config.get("experiment") != kind.name:
        return resolved.settings  # another error
    return continued(resolved, config.get("settings") or {})


def join(flags: Devices, num_models: int = 1) -> Processes:
    """Joins the processes that the flags name; JAX must not have been asked for its devices before.

    Every process keeps the memory it frees. A process alone also keeps its compiled programs for the next
    start. Several do not: the first one would find them in its folder where others compile, and on GPUs they
    compile together.

    Raises:
        UserError: the flags make no sense together, or the processes do not find each other.
    """
    given = (flags.coordinator, flags.process_id, flags.process_count)
    if given != (None, None, None) and flags.parallel == "pmap":
        raise UserError("--parallel pmap drives one process: leave it out, or --coordinator")
    keep_freed_memory()
    processes = connect(*given, heartbeat_seconds=flags.heartbeat_seconds)
    if processes.count == 1:
        keep_compiled_programs()
        _make_cpu_devices(max(_num_cores(), num_models))
    return processes


def choose_devices(experiment: Experiment, specs: Sequence[ModelSpec], processes: Processes) -> Parallel:
    """Returns the devices asked for and how they are driven; on a CPU, by default, its cores share the seeds.

    Raises:
        UserError: there are not so many, or they cannot share the batch.
    """
    flags = experiment.settings.devices
    # All models are driven alike, also where a sweep makes more of one than of another.
    num_models = math.gcd(*(len(spec.all_seeds) for spec in specs))
    devices = flags.devices
    if devices is None and processes.count == 1 and jax.default_backend() == "cpu":
        # Few seeds for each: products of several at once are slow on a CPU. Where there are more devices than
        # cores, they take turns; a few turns also even out that some are finished before others.
        fitting = [n for n in range(1, jax.device_count() + 1) if num_models % n == 0]
        devices = min(fitting, key=lambda n: abs(n - _TURNS * _num_cores()))
    return make_parallel(
        devices,
        flags.parallel,
        num_seeds=num_models,
        batch_size=experiment.settings.training.batch_size,
        processes=processes,
    )


def devices_line(chosen: Parallel) -> str:
    """Says which devices train, as in `2 of 8 cpu devices`."""
    platform = chosen.devices[0].platform
    line = f"{len(chosen.devices)} of {jax.device_count()} {platform} device(s)"
    return line if chosen.processes.count == 1 else f"{line}, {chosen.processes.count} processes"


def _num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_cpu_devices(count: int) -> None:
    """Lets JAX see the CPU as several devices, each to have seeds of its own: small products share badly.

    Where the user says how many there are (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`), that is left as it is.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if jax.config.jax_num_cpu_devices == -1:
        with contextlib.suppress(RuntimeError):  # JAX is in use already, in a notebook
            jax.config.update("jax_num_cpu_devices", count)
