"""Kill small runs at random moments, damage finished ones, and check what comes of it.

    python -m benchmarks.kills --experiment recall --kills 40 --damages 100

A run that was killed, and whose command is given again, has to equal one that was not: records,
results, pictures and arrays, bit by bit. A finished run with a damaged file gives the same answer,
or is refused in one line; so is one that a stranger has damaged, with a manifest that fits.
"""

import hashlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks import run_command
from dynskip_jax.config.flags import Natural, Seed
from dynskip_jax.data import recall
from dynskip_jax.storage.manifest import entries_of, read_manifest, write_manifest

# A run of a few seconds of each experiment, and the command that reads all of its files.
_SMALL = "--features 4 --agent-features 2 --batch-size 20"
_COMMANDS = {
    "recall": (f"{_SMALL} --epochs 3 --train-examples 60 --length 32 --model dynamic:9", "explain"),
    "popgym": (f"{_SMALL} --steps 5000 --model dynamic:4", "watch"),
}
_SECONDS = 300  # after which a command counts as hanging


class Ended(NamedTuple):
    """The end of a command: its exit status (or minus a signal), output and duration."""

    status: int
    output: str
    seconds: float

    def problem(self) -> str:
        """Return what is wrong with it, unless it succeeded or was refused in one line."""
        errors = [line for line in self.output.splitlines() if line.startswith("error: ")]
        if self.status == 0 or (self.status == 2 and len(errors) == 1):
            return "a traceback" if "Traceback" in self.output else ""
        return f"status {self.status}: {self.output.strip()[-300:]}"


class Run(NamedTuple):
    """An experiment's command without `--run-dir`, a run of it, and the place of others."""

    arguments: list[str]
    question: str  # the command that reads a finished run
    whole: Path
    copy: Path

    def train(self, *, seconds: float = _SECONDS) -> Ended:
        """Give the command in the copy."""
        return _execute([*self.arguments, "--run-dir", str(self.copy)], seconds)

    def explain(self) -> Ended:
        """Ask the copy for an answer, for which all of its files are read."""
        return _execute([self.arguments[0], self.question, "--run-dir", str(self.copy)])

    def begin(self) -> None:
        """Make the copy that of a run without a fault."""
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.whole, self.copy)


def kill(run: Run, draw: random.Random, seconds: float) -> str:
    """Kill a run once or twice, give its command again, and return what differs."""
    shutil.rmtree(run.copy, ignore_errors=True)
    moments = [draw.random() * seconds for _ in range(draw.choice((1, 1, 2)))]
    for moment in moments:
        ended = run.train(seconds=moment)
        if ended.status != -9 and (problem := ended.problem()):
            return problem
    if problem := run.train().problem():
        return problem
    expected, found = map(_contents, (run.whole, run.copy))
    return ", ".join(name for name in expected if found[name] != expected[name])


def damage(run: Run, draw: random.Random, answer: str) -> str:
    """Damage a file of a finished run, and return what is wrong with the answer."""
    run.begin()
    _damage_a_file(run.copy, draw)
    ended = run.explain()
    if ended.status == 0 and ended.output != answer:
        return "another answer"
    return ended.problem()


def hostile(run: Run, draw: random.Random, answer: str) -> str:
    """Damage a file as a stranger would, and return what is wrong with how it is received."""
    run.begin()
    _damage_a_file(run.copy, draw)
    _forge_manifest(run.copy)
    return run.explain().problem() or run.train().problem()


def _forge_manifest(folder: Path) -> None:
    """Write a manifest that fits the files of a folder as they are now."""
    files = entries_of(folder, folder)
    for unnamed in ("manifest.json", ".lock"):
        files.pop(unnamed, None)
    write_manifest(folder, files)


def _damage_a_file(folder: Path, draw: random.Random) -> None:
    """Flip a bit of a file, truncate or remove it, or exchange it with another."""
    # Pictures are not read, and the lock is empty.
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != "plots" and path.name != ".lock"
    ]
    path = draw.choice(paths)
    data = bytearray(path.read_bytes())
    kind = draw.choice(("flip", "truncate", "remove", "exchange"))
    if kind == "remove" or not data:
        path.unlink()
    elif kind == "flip":
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
    elif kind == "truncate":
        path.write_bytes(data[: draw.randrange(len(data))])
    else:
        other = draw.choice(paths)
        path.write_bytes(other.read_bytes())
        other.write_bytes(data)


def _contents(folder: Path) -> dict[str, Any]:
    """Return what is equal in two finished runs: all except times, dates and paths."""
    files = read_manifest(folder)
    rows = json.loads((folder / "result.json").read_text())["rows"]
    for row in rows:
        del row["wall_seconds"]
    return {
        "result": rows,
        "metrics": files["metrics.jsonl"],
        "arrays": {
            name: entry
            for name, entry in files.items()
            if name.startswith("checkpoints/")
            and not name.endswith(("progress.json", "_CHECKPOINT_METADATA"))
        },
        "pictures": {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in folder.glob("plots/*")
            if not path.name.startswith(("explain", "watch"))
        },
    }


def _execute(arguments: Sequence[str], seconds: float = _SECONDS) -> Ended:
    """Run a command in a fork, which has imported everything; kill it after some seconds."""
    with tempfile.NamedTemporaryFile("r", errors="replace") as log:
        process = multiprocessing.get_context("fork").Process(
            target=_in_child, args=(arguments, log.name)
        )
        began = time.monotonic()
        process.start()
        process.join(seconds)
        process.kill()
        process.join()
        return Ended(process.exitcode, log.read(), time.monotonic() - began)


def _in_child(arguments: Sequence[str], log: str) -> None:
    from dynskip_jax.cli.main import start

    file = os.open(log, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    sys.argv = ["dynskip", *arguments]
    start()


def inject(
    experiment: tuple[Literal["recall", "popgym"], ...] = ("recall",),
    kills: Natural = 40,
    damages: Natural = 100,
    hostile_folders: Natural = 50,
    seed: Seed = 0,
) -> None:
    """Kill and damage small runs of experiments, and check what comes of it.

    Args:
        experiment: Names, separated by commas.
        kills: Runs that are killed, in each experiment.
        damages: Finished runs of which a file is damaged.
        hostile_folders: Folders that are damaged as a stranger would.
    """
    os.environ |= {"JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg"}
    for module in ("runs.train", "runs.load", "models", "tasks", "analysis.plots"):
        importlib.import_module(f"dynskip_jax.{module}")
    recall.DEFAULT_SIZES = {"dev": 20, "test": 20}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="kills-") as work:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{work}/compiled"
        for name in experiment:
            folder = Path(work, name)
            flags, question = _COMMANDS[name]
            run = Run([name, *flags.split()], question, folder / "whole", folder / "copy")
            run.train()  # compiles; runs that are killed find their programs
            shutil.rmtree(run.copy)
            ended = run.train()
            run.copy.rename(run.whole)
            run.begin()
            answered = run.explain()
            if ended.status or answered.status:
                raise SystemExit(f"{name} fails without any fault: {ended.output}{answered.output}")
            for kind, count, expected in (
                (kill, kills, ended.seconds),
                (damage, damages, answered.output),
                (hostile, hostile_folders, answered.output),
            ):
                problems = []
                for number in range(count):
                    draw = random.Random(f"{seed} {name} {kind.__name__} {number}")
                    problem = kind(run, draw, expected)
                    print(f"{name}, {kind.__name__} {number}: {problem or 'fine'}", flush=True)
                    problems += [problem] if problem else []
                print(f"{name}: {count} × {kind.__name__}, {len(problems)} failed", flush=True)
                failed += len(problems)
    sys.exit(failed > 0)


if __name__ == "__main__":
    run_command(inject)
