"""What the package is from outside: its names, and what a wheel of it holds."""

import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import setuptools

import dynskip_jax

ROOT = Path(__file__).parents[1]


def test_names_are_imported_when_they_are_asked_for():
    for name in dynskip_jax.__all__:
        assert getattr(dynskip_jax, name) is not None
    assert dynskip_jax.__version__ == importlib.metadata.version("dynskip_jax")
    assert set(dir(dynskip_jax)) == set(dynskip_jax.__all__)
    heavy = "import sys, dynskip_jax; print([m for m in ('jax', 'flax') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_a_wheel_holds_the_library_alone():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    found = setuptools.find_packages(ROOT, include=settings["include"])
    assert {name.split(".")[0] for name in found} == {"dynskip_jax"}
    folders = {str(path.parent.relative_to(ROOT)) for path in (ROOT / "dynskip_jax").rglob("__init__.py")}
    assert {name.replace(".", "/") for name in found} == folders
