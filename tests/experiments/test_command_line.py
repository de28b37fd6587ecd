"""Check the command line: what is refused, and what is printed before anything is trained."""

import errno
import os
import subprocess
import sys

import pytest
from commands import assert_user_error, execute, finished_run, load, row_of, succeed
from quick import Quick

from dynskip_jax import load_run
from dynskip_jax.cli import main as cli
from dynskip_jax.cli.main import NAMES, TOOLS
from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.errors import UserError
from dynskip_jax.runs import train

FAST = ("--devices", 1, "--epochs", 1)
LONG = "9" * 5000
AGENT = ("--model", "dynamic:3")

# A command line of `quick`, and what its error names.
BAD = {
    "text for a number": (("--epochs", "x"), "--epochs takes a whole number, got 'x'"),
    "out of bounds": (("--epochs", 0), "--epochs must be at least 1 and at most 1,000,000, got 0"),
    "not a number": (
        ("--learning-rate", "nan"),
        "--learning-rate must be finite and above 0, got nan",
    ),
    "seeds past the end": (("--seed", 2**32 - 2, "--seeds", 5), "seeds"),
    "an empty path": (("--run-dir", ""), "--run-dir takes a path, got ''"),
    "stray word": (("stray",), "no command 'stray'"),
    "no model": (("--model", "foo:3"), "unknown model 'foo:3'"),
    "both": (("--model", "lstm", "--compare", "fixed:2,lstm"), "either --model or --compare"),
    "too many devices": (
        ("--devices", 99, "--model", "lstm"),
        "--devices 99 is more than there are",
    ),
    "a process past the end": (("--coordinator", "a:9", "--process", "2/2"), "--process"),
    "no code": (
        ("predict", "--run-dir", "x", "--code", "no_such_module"),
        "--code 'no_such_module'",
    ),
    "no folder": (("predict", "--run-dir", "nowhere"), "nowhere"),
    "dangling link": (("--run-dir", "dangling"), "dangling"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_in_one_line(name, here):
    arguments, part = BAD[name]
    (here / "dangling").symlink_to("nowhere")
    outcome = execute(Quick, *arguments)
    assert_user_error(outcome, part)
    assert len(outcome.err) < 1000 and [path.name for path in here.iterdir()] == ["dangling"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--epochs",), "Missing value for argument '--epochs'"),
        (("--epoch", 2), "--epochs INT"),
        (("--data", "~nosuchuser/x"), "begins with the home folder of an unknown"),
        (("predict",), "--run-dir"),
    ],
)
def test_flags_are_refused_by_name(arguments, part, here):
    outcome = execute(Quick, *arguments)
    assert outcome.status == 2 and part in outcome.err and "Traceback" not in outcome.err
    assert not any(here.iterdir())


# --- Whole commands, as typed ---


def shell(redirection, *arguments, **environment):
    """Run Python with `arguments` from a shell with `redirection`, and return the finished
    process.
    """
    line = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, *map(str, arguments)]
    pipes = dict(capture_output=True, stdin=subprocess.DEVNULL, text=True)
    return subprocess.run(line, **pipes, timeout=120, env=os.environ | environment)


def test_the_list_of_commands_and_a_wrong_name():
    listed = shell("", "-m", "experiments").stdout
    for name in (*NAMES, *TOOLS):
        assert f"python -m experiments.{name}  " in listed
    wrong = shell("", "-m", "experiments", "foo")
    assert wrong.returncode == 2 and "error: there is no command 'foo': choose" in wrong.stderr


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_presets_commands_and_every_flag(name, capsys):
    experiment = find_experiment(name)
    with pytest.raises(SystemExit) as left:
        cli.run_experiment(experiment, ["--help"])
    assert left.value.code == 0
    text = capsys.readouterr().out
    commands = [command.rpartition(".")[2] for command in experiment.commands]
    for part in (*experiment.presets, *commands, "--learning-rate", "--model", "--print-config"):
        assert part in text
    examples = [line for line in experiment.about.splitlines() if line.startswith("    ")]
    assert examples and set(examples) <= set(text.splitlines())


def test_print_config_tells_where_values_come_from():
    def rows(name, *flags):
        lines = succeed(find_experiment(name), *flags, "--print-config").out.splitlines()
        return {
            name: (value, source)
            for name, value, source in (line.split(maxsplit=2) for line in lines)
        }

    found = rows("ptb", "--preset", "sketch", "--mix", "0.1,0.2")
    assert (found["agent.mix"], found["training.clip"]) == (("0.1,0.2", "flag"), ("5", "default"))
    epochs, source = found["training.epochs"]  # as many as will run on the embedded corpus
    assert int(epochs) > 4 and source == "preset sketch, for small data"
    assert (found["run.model"], found["agent.top"]) == (("dynamic:5", "default"), ("5", "default"))
    for length, preset in ((11, "relaxed"), (21, "two_hops"), (51, "far")):
        assert rows("number_prediction", "--length", length)["run.preset"][0] == preset
    # A flag may need what the preset sets.
    assert rows("number_prediction", "--relaxed-epochs", 1)["agent.relaxed_epochs"] == ("1", "flag")


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (UserError("no\x1b[31m"), 2, "error: no\\x1b[31m\n"),
        (OSError(errno.EFBIG, "File too large", "x"), 2, "error: File too large (x)"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_errors_are_one_line_with_a_status(error, status, said):
    def fail():
        raise error

    outcome = execute(fail)
    assert outcome.status == status and said in outcome.err and outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("ptb", ("--control", "histogram", "--control-of", "absent")),
        ("conll2003", ("--embeddings", "absent")),
    ],
)
def test_a_process_joins_the_others_before_it_can_fail(name, given, monkeypatch):
    """Regression: the others waited for minutes for one whose --data was not there."""

    def join(*_):
        raise UserError("all have joined")

    monkeypatch.setattr("dynskip_jax.runs.train.join", join)
    together = ("--coordinator", "localhost:9", "--process", "1/2")
    assert_user_error(execute(find_experiment(name), *given, *together), "all have joined")


def test_a_list_of_seeds_trains_these_seeds(tmp_path):
    folder = finished_run(Quick, tmp_path / "run", "--seeds", "1,5,9", *FAST).folder
    assert (
        [load_run(folder, seed=seed).seed for seed in (1, 5, 9)]
        == row_of(folder)["seeds"]
        == [1, 5, 9]
    )
    alone = finished_run(Quick, tmp_path / "alone", "--seed", 5, *FAST).folder
    of_all, of_one = (row_of(path)["metrics"]["test_accuracy"] for path in (folder, alone))
    assert of_all["per_seed"][1] == of_one["mean"]


def test_resumes_are_recorded_with_their_commits(tmp_path, monkeypatch):
    arguments = ("--devices", 1, "--run-dir", tmp_path / "run")
    succeed(Quick, "--epochs", 1, *arguments)
    monkeypatch.setattr(train, "_commit", lambda: "another")
    succeed(Quick, "--epochs", 2, *arguments)
    entries = load(tmp_path / "run" / "config.json")["about"]
    assert len(entries) == 2 and entries[1]["commit"] == "another" != entries[0]["commit"]
