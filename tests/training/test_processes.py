"""Check a single process, and the calls of JAX; tests/experiments has runs of several processes."""

from unittest.mock import Mock

import jax
import numpy as np
import pytest

from dynskip_jax.errors import UserError
from dynskip_jax.training.processes import connect


@pytest.fixture
def initialized(monkeypatch):
    """Replace `jax.distributed.initialize` by a function that fails."""
    initialize = Mock(side_effect=RuntimeError("nobody\nis there"))
    before = jax.config.jax_enable_preemption_service
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    yield initialize
    jax.config.update("jax_enable_preemption_service", before)


@pytest.mark.parametrize("given", [(None, None), ("127.0.0.1:9", "0/1")])
def test_one_process_agrees_with_itself(given, initialized, monkeypatch):
    # A cluster may set these variables on a login node, where a user runs a single process.
    for name, value in (
        ("SLURM_JOB_ID", "1"),
        ("SLURM_NTASKS", "4"),
        ("TPU_WORKER_HOSTNAMES", "a,b"),
    ):
        monkeypatch.setenv(name, value)
    with connect(*given) as alone:
        assert (alone.index, alone.count, alone.first) == (0, 1, True)
        value = {"a": np.ones(1)}
        assert alone.agree(value) is value
        assert alone.anyone(True, False) == (True, False)
    assert not initialized.called


@pytest.mark.parametrize(
    ("given", "arguments"),
    [(("auto", None), (None, None, None)), (("host:8476", "1/4"), ("host:8476", 4, 1))],
    ids=["auto", "address"],
)
def test_what_jax_is_asked_for_and_what_it_says_in_one_line(given, arguments, initialized, capsys):
    with pytest.raises(UserError) as error:
        connect(*given)
    assert str(error.value) == f"--coordinator {given[0]} finds no processes (nobody is there)"
    seconds = {"initialization_timeout": 300, "heartbeat_timeout_seconds": 60}
    initialized.assert_called_once_with(*arguments, **seconds)
    assert (
        capsys.readouterr().err == f"looking for the other processes: {given[0]}, 300 s at most\n"
    )


@pytest.mark.parametrize("address", [":9", "a:999999", "a"])
def test_senseless_coordinators(address, initialized):
    with pytest.raises(UserError, match="HOST:PORT"):
        connect(address, "0/2")
    assert not initialized.called
