"""Fault injection: kills, signals, damaged files, full disks and a lost process, and what comes of each.

    python -m benchmarks.faults --kills 50 --experiment all
    python -m benchmarks.faults --experiment ptb --signals 28 --damage 1 --full-disk 1000 --two-processes 4
    python -m benchmarks.faults --kills 7 --experiment ptb,sst --markdown faults.md

Each experiment is run at a tiny size without any fault, and then with faults at seeded moments. After each,
the same command is given again. Its result, metrics, pictures and the digests of its arrays have to be those
of the run without a fault. Exit status 1: something failed.
"""

import dataclasses
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import filelock

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.cli import run_main
from dynskip_jax.experiments.command_line import read_flags
from dynskip_jax.settings import path_setting, setting

# Modules that a run needs; they are imported once, so that a forked process imports nothing.
_IMPORTED = ("experiments.train", "trained", "models", "tasks", "analysis.arcs", "analysis.page")
_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "MPLBACKEND": "agg",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flags:
    """Command line."""

    experiment: str = setting("all", "Names of experiments, separated by commas; or all.")
    kills: int = setting(0, "Runs of each experiment that are killed, and started again.", at_least=0)
    signals: int = setting(0, "Runs of each that SIGINT, SIGTERM, SIGHUP or SIGUSR1 ends.", at_least=0)
    damage: float = setting(
        0.0, "Share of the damages to files of a finished run that are tried.", at_least=0, at_most=1
    )
    resumed_damage: int = setting(
        0, "Damages to files of a run without a result, which the same command goes on with.", at_least=0
    )
    full_disk: int = setting(
        0, "Writes of each run at which the disk becomes full, evenly spread.", at_least=0
    )
    two_processes: int = setting(0, "Runs of which one of two processes is killed.", at_least=0)
    seed: int = setting(0, "Of moments, places and bits.", at_least=0)
    folder: str | None = path_setting(None, "Where runs and compiled programs are kept; by default nowhere.")
    markdown: str | None = path_setting(None, "A file to write the table to.")


def main() -> None:
    """Run the command line."""
    flags = read_flags("python -m benchmarks.faults", __doc__, Flags, sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        work = Path(flags.folder or temporary).absolute()
        work.mkdir(parents=True, exist_ok=True)
        os.environ.update(_ENVIRONMENT)
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(work / "compiled"))
        try:
            with filelock.FileLock(work / "lock", timeout=0):
                run(flags, work)
        except filelock.Timeout:
            raise UserError(f"faults are injected in {work} already: name another --folder") from None


def run(flags: Flags, work: Path) -> None:
    """Inject the faults, print a line for each outcome, print the table, and exit.

    Raises:
        UserError: If an experiment is unknown.
        SystemExit: Always at the end; the status is 1 if a run did not survive a fault.
    """
    for module in _IMPORTED:
        importlib.import_module(f"dynskip_jax.{module}")
    from benchmarks.faults.outcomes import markdown
    from benchmarks.faults.small_runs import SMALL_RUNS, shrink_generated_data

    names = list(SMALL_RUNS) if flags.experiment == "all" else flags.experiment.split(",")
    for name in names:
        if name not in SMALL_RUNS:
            raise UserError(f"there is no experiment {name!r}: choose {', '.join(SMALL_RUNS)} or all")
    shrink_generated_data()
    outcomes = []
    for name in names:
        for outcome in _outcomes(flags, name, work):
            outcomes.append(outcome)
            said = outcome.problem or outcome.result
            print(f"{outcome.what}, {outcome.fault} ({outcome.details}): {said}", flush=True)
            if flags.markdown is not None:
                Path(flags.markdown).write_text(markdown(outcomes), encoding="utf-8")
    print(markdown(outcomes), end="")
    failed = sum(bool(outcome.problem) for outcome in outcomes)
    print(f"{len(outcomes)} faults, {failed} failed")
    sys.exit(1 if failed else 0)


def _outcomes(flags: Flags, name: str, work: Path) -> Iterator:
    """Yield the outcomes of all faults of an experiment."""
    from benchmarks.faults import damage, full_disk, kills, two_processes

    whole = kills.reference(name, work)
    yield from kills.kills(whole, work, flags.kills, flags.seed)
    yield from kills.signals(whole, work, flags.signals, flags.seed)
    if flags.damage:
        yield from damage.damaged(whole, work, flags.seed, flags.damage)
    yield from damage.damaged_and_resumed(whole, work, flags.resumed_damage, flags.seed)
    if flags.full_disk:
        yield from full_disk.full_disks(whole, work, flags.full_disk)
    yield from two_processes.one_of_two_killed(whole, work, flags.two_processes, flags.seed)


if __name__ == "__main__":
    run_main(main)
