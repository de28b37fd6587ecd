"""Check commands whose standard streams are closed or cannot encode all characters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import dynskip_jax.experiments as experiments

ROOT = Path(experiments.__file__).parents[2]

PROGRAM = """
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


def shell(redirection, *arguments, **environment):
    """Run Python with `arguments` from a shell with `redirection`, and return the finished process."""
    line = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | environment
    return subprocess.run(line, capture_output=True, stdin=subprocess.DEVNULL, timeout=120, env=environment)


def test_closed_streams_lead_to_the_null_device_and_open_ones_stay(tmp_path):
    done = shell("<&- >&- 2>&-", "-c", PROGRAM, tmp_path / "found")
    assert done.returncode == 0
    places, number, read, is_terminal = json.loads((tmp_path / "found").read_text())
    assert places == [os.stat(os.devnull).st_rdev] * 3
    assert number > 2  # an opened file does not become a standard stream
    assert (read, is_terminal) == ("", False)
    done = shell("", "-c", PROGRAM, tmp_path / "found")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"to nobody\n", b"to nobody\n")


def test_characters_that_standard_output_lacks_are_question_marks():
    done = shell("", "-m", "experiments.ptb", "--help", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert "?, the weight" in done.stdout.decode("ascii")
