"""Check the notebook for Colab: its structure, what it would install, and all of its cells at a tiny size."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
import types
import unittest.mock
import zipfile
from pathlib import Path

import numpy as np
import pytest
import quick
from jax.experimental.pallas import tpu as pltpu
from packaging.requirements import Requirement

import dynskip_jax
from dynskip_jax import functional as F
from dynskip_jax.cli import read_training
from dynskip_jax.experiment import find_experiment
from dynskip_jax.functional import tpu_kernel
from dynskip_jax.settings import get

ROOT = Path(dynskip_jax.__file__).parents[1]
NUMBERS, PTB = (find_experiment(name) for name in ("number_prediction", "ptb"))
NOTEBOOK = json.loads((ROOT / "experiments" / "colab.ipynb").read_text(encoding="utf-8"))
CELLS = {cell["id"]: cell for cell in NOTEBOOK["cells"]}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COLAB = "https://colab.research.google.com/"
COMMANDS = {experiment.name: experiment for experiment in (NUMBERS, PTB)}
NEEDS = [Requirement(need) for need in PROJECT["dependencies"]]
PINS = next(str(need.specifier) for need in NEEDS if need.name == "jax")
JAX_PINS = f"jax{PINS}"
FLAX = next(str(need) for need in NEEDS if need.name == "flax")


def source(name):
    return "".join(CELLS[name]["source"])


def run_cell(name, namespace, **changes):
    exec(compile(source(name), f"colab.ipynb:{name}", "exec"), namespace)
    namespace |= changes


CODE_CELLS = [name for name, cell in CELLS.items() if cell["cell_type"] == "code"]


def namespace_of(*names, **parameters):
    """Run the cell `parameters`, set some parameters, run the cells `names`, and return all definitions."""
    namespace = {"__name__": "__main__"}
    run_cell("parameters", namespace, **parameters)
    for name in names:
        run_cell(name, namespace)
    return namespace


def cells(first, last):
    return CODE_CELLS[CODE_CELLS.index(first) : CODE_CELLS.index(last) + 1]


@pytest.fixture
def functions():
    """Return the definitions of the cell with the installer's functions."""
    return namespace_of("install-functions")


pytestmark = pytest.mark.usefixtures("here")


def pictures(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*.png")}


# --- Structure ---


def test_is_a_notebook_without_outputs():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert NOTEBOOK["metadata"]["kernelspec"]["name"] == "python3"
    assert len(CELLS) == len(NOTEBOOK["cells"])
    for cell in NOTEBOOK["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert isinstance(cell["metadata"], dict)
        assert all(isinstance(line, str) for line in cell["source"])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
        if cell["cell_type"] == "code":
            keys |= {"execution_count", "outputs"}
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
            compile("".join(cell["source"]), cell["id"], "exec")
        else:
            assert cell["cell_type"] == "markdown"
        assert cell.keys() == keys


def test_every_parameter_is_a_form_field():
    lines = [line for line in source("parameters").splitlines() if line and not line.startswith("#")]
    assert len(lines) > 10
    for line in lines:
        assert re.fullmatch(r"[A-Z_]+ = .*  # @param (\{.*\}|\[.*\]|\[.*\] \{.*\})", line), line
    presets = re.search(r"LANGUAGE_PRESET = .*@param (\[.*\])", source("parameters"))[1]
    assert set(json.loads(presets)) <= set(PTB.presets)


def test_the_badge_leads_to_the_projects_address_or_to_no_invented_one():
    """The badge links to the notebook in the repository, or to Colab if there is no repository.

    One line of pyproject.toml sets the address of the repository (see CONTRIBUTING.md). Without an address,
    users upload the notebook to Colab, and nothing is cloned.
    """
    address = PROJECT.get("urls", {}).get("Repository", "")
    (path,) = re.findall(r"^https://github\.com/([^/]+/[^/]+?)/?$", address) or [""]
    wanted = COLAB + (f"github/{path}/blob/main/experiments/colab.ipynb" if path else "")
    for text in (source("title"), (ROOT / "README.md").read_text(encoding="utf-8")):
        assert re.findall(r"\[!\[Open in Colab\]\([^)]+\)\]\(([^)]+)\)", text) == [wanted]
    assert namespace_of()["REPOSITORY"] == address


def test_figures_in_the_text_are_measured_ones():
    """Each figure in the notebook's text also occurs in RESULTS.md or README.md.

    Minutes must occur in RESULTS.md, seconds in README.md, and numbers with a decimal point in either file.
    """
    results, readme = ((ROOT / name).read_text(encoding="utf-8") for name in ("RESULTS.md", "README.md"))
    text = "\n".join(source(name) for name, cell in CELLS.items() if cell["cell_type"] == "markdown")
    measured = re.findall(r"(?<![\d.])\d+\.\d+(?!\d|\.\d)", text.replace("λ = 0.5", ""))
    assert {"76.24", "100.00", "98.37", "115.11", "111.59", "78.33", "74.77", "99.8"} <= set(measured)
    for number in measured:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", results + readme), number
    for number in re.findall(r"(\d+) min\b", text):
        assert re.search(rf"(?<!\d){number} min\b", results), number
    for number in re.findall(r"(\d+) s\b", text):
        assert re.search(rf"(?<!\d){number} s\b", readme), number
    for said in ("99.7, 99.8 and 99.4 %", "91.4, 89.7 and 91.2 %"):  # in this order
        assert said in " ".join(text.split()) and said in " ".join(readme.split())


def test_the_first_example_is_that_of_readme():
    """The notebook runs the code in README.md, so that the figures there apply to the notebook."""
    readme = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]
    (own,) = [readme[readme.index("rnn = SkipLSTM(") :].partition("\n\n\nfor step")[0]]
    assert source("own-model").endswith(own)
    assert CODE_CELLS.index("own-model") == CODE_CELLS.index("helpers") + 1


@pytest.mark.parametrize(
    ("length", "preset", "mix", "quick"), [(11, "relaxed", 0.5, True), (21, "two_hops", 1.0, False)]
)
def test_flags_leave_the_presets_alone(length, preset, mix, quick, monkeypatch):
    """At length 11 only, quick settings change size and epochs. λ is the preset's unless MIX is set."""
    for settings in ("quick", "full"):
        given = flags_of("numbers", monkeypatch, LENGTH=length, QUICK=settings == "quick")
        chosen, flags = resolved(NUMBERS, given)
        assert chosen == preset and flags["mix"] == mix
        of_preset = NUMBERS.presets[preset]
        small = quick and settings == "quick"
        assert (flags["epochs"], flags["features"]) == (
            (4, 50) if small else (of_preset["epochs"], of_preset.get("features", 200))
        )
    given = flags_of("numbers", monkeypatch, LENGTH=length, QUICK=True, MIX="0.25", EPOCHS=2)
    assert resolved(NUMBERS, given)[1]["mix"] == 0.25
    assert resolved(NUMBERS, given)[1]["epochs"] == 2


@pytest.mark.parametrize(
    ("quick", "parameters", "dataset"),
    [
        (True, {}, "pydoc-topics"),
        (False, {}, None),
        (True, {"CORPUS": "ptb"}, "ptb"),
        (True, {"CORPUS_FOLDER": "x"}, None),
    ],
)
def test_quick_settings_take_the_embedded_corpus(quick, parameters, dataset, monkeypatch):
    given = flags_of("language", monkeypatch, QUICK=quick, **parameters)
    assert (given[given.index("--dataset") + 1] if "--dataset" in given else None) == dataset
    read_training(PTB, given)


def flags_of(cell, monkeypatch, **changes):
    """Return the flags with which a cell would train."""
    namespace, given = namespace_of("install-functions", "helpers", **changes), []
    namespace["train_run"] = lambda task, *flags: given.extend(flags)
    run_cell(cell, namespace)
    return given


def resolved(command, given):
    """Return the preset that the flags select, and the resulting `mix`, `epochs` and `features`."""
    settings = read_training(command, given)[0].settings
    return settings.run.preset, {name: get(settings, name) for name in ("mix", "epochs", "features")}


# --- What would be installed ---


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ((), {}, "cpu"),
        (("accel0",), {}, "tpu"),
        (("vfio/0", "vfio/vfio"), {}, "tpu"),
        (("vfio/vfio",), {}, "cpu"),
        (("accel/accel0",), {}, "cpu"),
        ((), {"TPU_NAME": "local"}, "tpu"),
    ],
)
def test_device_without_a_gpu(files, environment, expected, functions, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("TPU_NAME", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for name in files:
        (tmp_path / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "dev" / name).touch()
    assert functions["nvidia_driver"]() == 0
    assert functions["find_device"](tmp_path / "dev") == expected


@pytest.mark.parametrize(
    ("answer", "status", "driver"),
    [("580.95.05", 0, 580), ("550.54.15\n550.54.15", 0, 550), ("NVIDIA-SMI has failed.", 9, 0), ("", 0, 0)],
)
def test_device_with_nvidia_smi(answer, status, driver, functions, monkeypatch, tmp_path):
    for name in ("TPU_NAME", "TPU_ACCELERATOR_TYPE"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' '{answer}'\nexit {status}\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert functions["nvidia_driver"]() == driver
    assert functions["find_device"](tmp_path / "dev") == ("gpu" if driver else "cpu")


@pytest.mark.parametrize(
    ("device", "driver", "there", "jax"),
    [
        ("cpu", 0, {}, JAX_PINS),
        ("cpu", 0, {"jax": "0.10.2"}, None),
        ("cpu", 0, {"jax": "0.7.2"}, JAX_PINS),
        ("gpu", 580, {}, f"jax[cuda13]{PINS}"),
        ("gpu", 550, {}, f"jax[cuda12]{PINS}"),
        ("gpu", 580, {"jax": "0.7.2", "jax-cuda12-plugin": "0.7.2"}, f"jax[cuda12]{PINS}"),
        ("gpu", 580, {"jax": "0.11.0", "jax-cuda12-plugin": "0.11.0"}, None),
        ("gpu", 580, {"jax": "0.11.0", "jax-cuda13-plugin": "0.11.0"}, None),
        ("gpu", 580, {"jax": "0.11.0"}, f"jax[cuda13]{PINS}"),
        ("gpu", 580, {"jax": "0.11.0", "jax-cuda12-plugin": "0.7.2"}, f"jax[cuda12]{PINS}"),
        ("tpu", 0, {}, f"jax[tpu]{PINS}"),
        ("tpu", 0, {"jax": "0.7.2", "libtpu": "0.0.20"}, f"jax[tpu]{PINS}"),
        ("tpu", 0, {"jax": "0.11.0"}, f"jax[tpu]{PINS}"),
        ("tpu", 0, {"jax": "0.11.0", "libtpu": "0.0.48"}, None),
    ],
)
def test_a_jax_that_fits_is_left_alone(device, driver, there, jax, functions):
    functions["installed"] = there.get
    assert functions["jax_requirements"](ROOT, device, driver) == ([jax] if jax else [])


def make_project(folder):
    (folder / "dynskip_jax").mkdir(parents=True)
    (folder / "dynskip_jax" / "__init__.py").touch()
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return folder


def make_wheel(folder):
    """Write a wheel that contains only its metadata, and return its path."""
    path = folder / "dynskip_jax-0.1.0-py3-none-any.whl"
    needs = [*PROJECT["dependencies"], "matplotlib>=3.9; extra == 'experiments'", "rich>=13; extra == 'test'"]
    metadata = "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("dynskip_jax-0.1.0.dist-info/METADATA", f"Metadata-Version: 2.4\n{metadata}")
    return path


def version_that_fits(package):
    """Return the lowest version of a package that the project allows; None if it is not required."""
    needs = [*NEEDS, *map(Requirement, PROJECT["optional-dependencies"]["experiments"])]
    found = {need.name: s.version for need in needs for s in need.specifier if s.operator == ">="}
    return found.get(package)


def test_source_is_the_checkout_around(monkeypatch, tmp_path):
    checkout = make_project(tmp_path / "checkout")
    (checkout / "experiments").mkdir()
    monkeypatch.chdir(checkout / "experiments")
    assert namespace_of("install-functions")["find_source"]() == checkout


def test_source_is_an_uploaded_folder(tmp_path):
    folder = make_project(tmp_path / "uploaded")
    assert namespace_of("install-functions", REPOSITORY=str(folder))["find_source"]() == folder


@pytest.mark.parametrize(("form", "ending"), [("zip", "zip"), ("gztar", "tar.gz")])
@pytest.mark.parametrize("named", [True, False])
def test_source_is_an_uploaded_archive(form, ending, named, tmp_path, here):
    """REPOSITORY names the archive, or the archive is in the current folder, next to a wheel."""
    make_project(tmp_path / "packed" / "main")
    path = (tmp_path if named else here) / f"dynskip_jax-0.1.0.{ending}"
    functions = namespace_of("install-functions", REPOSITORY=str(path) if named else "")
    functions["shutil"].make_archive(str(path).removesuffix(f".{ending}"), form, tmp_path / "packed")
    make_wheel(here)
    assert functions["find_source"]() == here / "dynskip_jax-source" / "main"


def test_source_is_a_wheel(here):
    wheel = make_wheel(here)
    functions = namespace_of("install-functions")
    functions["installed"] = lambda package: None
    assert functions["find_source"]() == wheel
    source, wanted = functions["find_and_require"]("cpu", 0)
    assert (source, wanted) == (wheel, [f"{wheel}[experiments]", JAX_PINS])
    names = {need.name for need in functions["needs"](wheel)}
    assert {"jax", "flax", "matplotlib"} <= names and "rich" not in names


def test_colab_asks_for_a_file(monkeypatch, here):
    def upload():
        return {make_wheel(here).name: b""}

    modules = {"google.colab": types.SimpleNamespace(files=types.SimpleNamespace(upload=upload))}
    monkeypatch.setitem(sys.modules, "google.colab", modules["google.colab"])
    assert namespace_of("install-functions")["find_source"]() == here / "dynskip_jax-0.1.0-py3-none-any.whl"


def test_source_is_cloned_once(monkeypatch, here):
    commands = []

    def clone(command, **options):
        commands.append(command)
        make_project(Path(command[-1]))

    functions = namespace_of("install-functions", REPOSITORY="https://git.example/someone/project")
    monkeypatch.setattr(subprocess, "run", clone)
    assert functions["find_source"]() == functions["find_source"]() == here / "dynskip_jax-source"
    address = "https://git.example/someone/project"
    assert commands == [["git", "clone", "--depth", "1", address, str(here / "dynskip_jax-source")]]


@pytest.mark.parametrize("repository", ["", "here"])
def test_a_missing_source_is_said_in_one_line(repository, tmp_path):
    functions = namespace_of("install-functions", REPOSITORY=str(tmp_path / repository) if repository else "")
    with pytest.raises(functions["Hint"], match="REPOSITORY") as raised:
        functions["find_source"]()
    (line,) = raised.value._render_traceback_()
    assert "\n" not in line


@pytest.mark.parametrize(
    ("versions", "wanted"),
    [({}, []), ({"flax": "0.11.2"}, [FLAX]), ({"rich": None}, ["rich>=13"])],
)
def test_what_is_installed_is_used_and_what_lacks_is_added(versions, wanted, functions):
    needs = functions["needs"]
    functions |= dict(
        needs=lambda source: needs(ROOT), installed=versions_with({"jax": "0.10.2", **versions})
    )
    assert functions["find_and_require"]("cpu", 0) == (None, wanted)


def versions_with(versions):
    """Return a stand-in for `installed` that returns `versions`.

    For a package that is not in `versions`, it returns a version that fits.
    """
    return lambda name: versions.get(name, "0.1.0" if name == "dynskip_jax" else version_that_fits(name))


@pytest.mark.parametrize(("jax", "fits"), [("0.10.2", True), ("0.7.2", False)])
def test_a_checkout_with_all_it_needs_is_used_as_it_is(jax, fits, functions, monkeypatch, tmp_path):
    checkout = make_project(tmp_path / "checkout")
    monkeypatch.chdir(checkout)
    functions["installed"] = versions_with({"dynskip_jax": None, "jax": jax})
    wanted = [] if fits else ["-e", f"{checkout}[experiments]", JAX_PINS]
    assert functions["find_and_require"]("cpu", 0) == (checkout, wanted)


def test_pip_is_called_where_the_project_is_not_installed(monkeypatch, tmp_path, capsys):
    folder = make_project(tmp_path / "uploaded")
    functions = namespace_of("install-functions", REPOSITORY=str(folder))
    monkeypatch.setattr(sys, "path", [*sys.path])
    versions = {"jax": "0.7.2", "numpy": np.__version__}
    commands = []

    def pip(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    wanted = ["-e", str(folder), JAX_PINS]
    monkeypatch.setitem(
        functions,
        "installed",
        lambda name: versions.get(name, getattr(sys.modules.get(name), "__version__", None)),
    )
    monkeypatch.setitem(functions, "find_device", lambda: "cpu")
    monkeypatch.setitem(functions, "find_and_require", lambda *arguments: (folder, wanted))
    monkeypatch.setattr(subprocess, "run", pip)
    # This process has imported another version of JAX than `installed` reports after pip.
    with pytest.raises(functions["Hint"], match=r"older jax\. Choose Runtime → Restart"):
        run_cell("install", functions)
    assert commands[-1] == [sys.executable, "-m", "pip", "install", "-q", *wanted]
    assert sys.path[0] == str(folder) == functions["environment"]()["PYTHONPATH"].split(os.pathsep)[0]
    assert "device: cpu" in capsys.readouterr().out


# --- Training cells ---


class Process:
    """Stand-in for a process, with the lines that it writes and its exit status."""

    def __init__(self, lines, status):
        self.stdout, self.status, self.signals = iter(lines), status, []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait(self):
        return self.status

    def send_signal(self, number):
        self.signals.append(number)


@pytest.fixture
def in_this_process(monkeypatch, command):
    """Run `python -m dynskip_jax.cli <task>` in this process, on the tests' small data sets."""
    real = subprocess.Popen
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in notebooks

    def start(arguments, **options):
        if arguments[1:4] != ["-u", "-m", "dynskip_jax.cli"]:
            return real(arguments, **options)
        assert arguments[0] == sys.executable and options["stderr"] == subprocess.STDOUT
        assert not {"FORCE_COLOR", "TTY_COMPATIBLE"} & options["env"].keys()
        with unittest.mock.patch.dict(os.environ, options["env"], clear=True):
            outcome = command(COMMANDS[arguments[4]], *arguments[5:])
        return Process((outcome.out + outcome.err).splitlines(keepends=True), outcome.status)

    monkeypatch.setattr(subprocess, "Popen", start)


TINY = dict(
    QUICK=False,
    SOURCE=None,
    EPOCHS=1,
    MORE_FLAGS="--features 4 --batch-size 20",
    LANGUAGE_EPOCHS=1,
    LANGUAGE_FLAGS="--features 4 --num-layers 1 --agent-features 2 --num-steps 5 --batch-size 4",
)


@pytest.mark.slow
def test_number_prediction_cells(in_this_process, small_number_prediction, capsys):
    namespace = namespace_of("install-functions", "helpers", *cells("numbers", "numbers-explain"), **TINY)
    out = capsys.readouterr().out
    folder = namespace["NUMBERS"]
    assert folder.parent == Path("runs/number_prediction")
    assert "--length 11 --compare lstm,dynamic:10 --epochs 1 --features 4" in out
    result = json.loads((folder / "result.json").read_text())
    assert [row["model"] for row in result["rows"]] == ["lstm", "dynamic:10"]
    (explained,) = [name for name in pictures(folder) if name.startswith("plots/explain-dynamic-10-")]
    shown = {
        "plots/dev_accuracy.png",
        "dynamic-10/plots/skips_by_position.png",
        "dynamic-10/plots/last_skip_against_truth.png",
        "dynamic-10/plots/policy_1.png",
        explained,
    }
    assert pictures(folder) == shown | {f"{m}/plots/learning_curve.png" for m in ("dynamic-10", "lstm")}
    assert {line for line in out.splitlines() if line.endswith(".png") and "picture:" not in line} == {
        f"{folder}/{name}" for name in shown
    }
    assert f"{folder}/explain.html\n" in out
    # The table has the paper's rows, and the notebook prints what it reads from result.json.
    assert "paper: LSTM" in out and "90.50%" in out  # long names have several lines
    for model in ("dynamic:10", "lstm"):
        assert re.search(rf"^ +{model}  test_accuracy \d+\.\d\d%  best epoch 1 of 1$", out, re.M)

    # A finished run below PRETRAINED is loaded, not trained again.
    (folder.parent / "numbers").symlink_to(folder.absolute())
    namespace |= dict(PRETRAINED=str(folder.parent), train_run=None)
    for name in cells("numbers", "numbers-explain"):
        run_cell(name, namespace)
    assert f"read from {folder.parent / 'numbers'}" in capsys.readouterr().out


@pytest.mark.slow
def test_language_cells(in_this_process, corpus_folder, capsys):
    parameters = TINY | dict(CORPUS_FOLDER=str(corpus_folder), LANGUAGE_MODELS="dynamic:3")
    parameters |= dict(SENTENCE="a b b h")
    names = ("install-functions", "helpers", *cells("language", "explain"), "results")
    folder = namespace_of(*names, **parameters)["LANGUAGE"]
    out = capsys.readouterr().out
    assert json.loads((folder / "result.json").read_text())["dataset"]["name"] == "letters"
    assert f"{folder}/result.json\n" in out and f"{folder}/explain.html\n" in out
    (explained,) = folder.glob("plots/explain-dynamic-3-seed-0-a-b-b-h-*.png")
    for path in (
        explained,
        *(folder / "plots" / f"{name}.png" for name in ("learning_curve", "skips_by_word")),
    ):
        assert f"{path}\n" in out
    assert re.search(r"^ +dynamic:3  test_perplexity \d+\.\d\d  best epoch 1 of 1$", out, re.M)
    assert "dynamic:3: next word " in out


def test_functions_of_the_library_exist():
    """All cells run only in slow tests; this test finds renamed functions without them."""
    names = {name for cell in CODE_CELLS for name in re.findall(r"\bF\.(\w+)", source(cell))}
    assert {"agent_logits", "last_valid"} <= names
    assert [name for name in sorted(names) if not hasattr(F, name)] == []


def test_without_a_tpu_the_kernels_cell_says_so(capsys):
    run_cell("tpu", {"__name__": "__main__"})
    assert "no TPU here, but a cpu" in capsys.readouterr().out


@pytest.mark.slow
def test_the_kernels_cell_compares_it_with_the_scan(monkeypatch):
    namespace = {"__name__": "__main__"}
    run_cell("tpu", namespace)
    monkeypatch.setattr(tpu_kernel, "ANYWHERE", True)
    with pltpu.force_tpu_interpret_mode():
        difference, *milliseconds = namespace["kernel_against_scan"](batch=2, steps=3, units=4, rounds=1)
    assert difference < 1e-4 and min(milliseconds) > 0


@pytest.mark.slow
def test_own_model_cells(here, capsys):
    names = ("install-functions", "helpers", *cells("own-model", "own-probabilities"))
    namespace = namespace_of(*names, SOURCE=None, OWN_EPOCHS=6)
    out = capsys.readouterr().out
    assert float(re.search(r"^(\d+\.\d)% of 10,000 unseen sequences$", out, re.M)[1]) > 50
    rows = re.findall(r"^(?: {2,3}[a-e←1-8]{1,2})+   k = \d, says [a-e], right is [a-e]$", out, re.M)
    assert len(rows) == 6
    assert "runs/own_model.png\n" in out
    assert (here / "runs" / "own_model.png").stat().st_size > 1000

    probabilities, decision, n = (namespace[name] for name in ("probabilities", "decision", "n"))
    time = len(probabilities)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    chosen = probabilities[np.arange(time), np.asarray(decision.action[n, :time]) - 1]
    np.testing.assert_allclose(chosen, probabilities.max(axis=1), rtol=1e-6)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=1)
    np.testing.assert_allclose(entropy, decision.entropy[n, :time], rtol=1e-3, atol=1e-5)

    lines = out.splitlines()
    for row, arc in ((row, lines[lines.index(row) + 1]) for row in rows):
        k, tokens = int(re.search(r"k = (\d)", row)[1]), row.partition("   k")[0]
        # Tokens end in columns 3, 7, …. The arc goes to the pointer from the symbol k steps back, or from
        # before the text.
        start = len(tokens) - 1 - 4 * k
        assert arc.index("╯") == len(tokens) - 1
        assert arc.index("⋮" if start < 0 else "╰") == max(start, 0)


def test_one_model_has_no_folders_within(in_this_process, monkeypatch, capsys):
    """An experiment that compiles in milliseconds replaces number prediction."""
    monkeypatch.setitem(COMMANDS, "number_prediction", quick.Quick)
    namespace = namespace_of("install-functions", "helpers", **TINY | dict(BASELINE="", MODEL="fixed:3"))
    for name in ("numbers", "numbers-rows", "curve", "positions", "truth", "numbers-explain"):
        run_cell(name, namespace)
    out = capsys.readouterr().out
    assert pictures(namespace["NUMBERS"]) == {"plots/learning_curve.png"}
    assert re.search(r"^ +fixed:3  test_accuracy ", out, re.M)
    assert "no skips_by_position.png" in out and "no last_skip_against_truth.png" in out

    # The same parameters find the same folder.
    run_cell("numbers", namespace)
    assert "finished already" in capsys.readouterr().out


def test_a_failed_command_is_said_in_one_line(in_this_process, small_number_prediction, here, capsys):
    namespace = namespace_of("install-functions", "helpers", **TINY | dict(MODEL="nope"))
    with pytest.raises(namespace["Hint"], match="status 2"):
        run_cell("numbers", namespace)
    assert "error: there is no model 'nope'" in capsys.readouterr().out
    assert not (here / "runs").exists()


def test_the_stop_button_lets_the_command_save(monkeypatch, capsys):
    namespace = namespace_of("install-functions", "helpers", **TINY)

    def lines():
        yield "training\n"
        raise KeyboardInterrupt

    class Interrupted(Process):
        def send_signal(self, number):
            super().send_signal(number)
            self.stdout = iter(["stopped after step 3 of 9; progress is saved\n"])

    process = Interrupted(lines(), 130)
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: process)
    with pytest.raises(namespace["Hint"], match="Run this cell again"):
        run_cell("numbers", namespace)
    assert process.signals == [signal.SIGINT]
    assert "training\nstopped after step 3" in capsys.readouterr().out


@pytest.mark.slow
def test_all_cells_run_from_top_to_bottom_with_quick_settings(monkeypatch, here):
    """The cells run in a process of their own, on full data sets. Both agents learn their tasks."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as in notebooks
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", python_path)
    text = "\n".join(map(source, CODE_CELLS)).replace('SETTINGS = "auto"', 'SETTINGS = "quick"')
    (here / "all.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", "all.py"]
    made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    out = made.stdout
    assert made.returncode == 0, out
    assert "settings: quick" in out and "not drawn" not in out and "\x1b" not in out and "left out" not in out
    assert float(re.search(r"^(\d+\.\d)% of 10,000 unseen sequences$", out, re.M)[1]) > 98
    assert "data: number_prediction/length_11" in out and "train 100,000" in out
    assert float(re.search(r"^ +dynamic:10  test_accuracy (\d+\.\d\d)%  best epoch", out, re.M)[1]) > 98
    perplexities = re.findall(r"^ +(?:lstm|dynamic:5)  test_perplexity (\d+\.\d\d)  best epoch", out, re.M)
    assert len(perplexities) == 2 and all(60 < float(each) < 110 for each in perplexities)
    shown = {
        Path(line).name for line in out.splitlines() if line.endswith((".png", ".html")) and " " not in line
    }
    assert {name for name in shown if not name.startswith("explain-")} == {
        *("own_model.png", "dev_accuracy.png", "policy_1.png", "skips_by_position.png"),
        "last_skip_against_truth.png",
        *("dev_perplexity.png", "skips_by_word.png", "explain.html"),
    }
    assert len([name for name in shown if name.startswith("explain-")]) == 2
    assert len(list(here.glob("runs/*/*/result.json"))) == 2
