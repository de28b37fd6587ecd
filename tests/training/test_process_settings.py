"""Check what is set for a whole process: the folder of compiled programs, and the user's."""

import os
import subprocess
import sys

import jax
import matplotlib
import pytest

from dynskip_jax.training.compilation_cache import keep_compiled_programs
from dynskip_jax.training.host_memory import keep_freed_memory

PROGRAM = """
import jax
from dynskip_jax.terminal.failures import run_main
from dynskip_jax.config.settings import Devices
from dynskip_jax.training.devices import join

events = []
jax.monitoring.register_event_listener(lambda name, **_: events.append(name.rpartition("/")[2]))

def main():
    with join(Devices()):
        value = jax.jit(lambda x: jax.numpy.tanh(x @ x).sum())(jax.numpy.full((8, 8), 0.1))
    print(value, events.count("cache_hits"), events.count("cache_misses"))

run_main(main)
"""


def start(home, **changes):
    """Run `PROGRAM` with a folder for caches; return its value, and its loads and compilations."""
    folders = {"XDG_CACHE_HOME": str(home), "MPLCONFIGDIR": matplotlib.get_cachedir()}
    command = [sys.executable, "-c", PROGRAM]
    how = dict(capture_output=True, text=True)
    done = subprocess.run(command, env=os.environ | folders | changes, **how)
    assert (done.returncode, done.stderr) == (0, "")  # there are no warnings either
    value, hits, misses = done.stdout.split()
    return value, int(hits), int(misses)


@pytest.mark.slow
def test_second_start_loads_what_the_first_one_compiled(tmp_path, monkeypatch):
    for name in ("JAX_COMPILATION_CACHE_DIR", "JAX_ENABLE_COMPILATION_CACHE"):
        monkeypatch.delenv(name, raising=False)
    value, hits, misses = start(tmp_path)
    assert hits == 0 and misses > 0
    folder = tmp_path / "dynskip_jax" / "compiled"
    entries = sorted(folder.glob("*-cache"))
    assert len(entries) == misses
    assert folder.stat().st_mode & 0o077 == 0
    assert start(tmp_path) == (value, misses, 0)

    # A killed process may leave truncated files. They are ignored without a warning.
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-20])
    assert start(tmp_path)[:2] == (value, 0)
    off = tmp_path / "off"
    assert start(off, JAX_ENABLE_COMPILATION_CACHE="false")[1:] == (0, 0) and not off.exists()


@pytest.fixture
def settings(recwarn):
    """Unset the folder of JAX's compilation cache for a test; restore JAX's settings afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("given", ["", "relative"])
def test_it_is_in_the_users_home_and_a_set_folder_stays(given, settings, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", given)
    folder = keep_compiled_programs()
    assert folder == tmp_path / ".cache" / "dynskip_jax" / "compiled" and folder.is_dir()
    assert jax.config.jax_compilation_cache_dir == str(folder)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    assert keep_compiled_programs() is None
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")


def test_folder_that_cannot_be_written_is_no_error(settings, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert keep_compiled_programs() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert keep_compiled_programs() is None
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize("name", ["MALLOC_ARENA_MAX", "GLIBC_TUNABLES"])
def test_what_the_user_has_set_is_left_alone(name, monkeypatch):
    monkeypatch.setenv(name, "2")
    assert not keep_freed_memory()
