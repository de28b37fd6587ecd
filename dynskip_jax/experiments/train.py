"""The command `train`: choose devices, load the data, and train the models of an experiment."""

import contextlib
import dataclasses
import logging
import math
import os
from collections.abc import Sequence
from pathlib import Path

import jax

from dynskip_jax.data.word_vectors import vector_width
from dynskip_jax.devices.compilation_cache import keep_compiled_programs
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.devices.parallel import Parallel, make_parallel
from dynskip_jax.devices.processes import Processes, connect
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.experiment import Experiment
from dynskip_jax.experiments.model_spec import ModelSpec, make_spec
from dynskip_jax.experiments.run import run
from dynskip_jax.experiments.settings import Devices, Resolved, Settings, continued
from dynskip_jax.training.folder import RunDir

logger = logging.getLogger(__name__)

_TURNS = 4  # approximate number of virtual devices that take turns on a core of a CPU


def train(kind: type[Experiment], resolved: Resolved) -> None:
    """Train the models that settings name, in their run folders."""
    settings = with_width_of_vectors(_settings_for(kind, resolved), resolved)
    experiment = kind(settings)
    # Unknown names raise an error before anything starts.
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
    """Return the settings of a command; a resumed run that is older than some of them keeps its behaviour."""
    folder = resolved.settings.run.run_dir
    if folder is None or not (Path(folder) / "config.json").exists():
        return resolved.settings
    config = RunDir.existing(folder).config()
    if config.get("experiment") != kind.name:
        return resolved.settings  # another error follows
    return continued(resolved, config.get("settings") or {})


def with_width_of_vectors(settings: Settings, resolved: Resolved) -> Settings:
    """Return settings whose embeddings have the size of the word vectors, unless a flag gives the size."""
    path = getattr(settings.data, "embeddings", None)
    if path is None or not resolved.sources["embedding_features"].startswith(("default", "preset")):
        return settings
    model = dataclasses.replace(settings.model, embedding_features=vector_width(path))
    return dataclasses.replace(settings, model=model)


def join(flags: Devices, num_models: int = 1) -> Processes:
    """Connect the processes that the flags name; call this before JAX initializes its devices.

    Every process keeps the memory that it frees. A single process also caches its compiled programs on disk.
    Several processes do not: the first one could find a program in its cache that the others compile, and on
    GPUs they compile together.

    Args:
        flags: Settings of the devices and processes.
        num_models: Largest number of models that are trained together.

    Raises:
        UserError: If the flags contradict each other, or the processes do not find each other.
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
    """Return the devices to train on, and how they are used; on a CPU, by default, the cores share the seeds.

    Raises:
        UserError: If there are too few devices, or they cannot share the batch.
    """
    flags = experiment.settings.devices
    # All models use the devices alike, even if a sweep trains more of one model than of another.
    num_models = math.gcd(*(len(spec.all_seeds) for spec in specs))
    devices = flags.devices
    if devices is None and processes.count == 1 and jax.default_backend() == "cpu":
        # Each device gets few seeds, because products of several seeds at once are slow on a CPU. If there
        # are more devices than cores, they take turns. A few turns also even out different durations.
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
    """Return a description of the devices that train, as in `2 of 8 cpu device(s)`."""
    platform = chosen.devices[0].platform
    line = f"{len(chosen.devices)} of {jax.device_count()} {platform} device(s)"
    return line if chosen.processes.count == 1 else f"{line}, {chosen.processes.count} processes"


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _make_cpu_devices(count: int) -> None:
    """Make JAX split the CPU into virtual devices, so that each can train some of the seeds.

    The cores are used badly if they share one small matrix product. A number of devices that the user sets
    (`XLA_FLAGS`, `JAX_NUM_CPU_DEVICES`) stays unchanged.
    """
    if "xla_force_host_platform_device_count" in os.environ.get("XLA_FLAGS", ""):
        return
    if jax.config.jax_num_cpu_devices == -1:
        with contextlib.suppress(RuntimeError):  # JAX is in use already, in a notebook
            jax.config.update("jax_num_cpu_devices", count)
