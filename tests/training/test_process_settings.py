"""Check what is set for a whole process: the folder of compiled programs, and the user's."""

import jax
import pytest

from dynskip_jax.training.devices import keep_compiled_programs


@pytest.fixture
def settings(recwarn):
    """Unset the folder of JAX's compilation cache for a test; restore JAX's settings afterwards."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_it_is_in_the_users_home_and_a_set_folder_stays(settings, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    keep_compiled_programs()
    folder = tmp_path / ".cache" / "dynskip_jax" / "compiled"
    assert folder.is_dir() and jax.config.jax_compilation_cache_dir == str(folder)
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    keep_compiled_programs()
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "own")
