"""Check that checkpoints are restored bit by bit, and that damaged ones are replaced."""

import errno
import json
import os
import re
import resource
import shutil
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from scripted import assert_identical

from dynskip_jax.devices.processes import Processes
from dynskip_jax.errors import UserError
from dynskip_jax.training import checkpoint
from dynskip_jax.training.checkpoint import Checkpoints
from dynskip_jax.training.folder import RunDir
from dynskip_jax.training.resume import selected_params


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


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Return a folder with checkpoints 6 and 7."""
    folder = tmp_path_factory.mktemp("saved") / "c"
    for step in (6, 7):
        Checkpoints(folder).save(step, make_state(step), {"epoch": step})
    return folder


@pytest.fixture
def two(saved, tmp_path):
    """Return a copy of the folder `saved` that a test may damage."""
    return shutil.copytree(saved, tmp_path / "c")


def test_round_trip(tmp_path, capfd):
    state = make_state()
    checkpoints = Checkpoints(tmp_path / "c")
    assert checkpoints.restore_latest(state) is None
    checkpoints.save(3, state, {"epoch": 2, "order": [1, 2], "best": None})
    restored = Checkpoints(tmp_path / "c" / ".." / "c").restore_latest(state)
    assert_identical(restored.state, state)
    assert (restored.meta, restored.skipped) == ({"epoch": 2, "order": [1, 2], "best": None}, ())
    assert restored.fingerprint == checkpoints.fingerprint() and restored.fingerprint["step"] == 3
    # Restored arrays can be donated, and restored again.
    donated = restored.state.params
    jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)(donated)
    assert donated["kernel"].is_deleted()
    assert_identical(checkpoints.restore_latest(state).state, state)
    assert capfd.readouterr() == ("", "")


def test_unusual_leaves(tmp_path):
    state = {
        "empty": jnp.zeros((0, 4), jnp.bfloat16),
        "no keys": jax.random.split(jax.random.key(0), 3)[:0],
        "other key": jax.random.key(5, impl="rbg"),
    }
    for step, tree in enumerate((state, {"state": jnp.arange(3)}, optax.EmptyState()), 1):
        Checkpoints(tmp_path).save(step, tree, {})
        assert_identical(Checkpoints(tmp_path).restore_latest(tree).state, tree)


def test_orbax_alone_reads_arrays_by_their_names(tmp_path):
    state = make_state()
    Checkpoints(tmp_path).save(3, {"state": state, "none": jnp.zeros((0, 2))}, {})
    # Orbax warns that it takes the devices from the file.
    with warnings.catch_warnings(action="ignore"):
        read = ocp.StandardCheckpointer().restore(tmp_path / "3" / "state")
    moments = state.opt_state[1][0]._asdict()
    wanted = state._asdict() | {
        "opt_state": [None, [moments, None]],
        "key": jax.random.key_data(state.key),
    }
    assert read.pop("none") is None  # Orbax stores no empty arrays
    assert_identical(read, {"state": wanted})


def test_the_newest_are_kept_and_the_same_step_is_replaced(two):
    for step, seed in ((10, 0), (10, 1)):
        Checkpoints(two).save(step, make_state(seed), {})
    assert names(two) == ["10", "7"]
    assert_identical(Checkpoints(two).restore_latest(make_state()).state, make_state(1))


# --- Damage ---


def biggest_file(folder: Path) -> Path:
    path = max((p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    assert path.stat().st_size > 10_000  # arrays, not metadata
    return path


def document(step: Path) -> Path:
    return step / "document" / "metadata"


def rewrite(find, change):
    return lambda step: find(step).write_bytes(change(find(step).read_bytes()))


DAMAGES = {
    "truncated": rewrite(biggest_file, lambda data: data[: len(data) // 2]),
    "zeroed": rewrite(biggest_file, lambda data: bytes(len(data))),
    "bit flipped": rewrite(
        biggest_file, lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:]
    ),
    "data lost": lambda step: biggest_file(step).unlink(),
    "index lost": lambda step: (step / "state" / "manifest.ocdbt").unlink(),
    "arrays lost": lambda step: shutil.rmtree(step / "state"),
    "document lost": lambda step: document(step).unlink(),
    "document changed": rewrite(document, lambda data: data.replace(b'"epoch": 7', b'"epoch": 8')),
    "all lost": lambda step: (shutil.rmtree(step), step.mkdir()),
    "a pipe": lambda step: os.mkfifo(document(step).with_name("pipe")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_skipped_and_replaced(two, damage, capfd):
    DAMAGES[damage](two / "7")
    checkpoints = Checkpoints(two)
    restored = checkpoints.restore_latest(make_state())
    assert (restored.fingerprint["step"], restored.meta) == (6, {"epoch": 6})
    if "document" in damage:
        assert checkpoints.fingerprint() == {"step": 7, "sha256": ""}
    assert_identical(restored.state, make_state(6))
    (line,) = restored.skipped
    assert re.fullmatch(rf"checkpoint 7 in {two} is unreadable \([^\n]*\)", line)
    checkpoints.save(8, make_state(8), {"epoch": 8})
    assert names(two) == ["6", "8"]  # a damaged one does not take a good one's place
    assert Checkpoints(two).restore_latest(make_state()).skipped == ()
    assert capfd.readouterr() == ("", "")


def test_nothing_readable_is_an_error(two):
    for step in ("6", "7"):
        DAMAGES["document lost"](two / step)
    with pytest.raises(UserError, match=r"^none of the 2 checkpoints .*choose another --run-dir$"):
        Checkpoints(two).restore_latest(make_state())


def test_failed_save_leaves_the_older_ones_and_can_be_repeated(two, monkeypatch):
    checkpoints = Checkpoints(two)
    full = Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(os, "rename", full)
        patch.setattr(os, "replace", full)
        checkpoints.save(8, make_state(8), {})
    shutil.copytree(two / "7", two / "9.orbax-checkpoint-tmp")  # of a process that was killed
    for again in (checkpoints, Checkpoints(two)):
        assert_identical(again.restore_latest(make_state()).state, make_state(7))
    checkpoints.save(8, make_state(80), {})
    assert_identical(Checkpoints(two).restore_latest(make_state()).state, make_state(80))
    assert names(two) == ["7", "8"]


def test_without_room_nothing_is_begun(two, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=10**9, free=25_000))
    with pytest.raises(OSError, match=str(two)) as caught:
        Checkpoints(two).save(8, make_state(8), {})
    assert caught.value.errno == errno.ENOSPC and names(two) == ["6", "7"]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=0, free=0))  # unknown
    Checkpoints(two).save(8, make_state(8), {})


def test_what_the_system_says_of_an_array_that_cannot_be_written_is_raised(tmp_path, caplog):
    state = {"w": jax.random.normal(jax.random.key(0), (64, 100))}
    checkpoints = Checkpoints(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.raises(OSError) as caught:
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_800, before[1]))  # of each file
        try:
            checkpoints.save(2, state, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.errno == errno.EFBIG and not caplog.records
    assert checkpoints.restore_latest(state) is None
    checkpoints.save(2, state, {})
    assert_identical(checkpoints.restore_latest(state).state, state)


PASSING = {
    "disk": OSError(errno.EIO, "Input/output error"),
    "TensorStore's disk": ValueError("reading failed [os_error_code='5']"),
    "files": OSError(errno.EMFILE, "Too many open files"),
    "memory": MemoryError(),
    "JAX's memory": RuntimeError("RESOURCE_EXHAUSTED: Out of memory"),
}


@pytest.mark.parametrize("name", PASSING)
def test_what_the_system_could_not_read_stays_and_is_read_later(name, two, monkeypatch):
    """The newest checkpoint was once taken for damaged, and the next save deleted it."""
    checkpoints = Checkpoints(two)
    match = r"^checkpoint 7 .* cannot be read now[^\n]*$"
    with monkeypatch.context() as patch, pytest.raises(UserError, match=match):
        patch.setattr(checkpoint, "_read_array", Mock(side_effect=PASSING[name]))
        checkpoints.restore_latest(make_state())
    assert checkpoints.restore_latest(make_state()).fingerprint["step"] == 7
    assert names(two) == ["6", "7"]


def test_what_another_process_cannot_read_is_skipped_or_refused(two, monkeypatch):
    def of_two(*others):
        """Return the first of two processes; `others` are the second one's values, in order."""
        processes = Processes(0, 2)
        values = list(others)
        monkeypatch.setattr(processes, "collect", lambda value: [value, values.pop(0)])
        return processes

    checkpoints = Checkpoints(two, processes=of_two(True, None, ("torn", False), (None, False)))
    restored = checkpoints.restore_latest(make_state())
    assert restored.skipped == (f"checkpoint 7 in {two} is unreadable (torn)",)
    for others, match in (
        ((True, None, ("busy", True)), "cannot be read now"),
        ((False,), "does not see"),
    ):
        with pytest.raises(UserError, match=match):
            Checkpoints(two, processes=of_two(*others)).restore_latest(make_state())


# --- What was not saved with this state, and parameters of a finished run ---


@pytest.mark.parametrize(
    ("like", "difference"),
    [
        (
            {"w": jnp.ones((3, 5)), "b": jnp.ones(2)},
            "['w'] is float32[3, 4] there and float32[3, 5] here",
        ),
        ({"w": jnp.ones((3, 4), jnp.bfloat16), "b": jnp.ones(2)}, "and bfloat16[3, 4] here"),
        ({"w": jnp.ones((3, 4))}, "too many: ['b'] float32[2]"),
        (
            {"w": jnp.ones((3, 4)), "c": jnp.ones(5)},
            "too many: ['b'] float32[2]; missing: ['c'] float32[5]",
        ),
    ],
)
def test_another_structure_is_an_error(tmp_path, like, difference, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(4, {"w": jnp.ones((3, 4)), "b": jnp.ones(2)}, {})
    monkeypatch.setattr(checkpoint, "_sha256", lambda _: pytest.fail("an array was read"))
    problem = rf"holds other arrays than the model \([^\n]*{re.escape(difference)}"
    match = rf"^checkpoint 4 in {tmp_path} {problem}"
    with pytest.raises(UserError, match=match):
        checkpoints.restore_latest(like)


def test_arrays_larger_than_the_models_are_never_read(tmp_path, monkeypatch):
    """A checkpoint of a megabyte can hold an array of gigabytes, because zeros are compressed."""
    state = {"w": jnp.ones(3)}
    big = {"w": jnp.zeros(10**6)}
    for name, each in (("small", state), ("big", big)):
        Checkpoints(tmp_path / name).save(1, each, {})
    shutil.copytree(tmp_path / "big/1/state", tmp_path / "small/1/state", dirs_exist_ok=True)
    monkeypatch.setattr(checkpoint, "_sha256", lambda _: pytest.fail("an array was read"))
    with pytest.raises(UserError, match="stored in another size"):
        Checkpoints(tmp_path / "small").restore_latest(state)


def test_only_the_parameters_are_read_and_verified_and_nothing_is_changed(tmp_path, monkeypatch):
    """The optimizer state may be large, and a trained model does not need it."""
    run = RunDir.open(tmp_path, {})
    like = {"w": jax.ShapeDtypeStruct((3,), jnp.int32)}
    for step in (1, 2):
        state = {"best": {"w": jnp.full((2, 3), step)}, "rest": jnp.zeros(2)}
        Checkpoints(run.checkpoints).save(step, state, {})
    shutil.copytree(run.checkpoints / "1", run.checkpoints / "3.orbax-checkpoint-tmp-1")
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    read_array = checkpoint._read_array
    read = []
    with monkeypatch.context() as patch:
        patch.setattr(
            checkpoint, "_read_array", lambda *args: read.append(args[1]) or read_array(*args)
        )
        np.testing.assert_array_equal(selected_params(run, like, 2)["w"], np.full((2, 3), 2))
    assert read == ["best.w"]
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before
    with monkeypatch.context() as patch, pytest.raises(UserError, match="checksum"):
        patch.setattr(checkpoint, "_read_array", lambda *args: read_array(*args) + 1)
        selected_params(run, like, 2)
    # An older one does not silently take its place.
    document(run.checkpoints / "2").write_bytes(b"{")
    with pytest.raises(
        UserError, match=r"checkpoint 2 in .* is unreadable .*older one may hold other"
    ):
        selected_params(run, like, 2)


@pytest.mark.parametrize(
    ("like", "difference"),
    [
        ({"w": (3,)}, "too many: ['best']['b'] float32[2, 4])"),
        ({"w": (3,), "b": (4,), "c": ()}, "missing: ['best']['c'] float32[2])"),
        (
            {"w": (3,), "b": (5,)},
            "different: ['best']['b'] is float32[2, 4] there and float32[2, 5] here)",
        ),
    ],
)
def test_the_arrays_of_a_finished_run_are_exactly_those_of_the_model(like, difference, tmp_path):
    """Regression: a parameter that the code lacked was left out, and the numbers were wrong."""
    run = RunDir.open(tmp_path, {})
    state = {"best": {"w": jnp.ones((2, 3)), "b": jnp.ones((2, 4))}}
    Checkpoints(run.checkpoints).save(1, state | {"rest": jnp.zeros(2)}, {})
    like = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in like.items()}
    with pytest.raises(UserError, match=rf"^[^\n]*{re.escape(difference)}[^\n]*$"):
        selected_params(run, like, 2)


@pytest.mark.parametrize("name", ["007", "٧", "7" * 30])
def test_a_folder_that_is_not_named_as_a_checkpoint_is_named(name, two):
    """Regression: Python reads these names as numbers, whose folders were missing."""
    (two / name).mkdir()
    for call in (
        lambda: Checkpoints(two).restore_latest(make_state()),
        Checkpoints(two).fingerprint,
    ):
        with pytest.raises(UserError, match=rf"^[^\n]*{name} is not named as a checkpoint[^\n]*$"):
            call()


def test_a_description_that_is_none_is_damage(two):
    """Also one with a right checksum: it may be a stranger's."""
    for content in ({}, [], {"meta": [], "leaves": []}, {"meta": {}, "leaves": [{"path": 5}]}):
        if content:
            content = (
                {**content, "sha256": checkpoint._digest(content)}
                if isinstance(content, dict)
                else content
            )
        document(two / "7").write_text(json.dumps(content))
        assert Checkpoints(two).restore_latest(make_state()).fingerprint["step"] == 6
        assert Checkpoints(two).fingerprint() == {"step": 7, "sha256": ""}
