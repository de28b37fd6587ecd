"""Check that signals are answered while a program is compiled, which may take minutes."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SLOW_COMPILER = """
import hashlib, sys
import quick
from dynskip_jax.cli.main import run_experiment
from dynskip_jax.terminal.failures import run_main

def forward(*args, **how):
    print("in the compiler", flush=True)
    # Like a compiler: it leaves Python to other threads, and handles no signals.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)

quick.ClassOfDigits.forward = forward
run_main(lambda: run_experiment(quick.Quick, sys.argv[1:]))
"""


@pytest.mark.slow
def test_ctrl_c_is_answered_while_a_program_is_compiled(tmp_path):
    """Regression: nothing was printed for minutes, and a second Ctrl-C ended nothing either."""
    command = [sys.executable, "-c", SLOW_COMPILER, "--run-dir", tmp_path / "run", "--devices", "1"]
    places = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    environment = {**os.environ, "PYTHONPATH": places}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        try:
            lines = list(itertools.takewhile("in the compiler\n".__ne__, process.stdout))
            assert lines[-1] == "compiling\n"
            process.send_signal(signal.SIGINT)
            assert "a second Ctrl-C ends at once" in process.stderr.readline()
            time.sleep(1)  # two at once are one
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130 and "interrupted at once" in errors
