"""Check that checkpoints are restored bit by bit, and that damaged ones are noticed, skipped and replaced."""

import errno
import os
import resource
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dynskip_jax.errors import UserError
from dynskip_jax.training.checkpoint import Checkpoints


class State(NamedTuple):
    params: dict
    odd: jax.Array
    opt_state: tuple
    key: jax.Array
    step: jax.Array


@jax.jit
def make_trained(seed):
    key = jax.random.key(seed)
    params = {
        "kernel": jax.random.normal(key, (64, 100)),
        "half": jax.random.normal(key, (5, 3), jnp.bfloat16),
        "scale": jnp.ones(()),
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    updates, opt_state = optimizer.update(params, optimizer.init(params))
    return updates, opt_state, jax.random.split(key, 4)


def make_state(seed: int = 0) -> State:
    updates, opt_state, keys = make_trained(seed)
    odd = jnp.array([-0.0, 0.0, np.nan, np.inf, 1e-45], jnp.float32)
    return State(updates, odd, opt_state, keys, jnp.int32(7))


def assert_identical(actual, expected):
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert isinstance(a, jax.Array)
        assert (a.dtype, a.shape) == (e.dtype, e.shape)
        if jax.dtypes.issubdtype(e.dtype, jax.dtypes.prng_key):
            a, e = jax.random.key_data(a), jax.random.key_data(e)
        assert np.asarray(a).tobytes() == np.asarray(e).tobytes()


def abstract(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with checkpoints 6 and 7."""
    folder = tmp_path_factory.mktemp("saved") / "c"
    with Checkpoints(folder) as checkpoints:
        checkpoints.save(6, make_state(6), {"epoch": 6})
        checkpoints.save(7, make_state(7), {"epoch": 7})
    return folder


@pytest.fixture
def two(saved, tmp_path):
    """Return a copy of the folder `saved` that a test may damage."""
    return shutil.copytree(saved, tmp_path / "c")


@pytest.mark.parametrize("like", [lambda s: s, abstract], ids=["arrays", "shapes"])
def test_round_trip(tmp_path, like, capfd):
    state = make_state()
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.restore_latest(state) is None
        checkpoints.save(3, state, {"epoch": 2, "order": [1, 2], "best": None})
    with Checkpoints(tmp_path) as checkpoints:
        restored = checkpoints.restore_latest(like(state))
    assert_identical(restored.state, state)
    assert restored.step == 3
    assert restored.meta == {"epoch": 2, "order": [1, 2], "best": None}
    assert restored.skipped == ()
    assert capfd.readouterr() == ("", "")


def test_unusual_leaves(tmp_path):
    state = {
        "numpy": np.arange(6, dtype=np.int64).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "number": 3,
        "empty": jnp.zeros((0, 4), jnp.bfloat16),
        "no keys": jax.random.split(jax.random.key(0), 3)[:0],
        "other key": jax.random.key(5, impl="rbg"),
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        restored = checkpoints.restore_latest(state).state
    assert type(restored["numpy"]) is np.ndarray and restored["numpy"].dtype == np.int64
    np.testing.assert_array_equal(restored["numpy"], state["numpy"])
    np.testing.assert_array_equal(restored["fortran"], state["fortran"])
    assert restored["number"] == 3 and type(restored["number"]) is int
    names = ["empty", "no keys", "other key"]
    assert_identical([restored[name] for name in names], [state[name] for name in names])


@pytest.mark.parametrize("checkpointer", [ocp.PyTreeCheckpointer, ocp.StandardCheckpointer])
def test_orbax_alone_reads_arrays_by_their_names(tmp_path, checkpointer):
    state = make_state()
    odd_names = {"a/b": jnp.ones(2), "a.b": jnp.zeros(1), "a": {"b": jnp.full(3, 2.0)}, "": jnp.int32(4)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, {"state": state, "odd names": odd_names, "none": jnp.zeros((0, 2))}, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Orbax warns that it takes the devices from the file
        read = checkpointer().restore(tmp_path / "3" / "state")
    found = jax.tree.map(lambda array: (np.asarray(array).tobytes(), str(array.dtype)), read)
    moments = state.opt_state[1][0]
    wanted = {
        "state": {
            "params": state.params,
            "odd": state.odd,
            "opt_state": {"1": {"0": {"count": moments.count, "mu": moments.mu, "nu": moments.nu}}},
            "key": jax.random.key_data(state.key),
            "step": state.step,
        },
        "odd%20names": {
            "a%2Fb": jnp.ones(2),
            "a%2Eb": jnp.zeros(1),
            "a": {"b": jnp.full(3, 2.0)},
            "%": jnp.int32(4),
        },
    }
    assert found == jax.tree.map(lambda array: (np.asarray(array).tobytes(), str(array.dtype)), wanted)


def test_state_of_one_array(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, jnp.arange(3), {})
        assert_identical(checkpoints.restore_latest(jnp.zeros(3, int)).state, jnp.arange(3))


def test_older_layout_with_numbered_arrays_is_refused(tmp_path):
    leaves = [{"path": "['w']", "shape": [3], "dtype": "float32"}]
    document = {"meta": {"epoch": 1}, "leaves": leaves, "sha256": "0" * 64}
    with ocp.CheckpointManager(tmp_path, options=ocp.CheckpointManagerOptions()) as manager:
        items = {"document": ocp.args.JsonSave(document), "state": ocp.args.PyTreeSave({"0": np.ones(3)})}
        manager.save(5, args=ocp.args.Composite(**items))
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(UserError) as error:
        checkpoints.restore_latest({"w": jnp.ones(3)})
    message = str(error.value)
    assert message.startswith(f"checkpoint 5 in {tmp_path} was written by an older version")
    assert "choose another --run-dir" in message and "\n" not in message


def test_part_of_what_was_saved(tmp_path):
    state = make_state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"state": state, "best": state.params}, {})
        restored = checkpoints.restore_latest({"best": abstract(state.params)}, partial=True)
        assert_identical(restored.state, {"best": state.params})
        with pytest.raises(UserError, match=r"\['worst'\] is absent there and float32\[1\] here"):
            checkpoints.restore_latest({"worst": jnp.ones(1)}, partial=True)


def test_state_without_data(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, optax.EmptyState(), {"a": 1})
        assert checkpoints.restore_latest(optax.EmptyState()).state == optax.EmptyState()


def test_restored_arrays_can_be_donated_and_used_again(tmp_path):
    state = {"w": jnp.arange(1000.0)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        first = checkpoints.restore_latest(state).state
        after = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)(first)
        second = checkpoints.restore_latest(state).state
    assert first["w"].is_deleted()
    np.testing.assert_array_equal(after["w"], np.arange(1000.0) + 1)
    assert_identical(second, state)


def test_sharding_follows_like(tmp_path):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = NamedSharding(mesh, P("data"))
    state = {"w": jax.device_put(jnp.arange(16.0), sharding), "b": jnp.ones(3)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        restored = checkpoints.restore_latest(state).state
    assert_identical(restored, state)
    assert restored["w"].sharding == sharding
    assert not restored["b"].committed


def test_keeps_the_newest(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 10):
            checkpoints.save(step, {"w": jnp.full(3, step)}, {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["10", "2"]


def test_meta_that_is_not_json_is_refused_before_anything_is_written(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(TypeError, match="JSON"):
            checkpoints.save(1, {"w": jnp.ones(3)}, {"bad": object()})
        with pytest.raises(TypeError, match=r"\['w'\] is a str, not an array"):
            checkpoints.save(1, {"w": "text"}, {})
        assert checkpoints.restore_latest({"w": jnp.ones(3)}) is None


def biggest_file(folder: Path) -> Path:
    path = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    assert path.stat().st_size > 10_000  # arrays, not metadata
    return path


def truncate(step: Path):
    path = biggest_file(step)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero(step: Path):
    path = biggest_file(step)
    path.write_bytes(bytes(path.stat().st_size))


def flip_bit(step: Path):
    path = biggest_file(step)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def lose_data(step: Path):
    biggest_file(step).unlink()


def lose_index(step: Path):
    (step / "state" / "manifest.ocdbt").unlink()


def lose_document(step: Path):
    (step / "document" / "metadata").unlink()


def change_document(step: Path):
    path = step / "document" / "metadata"
    path.write_text(path.read_text().replace('"epoch": 7', '"epoch": 8'))


def lose_everything(step: Path):
    shutil.rmtree(step)
    step.mkdir()


def fail_before_commit(step: Path):
    """Reduce `step` to what an object store holds after a failed commit: some files, without the marker."""
    (step / "commit_success.txt").unlink()
    shutil.rmtree(step / "state")


@pytest.mark.parametrize(
    "damage",
    [
        truncate,
        zero,
        flip_bit,
        lose_data,
        lose_index,
        lose_document,
        change_document,
        lose_everything,
        fail_before_commit,
    ],
)
def test_damaged_checkpoint_is_skipped_and_replaced(two, damage, capfd):
    damage(two / "7")
    with Checkpoints(two) as checkpoints:
        restored = checkpoints.restore_latest(abstract(make_state()))
        assert (restored.step, restored.meta) == (6, {"epoch": 6})
        assert_identical(restored.state, make_state(6))
        (line,) = restored.skipped
        assert line.startswith(f"checkpoint 7 in {two} is unreadable (") and line.endswith(")")
        assert "\n" not in line
        checkpoints.save(7, make_state(70), {"epoch": 70})
    with Checkpoints(two) as checkpoints:
        restored = checkpoints.restore_latest(make_state())
    assert (restored.step, restored.meta, restored.skipped) == (7, {"epoch": 70}, ())
    assert_identical(restored.state, make_state(70))
    assert capfd.readouterr() == ("", "")


def test_damaged_checkpoint_does_not_take_a_good_ones_place(two):
    (two / "7").rename(two / "9")
    lose_data(two / "9")
    with Checkpoints(two, keep=2) as checkpoints:
        assert checkpoints.restore_latest(make_state()).step == 6
        checkpoints.save(8, make_state(8), {})
    assert sorted(p.name for p in two.iterdir()) == ["6", "8"]


def test_intact_checkpoint_without_its_commit_marker_is_still_exact(two):
    (two / "7" / "commit_success.txt").unlink()
    with Checkpoints(two) as checkpoints:
        restored = checkpoints.restore_latest(make_state())
    assert restored.step == 7
    assert_identical(restored.state, make_state(7))


def test_unfinished_save_is_never_taken(two):
    with Checkpoints(two) as checkpoints:
        shutil.copytree(two / "7", two / "8.orbax-checkpoint-tmp")
        assert checkpoints.restore_latest(make_state()).step == 7
    with Checkpoints(two) as checkpoints:
        checkpoints.save(8, make_state(8), {})
        assert_identical(checkpoints.restore_latest(make_state()).state, make_state(8))
    assert sorted(p.name for p in two.iterdir()) == ["7", "8"]


@pytest.mark.parametrize("reopen", [False, True])
def test_failed_save_leaves_the_older_ones_and_can_be_repeated(two, monkeypatch, reopen):
    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    with Checkpoints(two) as checkpoints:
        with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
            patch.setattr(os, "rename", full)
            patch.setattr(os, "replace", full)
            checkpoints.save(8, make_state(8), {})
        assert checkpoints.restore_latest(make_state()).step == 7
        if not reopen:
            checkpoints.save(8, make_state(80), {})
    with Checkpoints(two) as checkpoints:
        if reopen:
            checkpoints.save(8, make_state(80), {})
        assert_identical(checkpoints.restore_latest(make_state()).state, make_state(80))


def test_without_room_nothing_is_begun(two, monkeypatch, capfd):
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(make_state().params))
    with Checkpoints(two) as checkpoints:
        with monkeypatch.context() as patch, pytest.raises(OSError, match=str(two)) as caught:
            patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**9, free=size))
            checkpoints.save(8, make_state(8), {})
        assert caught.value.errno == errno.ENOSPC
        assert sorted(p.name for p in two.iterdir()) == ["6", "7"]
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=0, free=0))  # unknown
        checkpoints.save(8, make_state(8), {})
    assert capfd.readouterr() == ("", "")


def test_what_the_system_says_of_an_array_that_cannot_be_written_is_raised(tmp_path):
    small, large = jnp.ones(3), jax.random.normal(jax.random.key(0), (64, 100))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, small, {})
        with pytest.raises(OSError) as caught:
            resource.setrlimit(resource.RLIMIT_FSIZE, (large.nbytes // 2, before[1]))  # of each file
            try:
                checkpoints.save(2, large, {})
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert caught.value.errno == errno.EFBIG
        assert_identical(checkpoints.restore_latest(small).state, small)
        checkpoints.save(2, large, {})
        assert_identical(checkpoints.restore_latest(large).state, large)


def test_saving_the_same_again_keeps_the_checkpoint_and_something_else_replaces_it(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jnp.ones(3)}, {})
        inode = (tmp_path / "1").stat().st_ino, (tmp_path / "1").stat().st_mtime_ns
        checkpoints.save(1, {"w": jnp.ones(3)}, {})
        assert inode == ((tmp_path / "1").stat().st_ino, (tmp_path / "1").stat().st_mtime_ns)
        checkpoints.save(1, {"w": jnp.zeros(3)}, {})
        assert_identical(checkpoints.restore_latest({"w": jnp.ones(3)}).state, {"w": jnp.zeros(3)})


def test_nothing_readable_is_an_error(two):
    truncate(two / "6")
    lose_document(two / "7")
    with Checkpoints(two) as checkpoints, pytest.raises(UserError) as error:
        checkpoints.restore_latest(make_state())
    message = str(error.value)
    assert f"none of the 2 checkpoints in {two} is readable" in message
    assert "delete that folder, or choose another --run-dir" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("like", "difference"),
    [
        ({"w": jnp.ones((3, 5)), "b": jnp.ones(2)}, "['w'] is float32[3,4] there and float32[3,5] here"),
        ({"w": jnp.ones((3, 4), jnp.bfloat16), "b": jnp.ones(2)}, "and bfloat16[3,4] here"),
        ({"w": jnp.ones((3, 4))}, "['b'] is float32[2] there and absent here"),
        ({"v": jnp.ones(1), "w": jnp.ones(1), "b": jnp.ones(2)}, ", and 1 more differ"),
    ],
)
def test_another_structure_is_an_error(tmp_path, like, difference):
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, {"w": jnp.ones((3, 4)), "b": jnp.ones(2)}, {})
        with pytest.raises(UserError) as error:
            checkpoints.restore_latest(like)
    message = str(error.value)
    assert message.startswith(f"checkpoint 4 in {tmp_path} holds another state (")
    assert difference in message and "choose another --run-dir" in message and "\n" not in message


def test_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot keep checkpoints in .*choose another --run-dir"):
        Checkpoints(tmp_path / "file" / "checkpoints")


def test_leaves_that_were_renamed_since_are_found(tmp_path):
    """Run folders of earlier versions have other names of layers and skip states, in another order."""

    class Carry(NamedTuple):
        own: Any

    class Renamed(NamedTuple):
        skip_state: Any

    class State(NamedTuple):
        sums: Any

    class Mean(NamedTuple):
        total: Any
        count: Any

    def array(number):
        return np.full(2, number, np.float32)

    old = {
        "characters": [{"backward": {"cell": {"w": array(1)}}, "forward": {"cell": {"w": array(2)}}}],
        "stack": {"layers": [{"cell": {"w": array(3)}}]},
        "carry": Carry(array(4)),
        "state": State({"accuracy": Mean(array(5), array(6)), "nll": Mean(array(7), array(8))}),
    }
    new = {
        "characters": [{"rnn": {"cells": [{"w": array(2)}, {"w": array(1)}]}}],
        "stack": {"cells": [{"w": array(3)}]},
        "carry": Renamed(array(4)),
        "state": State({"nll": Mean(array(7), array(8))}),  # CRF training no longer counts the accuracy
    }
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, old, {})
    with Checkpoints(tmp_path) as checkpoints:
        found = checkpoints.restore_latest(jax.tree.map(np.zeros_like, new)).state
    assert jax.tree.structure(found) == jax.tree.structure(new)
    jax.tree.map(np.testing.assert_array_equal, found, new)
