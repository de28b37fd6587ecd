"""Check the package from outside: its names, its wheel, its layers, and imports without extras."""

import ast
import graphlib
import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

import dynskip_jax

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "dynskip_jax").rglob("*.py")
}


def test_names_are_imported_when_they_are_asked_for():
    for name in dynskip_jax.__all__:
        assert getattr(dynskip_jax, name) is not None
    heavy = "import sys, dynskip_jax; print([m for m in ('jax', 'flax') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", heavy], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_the_version_is_the_same_everywhere():
    assert dynskip_jax.__version__ == importlib.metadata.version("dynskip_jax")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {dynskip_jax.__version__}\n" in citation


# The packages of the core, and which other packages each may import.
LAYERS = {
    "errors": set(),
    "functional": {"errors"},
    "rl": {"functional", "errors"},
    "nn": {"functional", "rl", "errors"},
    "models": {"functional", "rl", "nn", "errors"},
}


def imports_of(name):
    """Return the package's modules that a module imports: anywhere, for type hints, or by a
    constant name.
    """
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                assert not node.level, f"{name}: a relative import"
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {name if name in MODULES else node.module for name in names}
            case ast.Call(
                func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=module)]
            ):
                found.add(module)
    return found & MODULES.keys()


def layer_of(name):
    return name.partition(".")[2].partition(".")[0]


@pytest.mark.parametrize("layer", LAYERS)
def test_the_core_imports_downwards(layer):
    for name in (name for name in MODULES if layer_of(name) == layer):
        assert {layer_of(imported) for imported in imports_of(name)} <= LAYERS[layer] | {layer}, (
            name
        )


# All files and folders of the package, from the lowest floor to the highest.
FLOORS = (
    *("errors", "terminal", "data", "config", "storage"),
    *("functional", "rl", "nn", "models", "analysis", "training", "tasks", "agents"),
    *("runs", "experiments", "commands", "cli"),
)


def test_folders_import_downwards():
    for name in MODULES:
        if layer_of(name):  # the package's own names are those of the floors
            floor = FLOORS.index(layer_of(name))
            below = {*FLOORS[: floor + 1]}
            assert {layer_of(imported) for imported in imports_of(name)} <= below, name


def test_no_imports_go_in_a_circle():
    graphlib.TopologicalSorter({name: imports_of(name) for name in MODULES}).prepare()


CORE = """
import contextlib, importlib.abc, io, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        extras = {"array_record", "filelock", "matplotlib", "tensorflow_datasets"}
        if name.partition(".")[0] in extras:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import dynskip_jax.functional, dynskip_jax.nn, dynskip_jax.models, dynskip_jax.data
import dynskip_jax.rl, dynskip_jax.training.step, dynskip_jax.tasks
of_analysis = ["analysis.plots", "analysis.arcs"]
for name in (*of_analysis, "storage.folder", "data.builders", "training.loop"):
    try:
        importlib.import_module(f"dynskip_jax.{name}")
    except ImportError as error:
        print(error)

from dynskip_jax.cli import main as cli
cli.run_main(lambda: cli.main(["ptb", "--epochs", "1"]))
"""


def test_the_core_needs_no_extra_and_what_does_says_so_in_one_line():
    run = subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, cwd=ROOT)
    said = ["matplotlib", "matplotlib", "filelock", "tensorflow_datasets", "filelock"]
    remedy = 'is not installed: pip install -e ".[experiments]" in a checkout'
    assert run.stdout.splitlines() == [f"{name} {remedy}" for name in said]
    assert run.returncode == 2 and run.stderr == f"error: matplotlib {remedy}\n"
