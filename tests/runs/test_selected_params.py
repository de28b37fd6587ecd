"""Parameters read back from finished runs are those whose results are kept, or none."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.errors import UserError
from dynskip_jax.runs.checkpoint import Checkpoints
from dynskip_jax.runs.run_dir import RunDir
from dynskip_jax.runs.trained import selected_params


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
