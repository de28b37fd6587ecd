"""Collection: every process, at every second, finds the same tests, as pytest-xdist wants it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow  # processes of pytest-xdist, of two cores and more, compare theirs anyway
def test_another_process_at_another_second_finds_the_same_tests(request):
    """Under another hash seed too; `make_archive` once put the second of its making into a test's name."""
    root = Path(__file__).parents[1]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-n0",
        "-m",
        "slow or not slow",
        "tests",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    found = subprocess.run(
        command,
        cwd=root,
        env=environment | {"PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    here = {item.nodeid for item in request.session.items}
    assert len(found) > 1000
    assert here <= set(found), sorted(here - set(found))[:3]
