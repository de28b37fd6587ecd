"""Check that a path may begin with `~` in every flag that takes one."""

import shutil

import pytest
from commands import COMMANDS, load, tool

from dynskip_jax.experiments.command_line import read_training


@pytest.fixture
def home(finished_ptb, tmp_path, monkeypatch):
    shutil.copytree(finished_ptb.folder, tmp_path / "run")
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("typed", [("--run-dir", "~/run"), ("--run-dir=~/run",)])
def test_a_run_is_found_in_the_home_folder(typed, home, command, here):
    outcome = command(COMMANDS["ptb"], "explain", *typed, "--text", "a b")
    assert outcome.status == 0, outcome.err
    outcome = command(tool("report"), home / "run", "--csv=~/table.csv")
    assert outcome.status == 0 and (home / "table.csv").exists()
    assert list(here.iterdir()) == []  # earlier versions made a folder named ~


def test_a_run_begins_in_the_home_folder(home):
    given, _ = read_training(COMMANDS["ptb"], ["--run-dir=~/new", "--data", "~", "--start-from=~/run"])
    assert (given["run_dir"], given["data"]) == (f"{home}/new", str(home))
    assert given["start_from"] == f"{home}/run"
    assert load(home / "run" / "config.json")
