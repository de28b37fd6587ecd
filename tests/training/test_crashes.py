"""Check that a run goes on bit for bit after a crash before any of its operations on files."""

import os
import sys

import numpy as np
import pytest
from marks import and_slow
from scripted import SGD, Scripted, shared_programs  # noqa: F401

from dynskip_jax.storage.folder import RunDir
from dynskip_jax.storage.results import row_of
from dynskip_jax.training.loop import FitSettings, fit

# Audit events that change the file system; `open` for writing is one, too.
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

PARTS = 20  # of the operations, of which one is tried by default


class Crash(Exception):
    """The machine goes down."""


class Machine:
    """Count operations on files below a folder; it goes down at the one of a number."""

    def __init__(self):
        self.folder = None
        self.count = 0
        self.down_at = None
        sys.addaudithook(self._audit)

    def start(self, folder, down_at=None):
        self.folder = folder
        self.count = 0
        self.down_at = down_at

    def _audit(self, event, details):
        path = details[0] if details else None
        if self.folder is None or not isinstance(path, str | os.PathLike):
            return
        if not os.path.abspath(path).startswith(f"{self.folder}{os.sep}"):
            return
        if event not in CHANGES and (event != "open" or not (details[2] or 0) & WRITING):
            return
        self.count += 1
        # A machine that is down stays down, whatever `finally` clauses try.
        if self.down_at is not None and self.count > self.down_at:
            raise Crash(f"operation {self.count}: {event} {path}")


machine = Machine()


def train(folder, epochs):
    """Train a run as `run` does: keep a vocabulary, train, and write the result."""
    run = RunDir.open(folder, {"epochs": epochs}, about={}, may_grow=["epochs"])
    row = row_of(run)
    if row is not None and row["epochs_asked"] == epochs:
        return
    run.keep("vocabulary.json", "[]")
    every_step = dict(log_every=1, checkpoint_minutes=0)
    settings = FitSettings((0,), epochs, SGD, lambda epoch, history: np.ones(1), **every_step)
    result = fit(Scripted([3, 2, 2.5]), settings, run)
    row = {"model": "m", "parameters": 1, "seeds": [0], "wall_seconds": 1, "epochs_asked": epochs}
    number = float(result.best_epoch[0])
    score = {"mean": number, "std": 0, "per_seed": [number]}
    run.write_result({"rows": [row | {"metrics": {"score": score}}]})


def contents(folder):
    """Return what is equal in two finished runs, arrays by the SHA-256 of their files."""
    run = RunDir.read(folder)
    arrays = {name: entry.sha256 for name, entry in run.files.items() if name[-1].isdigit()}
    return run.config()["epochs"], run.records(), run.result(), arrays


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the contents of runs of one and of two epochs, and their numbers of operations."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    counts = []
    found = []
    for epochs in (1, 2):
        machine.start(folder)
        train(folder, epochs)
        counts.append(machine.count)
        found.append(contents(folder))
    machine.start(None)
    return found, counts


@pytest.mark.parametrize("part", and_slow(range(PARTS), lambda part: part == 0))
def test_a_crash_before_any_operation(part, whole, tmp_path):
    """A run of one epoch crashes, goes on, then grows to two epochs, crashes, and goes on."""
    expected, counts = whole
    for number in range(part, max(counts), PARTS):
        folder = tmp_path / str(number)
        for epochs, wanted, count in zip((1, 2), expected, counts, strict=True):
            if number < count:
                machine.start(folder, down_at=number)
                with pytest.raises(Crash):
                    train(folder, epochs)
            machine.start(None)
            train(folder, epochs)
            assert contents(folder) == wanted, f"after a crash at operation {number}"
