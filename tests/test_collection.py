"""Check that every process collects the same tests at any time, as pytest-xdist requires."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow  # with two or more cores, pytest-xdist compares its processes anyway
def test_another_process_at_another_second_finds_the_same_tests(request):
    """This also holds with another hash seed. A test's name once contained an archive's creation time."""
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
