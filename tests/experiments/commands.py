"""Run command lines in this process, and read and check their output."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from dynskip_jax.cli import main as cli
from dynskip_jax.config.experiment import Experiment, find_experiment
from dynskip_jax.storage.manifest import entries_of, write_manifest
from dynskip_jax.terminal.failures import run_main

PTB, NUMBERS = find_experiment("ptb"), find_experiment("number_prediction")
# The smallest networks: compilation takes nearly all of the time.
SMALL_PTB = (
    *("--preset", "small", "--features", 4, "--num-layers", 1),
    *("--num-steps", 5, "--batch-size", 4, "--devices", 1),
)
SMALL_NUMBERS = ("--features", 4, "--batch-size", 20, "--train-examples", 60, "--devices", 1)


def tool(name: str) -> Callable[[], None]:
    """Return a function that runs `dynskip NAME`, for a command that belongs to no experiment."""
    return lambda: cli.main([name, *sys.argv[1:]])


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


class Finished(NamedTuple):
    """A finished run: its folder, its command line without --run-dir, and what came of it."""

    folder: object
    arguments: tuple
    outcome: Outcome


def execute(
    main: Experiment | Callable[[], None],
    *arguments: object,
    standard_input: str | io.TextIOBase | None = None,
) -> Outcome:
    """Run a command line of an experiment, or a function, in this process."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    run = (lambda: cli.run_experiment(main, sys.argv[1:])) if isinstance(main, Experiment) else main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiment", *map(str, arguments)])
        if standard_input is not None:
            text = standard_input
            patch.setattr(sys, "stdin", io.StringIO(text) if isinstance(text, str) else text)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                run_main(run)
            except SystemExit as stop:
                status = stop.code or 0
    return Outcome(status, out.getvalue(), err.getvalue())


def succeed(
    main: Experiment | Callable[[], None], *arguments: object, **options: object
) -> Outcome:
    outcome = execute(main, *arguments, **options)
    assert outcome.status == 0, outcome.err
    return outcome


def finished_run(main: Experiment, folder: object, *arguments: object) -> Finished:
    return Finished(folder, arguments, succeed(main, *arguments, "--run-dir", folder))


def load(path):
    return json.loads(path.read_text())


def forge(folder, **contents):
    """Write files of a run as JSON, and a manifest that fits all that are there, as a forger does.

    Names of files are given without `.json`.
    """
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    files = {}
    for path in folder.iterdir():
        if path.name not in ("manifest.json", ".lock", "plots"):
            files |= entries_of(folder, path)
    write_manifest(folder, files)


def unfinish(folder):
    """Make a run one that was stopped before its result."""
    (folder / "result.json").unlink()
    forge(folder)


def row_of(folder):
    """Return the row in `result.json` of a run folder with one model."""
    (row,) = load(folder / "result.json")["rows"]
    return row


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def snapshot(folder):
    """Return the bytes of each file below a folder by its relative path, and None for each
    subfolder.
    """
    return {
        p.relative_to(folder): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")
    }


def assert_picture(path):
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert path.stat().st_size > 1000


def assert_user_error(outcome, *parts):
    assert outcome.status == 2, outcome
    assert outcome.err.startswith("error: ")
    assert outcome.err.endswith("\n") and outcome.err.count("\n") == 1
    assert "Traceback" not in outcome.err + outcome.out
    for part in parts:
        assert part in outcome.err, outcome.err
