"""Check that parameters read from a finished run are those of its results, or that reading fails."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.errors import UserError
from dynskip_jax.training.checkpoint import Checkpoints, SavedCheckpoints
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.trained import selected_params


def test_an_older_checkpoint_does_not_take_the_place_of_a_damaged_one_in_silence(tmp_path):
    run = RunDir.open(tmp_path, {})
    with Checkpoints(run.checkpoints) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, {"best": {"w": jnp.full((1, 3), step)}, "rest": jnp.zeros(2)}, {})
    like = {"w": jax.ShapeDtypeStruct((3,), jnp.int32)}
    np.testing.assert_array_equal(selected_params(run, like, 1)["w"], [[2, 2, 2]])
    document = next(path for path in (run.checkpoints / "2" / "document").rglob("*") if path.is_file())
    document.write_bytes(b"{")
    with pytest.raises(UserError, match=r"checkpoint 2 in .* is unreadable .*older one may hold other"):
        selected_params(run, like, 1)


def test_only_the_parameters_are_read_and_verified(tmp_path, monkeypatch):
    """The optimizer state may be large, and a trained model does not need it."""
    run, read = RunDir.open(tmp_path, {}), []
    with Checkpoints(run.checkpoints) as checkpoints:
        checkpoints.save(1, {"best": {"w": jnp.ones((2, 3))}, "rest": jnp.zeros(2)}, {})
    read_leaf = Checkpoints._read_leaf
    monkeypatch.setattr(
        SavedCheckpoints, "_read_leaf", lambda *args: read.append(args[2]["path"]) or read_leaf(*args)
    )
    like = {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}
    np.testing.assert_array_equal(selected_params(run, like, 2)["w"], np.ones((2, 3)))
    assert read == ["['best']['w']"]
    monkeypatch.setattr(SavedCheckpoints, "_read_leaf", lambda *args: read_leaf(*args) + 1)
    with pytest.raises(UserError, match="checksum"):
        selected_params(run, like, 2)


def test_to_read_parameters_writes_and_clears_nothing(tmp_path):
    run = RunDir.open(tmp_path, {})
    with Checkpoints(run.checkpoints) as checkpoints:
        checkpoints.save(1, {"best": {"w": jnp.ones((1, 3))}}, {})
    interrupted = run.checkpoints / "2.orbax-checkpoint-tmp-1"
    shutil.copytree(run.checkpoints / "1", interrupted)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    np.testing.assert_array_equal(
        selected_params(run, {"w": jax.ShapeDtypeStruct((3,), jnp.float32)}, 1)["w"], [[1, 1, 1]]
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
