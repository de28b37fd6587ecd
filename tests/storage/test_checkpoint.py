"""Check that arrays are restored bit by bit, in any folder, and exactly those of the model."""

import re
import shutil
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from scripted import assert_identical

from dynskip_jax.errors import UserError
from dynskip_jax.storage.checkpoint import restore, save


class State(NamedTuple):
    params: dict
    odd: jax.Array
    opt_state: tuple
    key: jax.Array


@jax.jit
def make_state(seed: int = 0) -> State:
    key = jax.random.key(seed)
    params = {"kernel": jax.random.normal(key, (64, 100)), "half": jnp.ones((5, 3), jnp.bfloat16)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    updates, opt_state = optimizer.update(params, optimizer.init(params))
    odd = jnp.array([-0.0, 0.0, np.nan, np.inf, 1e-45], jnp.float32)
    return State(updates, odd, opt_state, jax.random.split(key, 4))


def test_round_trip(tmp_path, capfd):
    state = {
        "state": make_state(),
        "empty": jnp.zeros((0, 4), jnp.bfloat16),
        "no keys": jax.random.split(jax.random.key(0), 3)[:0],
        "other key": jax.random.key(5, impl="rbg"),
        "zeros": jnp.zeros((3, 4)),
    }
    save(tmp_path / "c", state)
    restored = restore(tmp_path / "c", state)
    assert_identical(restored, state)
    # Restored arrays can be donated, and restored again.
    donated = restored["state"].params
    jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(donated)
    assert donated["kernel"].is_deleted()
    assert_identical(restore(tmp_path / "c", state), state)
    assert capfd.readouterr() == ("", "")


def test_orbax_alone_reads_arrays_by_their_names(tmp_path):
    state = make_state()
    save(tmp_path / "c", {"state": state, "none": jnp.zeros((0, 2))})
    # Orbax warns that it takes the devices from the file.
    with warnings.catch_warnings(action="ignore"):
        read = ocp.StandardCheckpointer().restore(tmp_path / "c")
    moments = state.opt_state[1][0]._asdict()
    wanted = state._asdict() | {
        "opt_state": [None, [moments, None]],
        "key": jax.random.key_data(state.key),
    }
    assert read.pop("none") is None  # Orbax stores no empty arrays
    assert_identical(read, {"state": wanted})


@pytest.mark.parametrize(
    ("like", "difference"),
    [
        ({"w": jnp.ones((3, 5)), "b": jnp.ones(2)}, "w is not float32[3, 5]"),
        ({"w": jnp.ones((3, 4), jnp.bfloat16), "b": jnp.ones(2)}, "w is not bfloat16[3, 4]"),
        ({"w": jnp.ones((3, 4))}, "there is b"),
        ({"w": jnp.ones((3, 4)), "c": jnp.ones(5)}, "there is b; c is missing"),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_other_arrays_than_the_models_are_refused(like, difference, partial, tmp_path):
    """Regression: a parameter that the code lacked was left out, and the numbers were wrong."""
    state = {"w": jnp.ones((3, 4)), "b": jnp.ones(2)}
    if partial:
        state = {"best": state, "rest": jnp.zeros(2)}
        like = {"best": like}
        difference = re.sub(r"\b([wbc])\b", r"best.\1", difference)
    save(tmp_path / "c", state)
    problem = re.escape(f"holds other arrays than the model ({difference})")
    with pytest.raises(UserError, match=rf"^[^\n]*{problem}[^\n]*$"):
        restore(tmp_path / "c", like, partial=partial)


def test_only_a_part_is_read(tmp_path):
    """The optimizer state may be large, and a trained model does not need it."""
    save(tmp_path / "c", {"best": {"w": jnp.arange(3)}, "rest": jnp.zeros(2)})
    shutil.rmtree(tmp_path / "c" / "rest")
    like = {"best": {"w": jax.ShapeDtypeStruct((3,), jnp.int32)}}
    assert_identical(restore(tmp_path / "c", like, partial=True), {"best": {"w": jnp.arange(3)}})
