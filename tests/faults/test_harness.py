"""Check that `benchmarks.faults` counts its faults, and detects runs that do not survive them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import filelock
import pytest

from benchmarks.faults.comparison import contents, differences
from benchmarks.faults.outcomes import Outcome, markdown
from benchmarks.faults.small_runs import SMALL_RUNS
from dynskip_jax.experiments.registry import EXPERIMENTS

ROOT = Path(__file__).parents[2]


def faults(*flags):
    command = [sys.executable, "-m", "benchmarks.faults", *map(str, flags)]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("faults")


@pytest.mark.slow
def test_kills_in_every_phase_are_survived(work):
    status, out, err = faults("--kills", 7, "--experiment", "sst", "--folder", work)
    assert status == 0, out + err
    lines = [line for line in out.splitlines() if line.startswith("sst, SIGKILL")]
    # The table may have fewer rows: a run that is faster than the reference can be hit in a later phase.
    assert len(lines) == 7 and all(line.endswith("equal bit by bit") for line in lines)
    assert "7 faults, 0 failed" in out


@pytest.mark.slow
def test_signals_a_full_disk_and_damage_are_survived(work):
    flags = ("--signals", 2, "--full-disk", 2, "--damage", 0.02, "--markdown", work / "table.md")
    status, out, err = faults(*flags, "--experiment", "sst", "--folder", work)
    assert status == 0, out + err
    table = (work / "table.md").read_text()
    assert table in out
    assert table.count("| SIG") == 2 and "| disk full from a write on" in table


@pytest.mark.slow
def test_runs_that_differ_in_anything_but_times_are_not_equal(work):
    """If such runs counted as equal, every kill would seem to be survived."""
    faults("--experiment", "sst", "--folder", work)
    folder = shutil.copytree(work / "sst" / "whole-0", work / "copy")
    expected = contents(work / "sst" / "whole-1")
    assert differences(folder, expected) == []
    metrics = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(metrics.replace('"epoch": 1', '"epoch": 9', 1))
    assert differences(folder, expected) == ["metrics.jsonl"]
    result = json.loads((folder / "result.json").read_text())
    result["rows"][0]["epochs"] += 1
    (folder / "result.json").write_text(json.dumps(result))
    assert differences(folder, expected) == ["metrics.jsonl", "result.json"]
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    shutil.rmtree(newest)
    assert differences(folder, expected) == ["checkpoint", "metrics.jsonl", "result.json"]
    (folder / "result.json").unlink()
    assert "unreadable" in differences(folder, expected)[0]


@pytest.mark.slow
def test_an_experiment_that_is_not_known_is_one_line():
    status, out, err = faults("--experiment", "nothing")
    assert (status, out) == (2, "")
    assert err.startswith("error: there is no experiment 'nothing'") and err.count("\n") == 1


def test_the_table_counts_what_was_tried_survived_and_failed():
    outcomes = [Outcome("kill", "ptb", result="equal"), Outcome("kill", "sst", problem="differs")]
    *_, row = markdown(outcomes).splitlines()
    assert row == "| kill | ptb, sst | 2 | 1 | 1 | 1 equal |"


def test_every_experiment_has_a_small_run():
    assert sorted(SMALL_RUNS) == sorted(EXPERIMENTS)


def test_two_harnesses_do_not_share_a_folder(tmp_path):
    """A second harness would remove the runs that the first one compares."""
    with filelock.FileLock(tmp_path / "lock"):
        status, _, err = faults("--kills", 1, "--experiment", "sst", "--folder", tmp_path)
    assert status == 2 and "name another --folder" in err
