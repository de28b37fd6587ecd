"""Command lines run in this process, and what tests say of their output."""

import contextlib
import io
import json
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from dynskip_jax.experiments import cli, number_prediction, ptb
from dynskip_jax.experiments.experiment import Experiment
from dynskip_jax.experiments.registry import find_experiment

COMMANDS = {"ptb": ptb.PTB, "number_prediction": number_prediction.NumberPrediction}
# The smallest networks: nearly all of the time goes into compiling.
SMALL_PTB = (
    *("--preset", "small", "--features", 4, "--num-layers", 1),
    *("--num-steps", 5, "--batch-size", 4, "--devices", 1),
)
SMALL_NUMBERS = ("--features", 4, "--batch-size", 20, "--devices", 1)
SMALL_AGENT = ("--agent-features", 2)  # of models that have one


def experiment_in(module) -> type[Experiment]:
    """The experiment of a module, such as `dynskip_jax.experiments.ptb`."""
    return find_experiment(module.__name__.rsplit(".", 1)[-1])


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


class Finished(NamedTuple):
    """A finished run: its folder, its command line but for --run-dir, and what that did."""

    folder: object
    arguments: tuple
    outcome: Outcome


def execute(
    main: type[Experiment] | Callable[[], None],
    *arguments: object,
    standard_input: str | io.TextIOBase | None = None,
) -> Outcome:
    """What a command line does, as the shell would see it; `main`: a function or an experiment's command."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    run = (lambda: cli.main(main)) if isinstance(main, type) else main
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["experiment", *map(str, arguments)])
        if standard_input is not None:
            text = standard_input
            patch.setattr(sys, "stdin", io.StringIO(text) if isinstance(text, str) else text)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                cli.run_main(run)
            except SystemExit as stop:
                status = stop.code or 0
    return Outcome(status, out.getvalue(), err.getvalue())


def finished_run(main: type[Experiment], folder: object, *arguments: object) -> Finished:
    outcome = execute(main, *arguments, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    return Finished(folder, arguments, outcome)


def load(path):
    return json.loads(path.read_text())


def write_result(folder, result):
    """Write `result.json` as older versions did, without digests that a change would not agree with."""
    older = {name: value for name, value in result.items() if name not in ("sha256", "config_sha256")}
    (folder / "result.json").write_text(json.dumps(older))


def row_of(folder):
    """What `result.json` says of the one model of a run folder."""
    (row,) = load(folder / "result.json")["rows"]
    return row


def settings_of(folder):
    """All settings of a run, without their groups."""
    groups = load(folder / "config.json")["settings"].values()
    return {name: value for group in groups for name, value in group.items()}


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def events_in(folder):
    """(step, name, number) of each point in TensorBoard event files, read by the format's own protocol."""
    from tensorboardX.proto import event_pb2

    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            event, data = event_pb2.Event.FromString(data[12 : 12 + length]), data[16 + length :]
            found += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
    return found


def snapshot(folder):
    """Every file and folder below, with the files' bytes."""
    return {p.relative_to(folder): p.read_bytes() if p.is_file() else None for p in folder.rglob("*")}


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
