"""Check the command line: what is refused, in one line, and what is printed before anything is
trained.
"""

import dataclasses
import itertools
import os
import re
import subprocess
import sys

import pytest
from commands import assert_user_error, execute, finished_run, load, row_of, succeed
from quick import Quick, QuickSettings

from dynskip_jax import cli, load_run, plan
from dynskip_jax.cli import NAMES, TOOLS
from dynskip_jax.config import flag
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import find_experiment
from dynskip_jax.settings import fields_of

FAST = ("--devices", 1, "--epochs", 1)
LONG = "9" * 5000
AGENT = ("--model", "dynamic:3")

# A command line of `quick`, and what its error names.
BAD = {
    "text for a number": (("--epochs", "x"), "--epochs takes a whole number, got 'x'"),
    "no value": (("--epochs",), "--epochs"),
    "not a number": (
        ("--learning-rate", "nan"),
        "--learning-rate must be finite and above 0, got nan",
    ),
    "infinite": (("--clip", "inf"), "--clip must be finite and above 0, or none, got inf"),
    "infinite in a list": (
        ("--mix", "0.5,inf", *AGENT),
        "--mix must be finite and at least 0 and at most 1",
    ),
    "a number as Python writes it": (
        ("--epochs", "1_0"),
        "--epochs takes a whole number, got '1_0'",
    ),
    "a number of another script": (("--seeds", "1,٣"), "--seeds takes"),
    "a list with a gap": (("--learning-rate", "0.1,,0.2"), "--learning-rate takes"),
    "negative": (("--seeds=-1",), "--seeds must be at least 1"),
    "too many digits": (("--seeds", "9" * 30), "--seeds"),
    "digits that Python refuses": (("--epochs", LONG), "--epochs"),
    "huge batch": (("--batch-size", 10**9), "--batch-size"),
    "huge seed": (("--seed", 2**40), "--seed"),
    "seeds past the end": (("--seed", 2**32 - 2, "--seeds", 5), "seeds"),
    "a seed beside a list": (("--seed", 3, "--seeds", "1,2"), "--seed has no effect"),
    "twice in a sweep": (("--learning-rate", "0.1,0.1"), "twice: 0.1,0.1"),
    "one of a few words": (("--precision", "f64"), "--precision takes f32 or bf16"),
    "misspelt": (("--epoch", 2), "Perhaps you meant: --epochs"),
    "stray word": (("stray",), "no command 'stray'"),
    "no preset": (("--preset", "large"), "no preset 'large'"),
    "no model": (("--model", "foo:3"), "unknown model 'foo:3'"),
    "two models": (("--model", "lstm,fixed:2"), "--compare"),
    "both": (("--model", "lstm", "--compare", "fixed:2,lstm"), "either --model or --compare"),
    "long model": (("--model", f"dynamic:{LONG}"), "numbers in its name"),
    "long transition": (("--transition", f"rhn:{LONG}"), "numbers in its name"),
    "no transition": (("--transition", "foo"), "foo"),
    "no effect": (("--mix", 0.25), "--mix has no effect on lstm"),
    "an agent of attention": (
        ("--model", "attention:3", "--agent", "content"),
        "--agent has no effect",
    ),
    "no relaxed epochs": ((*AGENT, "--relaxation", "soft"), "without --relaxed-epochs"),
    "no rates": ((*AGENT, "--control", "histogram"), "--control-of DIR"),
    "no run": ((*AGENT, "--control", "histogram", "--control-of", "x"), "x"),
    "sweep of rates": (
        (*AGENT, "--learning-rate", "0.1,1", "--agent-learning-rate", 0.1),
        "rate none",
    ),
    "depth": (("--depth-skip", "gates"), "--depth-skip"),
    "an untrained control of no agent": (
        ("--model", "lstm", "--control", "untrained"),
        "--control has no",
    ),
    "nothing left": ((*AGENT, "--stride", 3), "leaves dynamic:3 nothing but k = 1"),
    "too many devices": (
        ("--devices", 99, "--model", "lstm"),
        "--devices 99 is more than there are",
    ),
    "no coordinator": (("--process", "0/2"), "together"),
    "a process past the end": (("--coordinator", "a:9", "--process", "2/2"), "--process"),
    "processes and pmap": (
        ("--coordinator", "a:9", "--process", "0/2", "--parallel", "pmap"),
        "pmap",
    ),
    "a process beside auto": (("--coordinator", "auto", "--process", "0/1"), "leave --process out"),
    "no code": (
        ("predict", "--run-dir", "x", "--code", "no_such_module"),
        "--code 'no_such_module'",
    ),
    "no code behind =": (("predict", "--code=", "--run-dir", "x"), "--code is empty"),
    "no folder": (("predict", "--run-dir", "nowhere"), "nowhere"),
    "an empty folder of a run": (("predict", "--run-dir", ""), "--run-dir is empty"),
    **{
        f"absurd {flag}": ((f"--{flag}={'x' * 10**4}",), "xx")
        for flag in ("mix", "transition", "x")
    },
    "absurd path": (("--run-dir", "x" * 10**5), " … "),
    "dangling link": (("--run-dir", "dangling"), "dangling"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said_in_one_line(name, here):
    arguments, part = BAD[name]
    (here / "dangling").symlink_to("nowhere")
    outcome = execute(Quick, *arguments)
    assert_user_error(outcome, part)
    assert len(outcome.err) < 1000 and [path.name for path in here.iterdir()] == ["dangling"]


@pytest.mark.parametrize("name", fields_of(QuickSettings))
def test_an_empty_value_is_refused_by_the_name_of_its_flag(name, here):
    """Regression: an unset shell variable meant the current folder, or was a traceback."""
    for given in ((f"{flag(name)}=",), (flag(name), ""), (flag(name), "\n")):
        assert_user_error(execute(Quick, *given), f"error: {flag(name)} is empty")
    assert not any(here.iterdir())


def test_an_empty_word_is_refused(here):
    report = lambda: cli.main(["report", *sys.argv[1:]])
    assert_user_error(execute(report, ""), "an argument is empty")
    assert_user_error(execute(report, "x", "--csv", ""), "--csv is empty")
    assert_user_error(execute(Quick, ""), "no command ''")


def test_a_line_break_after_a_value_is_left_out():
    """As the shell does with what a command prints."""
    given = {"--seeds": "3", "--epochs": "2", "--learning-rate": "0.1,0.2", "--transition": "gru"}
    given |= {
        "--compare": "lstm,fixed:2",
        "--precision": "bf16",
        "--run-dir": "x",
        "--clip": "none",
    }
    words = [word for pair in given.items() for word in pair]
    expected = succeed(Quick, *words, "--print-config")
    for end in ("\n", "\r\n"):
        broken = [word if word in given else word + end for word in words]
        assert succeed(Quick, *broken, "--print-config") == expected


def test_clipping_is_switched_off_by_none():
    shown = succeed(find_experiment("classify"), "--clip", "none", "--print-config").out
    assert re.search(r"^training.clip +none +flag$", shown, re.MULTILINE)


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
    shown = text.splitlines()
    # A group begins with its docstring, not with that of the function that makes it.
    for field in dataclasses.fields(experiment.settings):
        group = getattr(experiment.settings, field.name)
        assert " ".join(type(group).__doc__.split())[:50] in " ".join(text.split())
    # Commands stand on lines of their own, indented alike.
    assert examples and set(examples) <= set(shown)
    assert max(len(line) for line in shown if line not in examples) <= 80


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


def test_print_config_without_data_shows_what_is_asked_for():
    shown = succeed(find_experiment("sst"), "--epochs", 3, "--print-config")
    assert re.search(r"^training.epochs +3 +flag$", shown.out, re.MULTILINE)
    (line,) = shown.err.splitlines()
    assert line.startswith("warning: some of this may change: ") and "--data" in line


@pytest.mark.parametrize("name", NAMES)
def test_each_command_and_each_preset_in_a_help_begins_a_line(name):
    experiment = find_experiment(name)
    begins = ("python -m ", *(f"{preset}  " for preset in experiment.presets))
    lines = [line[4:] for line in experiment.about.splitlines() if line.startswith("    ")]
    assert lines
    for line in lines:
        assert line.startswith((" ", *begins)) and not any(f" {word}" in line for word in begins)


def test_what_a_list_says_of_a_command_is_a_whole_sentence():
    commands = {name for each in NAMES for name in find_experiment(each).commands}
    for name in (*commands, *cli.TOOLS):
        assert cli.about(name).endswith("."), name


@pytest.mark.parametrize("name", NAMES)
def test_a_line_of_help_ends_where_the_next_word_does_not_fit(name, capsys):
    with pytest.raises(SystemExit):
        cli.run_experiment(find_experiment(name), ["--help"])
    lines = [line.rstrip(" │|") for line in capsys.readouterr().out.splitlines()]
    width = 76  # of 80 columns, of which a frame takes up to four
    pairs = 0
    for line, following in itertools.pairwise(lines):
        column = len(following) - len(following.lstrip())
        if column > 20 and line[column - 2 : column] == "  ":  # otherwise a flag with many values
            assert len(line) + len(following.split()[0]) >= width, (line, following)
            pairs += 1
    assert pairs > 20


@pytest.mark.parametrize(
    "words", [("--help",), ("classify", "--help"), ("number_prediction", "--print-config")]
)
def test_docstrings_that_python_strips_are_not_missed(words):
    """Regression: these were tracebacks."""
    usual, stripped = (
        shell("", "-m", "experiments", *words, PYTHONOPTIMIZE=level) for level in ("", "2")
    )
    assert (stripped.returncode, stripped.stderr) == (0, "")
    assert {*stripped.stdout.splitlines()[:30]} <= {*usual.stdout.splitlines()}


@pytest.mark.parametrize("words", [("report", "x"), ("classify", "predict", "--run-dir", "x")])
def test_a_command_that_writes_to_closed_standard_output_is_refused(words):
    """Regression: predictions went nowhere, with status 0."""
    done = shell(">&-", "-m", "experiments", *words)
    assert done.returncode == 2 and re.fullmatch(
        "error: standard output is closed[^\n]*\n", done.stderr
    )


def test_an_address_space_in_which_jax_cannot_start_is_named(tmp_path):
    """Regression: the process was aborted with a message of C++."""
    line = 'ulimit -v 1000000; exec "$@"'
    command = [sys.executable, "-m", "experiments.number_prediction", "--run-dir", tmp_path / "run"]
    done = subprocess.run(
        ["sh", "-c", line, "sh", *command], capture_output=True, text=True, timeout=60
    )
    assert (
        done.returncode == 2 and "1.0 GB of address space (ulimit -v), and JAX needs" in done.stderr
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["code", "ptb", "classify", "conll2003"])
def test_data_that_are_not_there_are_found_before_jax_is_imported(name, tmp_path):
    """Regression: a wrong path was an error after more than a minute, most of it imports."""
    code = (
        "import sys; sys.modules['jax'] = None\n"  # an import of it fails
        "from dynskip_jax.cli import start; start()"
    )
    words = [name, "--data", str(tmp_path / "absent")]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "absent' cannot be read (no such file): check its name" in done.stderr


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("ptb", ("--data", "absent")),
        ("ptb", ("--control", "histogram", "--control-of", "absent")),
        ("conll2003", ("--embeddings", "absent")),
    ],
)
def test_a_process_joins_the_others_before_it_can_fail(name, given, monkeypatch):
    """Regression: the others waited for minutes for one whose --data was not there."""

    def join(*_):
        raise UserError("all have joined")

    monkeypatch.setattr("dynskip_jax.run.join", join)
    together = ("--coordinator", "localhost:9", "--process", "1/2")
    assert_user_error(execute(find_experiment(name), *given, *together), "all have joined")


def test_the_reader_of_the_output_may_go():
    done = shell("| head -1", "-m", "experiments.number_prediction", "--print-config")
    assert len(done.stdout.splitlines()) == 1 and "Traceback" not in done.stderr


STREAMS = """
import json, os, sys
from dynskip_jax.failures import run_main

def main():
    print("to nobody")
    print("to nobody", file=sys.stderr)
    with open(sys.argv[1], "w") as file:
        places = [os.fstat(number).st_rdev for number in range(3)]
        json.dump([places, file.fileno(), sys.stdin.read(), sys.stdin.isatty()], file)

run_main(main)
"""


def test_closed_streams_lead_to_the_null_device_and_open_ones_stay(tmp_path):
    assert shell("<&- >&- 2>&-", "-c", STREAMS, tmp_path / "found").returncode == 0
    places, number, read, is_terminal = load(tmp_path / "found")
    assert places == [os.stat(os.devnull).st_rdev] * 3
    assert number > 2  # an opened file does not become a standard stream
    assert (read, is_terminal) == ("", False)
    done = shell("", "-c", STREAMS, tmp_path / "found")
    assert (done.returncode, done.stdout, done.stderr) == (0, "to nobody\n", "to nobody\n")


def test_characters_that_standard_output_lacks_are_question_marks():
    done = shell("", "-m", "experiments.ptb", "--help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "") and "?, the weight" in done.stdout


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


def test_resumes_are_recorded_and_another_commit_is_warned_of(tmp_path, monkeypatch):
    arguments = ("--devices", 1, "--run-dir", tmp_path / "run")
    succeed(Quick, "--epochs", 1, *arguments)
    monkeypatch.setattr(plan, "_commit", lambda: "another")
    outcome = succeed(Quick, "--epochs", 2, *arguments)
    assert "not be the same bit for bit" in outcome.out
    entries = load(tmp_path / "run" / "config.json")["about"]
    assert len(entries) == 2 and entries[1]["commit"] == "another" != entries[0]["commit"]
