"""Check a single process, the calls of JAX, and invalid flags.

The tests in tests/runs and tests/experiments run several processes.
"""

import jax
import numpy as np
import pytest

from dynskip_jax.devices.processes import Processes, connect
from dynskip_jax.errors import UserError


@pytest.fixture
def initialized(monkeypatch):
    """Replace `jax.distributed.initialize` by a function that fails; yield the list of its calls."""
    asked = []

    def initialize(*arguments, **options):
        asked.append((arguments, options))
        raise RuntimeError("nobody\nis there")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    before = jax.config.jax_enable_preemption_service
    yield asked
    jax.config.update("jax_enable_preemption_service", before)


@pytest.mark.parametrize("given", [(), ("127.0.0.1:9", 0, 1)])
def test_one_process_agrees_with_itself(given, initialized, monkeypatch):
    # A cluster may set these variables on a login node, where a user runs a single process.
    for name, value in (("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "4"), ("TPU_WORKER_HOSTNAMES", "a,b")):
        monkeypatch.setenv(name, value)
    with connect(*given) as alone:
        assert (alone.index, alone.count, alone.first) == (0, 1, True)
        value = {"a": np.ones(1)}
        assert alone.agree(value) is value and alone.collect(value) == [value]
        assert alone.anyone(True, False) == (True, False)
    assert not initialized


def test_errors_of_one_process_pass():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), Processes():
        raise jax.errors.JaxRuntimeError("INTERNAL: of this process")


@pytest.mark.parametrize(
    ("given", "arguments"),
    [(("auto",), (None, None, None)), (("host:8476", 1, 4), ("host:8476", 4, 1))],
    ids=["auto", "address"],
)
def test_what_jax_is_asked_for_and_what_it_says_in_one_line(given, arguments, initialized, capsys):
    with pytest.raises(UserError) as error:
        connect(*given, heartbeat_seconds=7)
    assert str(error.value) == f"--coordinator {given[0]} finds no processes (nobody is there)"
    ((asked, options),) = initialized
    assert asked == arguments
    assert options == {"initialization_timeout": 300, "heartbeat_timeout_seconds": 7}
    assert capsys.readouterr().err == f"looking for the other processes: {given[0]}, 300 s at most\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("a:9", None, 2), "together"),
        (("a", 0, 2), "HOST:PORT"),
        ((":9", 0, 2), "HOST:PORT"),
        (("a:99999", 0, 2), "HOST:PORT"),
        (("a:9", 2, 2), "--process is 2/2: number processes from 0"),
        (("a:9", 0, 0), "--process is 0/0"),
        (("auto", 0, None), "leave --process out"),
    ],
)
def test_senseless_coordinators(arguments, message, initialized):
    with pytest.raises(UserError, match=message):
        connect(*arguments)
    assert not initialized
