"""Runs `users_table.py` in a process of its own, without the checks of annotations that other tests have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_every_row_of_the_table_holds():
    run = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=short"),
            str(Path(__file__).with_name("users_table.py")),
        ],
        env={**os.environ, "DYNSKIP_TEST_AS_USERS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
