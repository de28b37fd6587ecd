"""Check that a checkpoint that the system cannot read at the moment is neither skipped nor deleted."""

import errno
import shutil

import numpy as np
import pytest

from dynskip_jax.errors import UserError
from dynskip_jax.training.checkpoint import Checkpoints

STATE = {"w": np.arange(4.0)}
PASSING = {
    "disk": OSError(errno.EIO, "Input/output error"),
    "TensorStore's disk": ValueError("reading failed [os_error_code='5']"),
    "files": OSError(errno.EMFILE, "Too many open files"),
    "memory": MemoryError(),
    "JAX's memory": RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_the_system_could_not_read_stays_and_is_read_later(name, tmp_path, monkeypatch):
    """The newest checkpoint was once taken for damaged, and the next save deleted it."""
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"w": STATE["w"] * step}, {})
    before = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())

    def fail(*_):
        raise PASSING[name]

    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoints, "_read_leaf", fail)
            with pytest.raises(UserError, match=r"checkpoint 2 .* cannot be read now") as error:
                checkpoints.restore_latest(STATE)
            assert "\n" not in str(error.value)
        assert checkpoints.restore_latest(STATE).step == 2
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == before


def test_a_file_that_is_missing_is_damage(tmp_path):
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"w": STATE["w"] * step}, {})
        shutil.rmtree(tmp_path / "checkpoints" / "2" / "state")
        assert checkpoints.restore_latest(STATE).step == 1
