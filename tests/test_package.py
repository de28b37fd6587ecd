"""Check the package from outside: its names, its wheel, its layers, and imports without extras."""

import ast
import importlib.metadata
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
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


# --- Layers ---

# The packages of the core, and which other packages each may import.
LAYERS = {
    "errors": set(),
    "functional": {"errors"},
    "rl": {"functional", "errors"},
    "nn": {"functional", "rl", "errors"},
    "models": {"functional", "rl", "nn", "errors"},
}
MODULES = sorted((ROOT / "dynskip_jax").rglob("*.py"))


def imports_of(path):
    """Yield the names that a module imports from this package, such as (`dynskip_jax.nn`, `SkipLSTM`)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError(f"{path}: a relative import")
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "dynskip_jax":
            yield from ((node.module, alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (
                (alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "dynskip_jax"
            )


@pytest.mark.parametrize("layer", LAYERS)
def test_the_core_imports_downwards(layer):
    root = ROOT / "dynskip_jax"
    paths = sorted((root / layer).rglob("*.py")) or [root / f"{layer}.py"]
    for path in paths:
        for module, name in imports_of(path):
            _, _, inside = module.partition(".")
            package = (inside or name).partition(".")[0]
            assert package in LAYERS[layer] | {layer}, f"{path} imports {module}.{name}"


def private_uses(path):
    """Yield the private names of other modules that a module imports or reads."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    modules = set()
    for module, name in imports_of(path):
        if any(part.startswith("_") and not part.endswith("__") for part in (*module.split("."), name)):
            yield f"{module}.{name}"
        modules.add(name or module)
    aliases = {
        alias.asname: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        for alias in node.names
        if alias.asname
    }
    names = {new for new, old in aliases.items() if old in modules} | modules
    public = {"_fields", "_replace", "_make", "_asdict"}  # of named tuples
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
            continue
        is_private = node.attr.startswith("_") and not node.attr.endswith("__") and node.attr not in public
        if is_private and node.value.id in names:
            yield f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_uses_private_names_of_another(path):
    assert not list(private_uses(path))


# --- Extras ---

CORE = """
import contextlib, importlib.abc, io, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"array_record", "filelock", "matplotlib", "tensorflow_datasets"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import dynskip_jax.functional, dynskip_jax.nn, dynskip_jax.models, dynskip_jax.data
import dynskip_jax.rl, dynskip_jax.training.step, dynskip_jax.tasks
for name in ("analysis.plots", "analysis.arcs", "training.folder", "data.builders", "training.loop"):
    try:
        importlib.import_module(f"dynskip_jax.{name}")
    except ImportError as error:
        print(error)

from dynskip_jax import cli
cli.run_main(lambda: cli.main(["ptb", "--epochs", "1"]))
"""


@pytest.fixture(scope="module")
def without_extras():
    """Return the result of a process that runs CORE without the packages that only extras install."""
    return subprocess.run([sys.executable, "-c", CORE], capture_output=True, text=True, cwd=ROOT)


def test_the_core_needs_no_extra_and_what_does_says_so_in_one_line(without_extras):
    run = without_extras
    said = ["matplotlib", "matplotlib", "filelock", "tensorflow_datasets", "filelock"]
    remedy = 'is not installed: pip install -e ".[experiments]" in a checkout'
    assert run.stdout.splitlines() == [f"{name} {remedy}" for name in said]
    assert run.returncode == 2 and run.stderr == f"error: matplotlib {remedy}\n"


def test_the_citation_is_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {dynskip_jax.__version__}\n" in citation
