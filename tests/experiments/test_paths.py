"""Check that a path may begin with `~` in every flag that takes one."""

import dataclasses
import re
import shutil

import pytest
from commands import COMMANDS, load

from dynskip_jax.experiments import report
from dynskip_jax.experiments.command_line import read_flags, read_training
from dynskip_jax.experiments.registry import EXPERIMENTS, find_experiment


@pytest.fixture
def home(finished_ptb, tmp_path, monkeypatch):
    shutil.copytree(finished_ptb.folder, tmp_path / "run")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("typed", [("--run-dir", "~/run"), ("--run-dir=~/run",)])
def test_a_run_is_found_in_the_home_folder(typed, home, command, here):
    outcome = command(COMMANDS["ptb"], "explain", *typed, "--text", "a b")
    assert outcome.status == 0, outcome.err
    outcome = command(report.main, home / "run", "--csv=~/table.csv")
    assert outcome.status == 0 and (home / "table.csv").exists()
    assert list(here.iterdir()) == []  # earlier versions made a folder named ~


def test_a_run_begins_in_the_home_folder(home):
    given, _ = read_training(COMMANDS["ptb"], ["--run-dir=~/new", "--data", "~", "--start-from=~/run"])
    assert (given["run_dir"], given["data"]) == (f"{home}/new", str(home))
    assert given["start_from"] == f"{home}/run"
    assert load(home / "run" / "config.json")


def flags_of_all_commands():
    """Yield the field of every flag of every command."""
    for name in EXPERIMENTS:
        experiment = find_experiment(name)
        for group in dataclasses.fields(experiment.settings_type):
            yield from dataclasses.fields(group.default_factory)
        for command in experiment.commands.values():
            yield from dataclasses.fields(command.flags)
    yield from dataclasses.fields(report.Flags)


def test_every_flag_that_takes_a_path_is_declared_as_one():
    names_one = re.compile(r"\b(file|folders?|config\.json)\b", re.IGNORECASE)
    found = [field for field in flags_of_all_commands() if names_one.search(field.metadata["help"])]
    assert {"run_dir", "data", "input", "csv", "plot"} <= {field.name for field in found}
    # Shells expand `folders`. `tensorboard` is a switch, whose help contains the place of the files.
    assert {field.name for field in found if not field.metadata["path"]} <= {"folders", "tensorboard"}


def test_a_tilde_in_a_text_stays_as_it_is():
    flags = COMMANDS["ptb"].commands["explain"].flags
    assert read_flags("explain", "", flags, ["--run-dir", "x", "--text", "~/a b"]).text == "~/a b"
