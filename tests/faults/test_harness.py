"""Check that `benchmarks.faults` breaks every experiment, and notices runs that do not survive."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.faults.forked import contents, differences


@pytest.mark.slow
def test_faults_of_each_kind_are_survived():
    command = [sys.executable, "-m", "benchmarks.faults", "--experiment", "sst", "--count", "2"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\n14 faults, 0 failed\n")


def test_runs_that_differ_in_anything_but_times_are_not_equal(tmp_path):
    """If such runs counted as equal, every kill would seem to be survived."""
    document = {"meta": {"history": [1]}, "leaves": [{"path": "w", "sha256": "x"}]}
    files = {
        "config.json": {"settings": {"a": 1}, "about": []},
        "result.json": {"rows": [{"epochs": 1, "wall_seconds": 2}]},
        "metrics.jsonl": {"epoch": 1},
        "plots/a.png": {},
        "checkpoints/3/document/metadata": document,
    }

    def write(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(json.dumps(content))

    write(files)
    expected = contents(tmp_path)
    write({"result.json": {"rows": [{"epochs": 1, "wall_seconds": 3}]}})
    assert differences(tmp_path, expected) == ""
    write(
        {
            "result.json": {"rows": [{"epochs": 2}]},
            "metrics.jsonl": {"epoch": 9},
            "plots/a.png": {"b": 1},
        }
    )
    assert differences(tmp_path, expected) == "result, metrics, pictures"
    assert differences(tmp_path, expected, "metrics") == "metrics"
    (tmp_path / "result.json").unlink()
    assert "unreadable" in differences(tmp_path, expected)
