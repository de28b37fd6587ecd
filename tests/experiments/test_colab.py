"""The notebook for Colab: its structure, what it would install, and all of its cells at a tiny size."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import unittest.mock
from pathlib import Path

import numpy as np
import pytest

from experiments import number_prediction, ptb

ROOT = Path(ptb.__file__).parents[1]
NOTEBOOK = json.loads((ROOT / "experiments" / "colab.ipynb").read_text(encoding="utf-8"))
CELLS = {cell["id"]: cell for cell in NOTEBOOK["cells"]}
COMMANDS = {f"experiments.{module.COMMAND.name}": module.COMMAND for module in (number_prediction, ptb)}
JAX_PINS = "jax<0.12,>=0.10"


def source(name):
    return "".join(CELLS[name]["source"])


def run_cell(name, namespace, **changes):
    exec(compile(source(name), f"colab.ipynb:{name}", "exec"), namespace)
    namespace |= changes


CODE_CELLS = [name for name, cell in CELLS.items() if cell["cell_type"] == "code"]


def namespace_of(*names, **parameters):
    """Runs the parameters cell, then these, and returns what they define."""
    namespace = {"__name__": "__main__"}
    run_cell("parameters", namespace, **parameters)
    for name in names:
        run_cell(name, namespace)
    return namespace


def cells(first, last):
    return CODE_CELLS[CODE_CELLS.index(first) : CODE_CELLS.index(last) + 1]


@pytest.fixture
def functions():
    """What the cell with the installer's functions defines."""
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
    assert namespace_of()["REPOSITORY"] == ""
    presets = re.search(r"LANGUAGE_PRESET = .*@param (\[.*\])", source("parameters"))[1]
    assert set(json.loads(presets)) <= set(ptb.PRESETS)


def test_figures_in_the_text_are_in_the_results():
    """Every number with a decimal point, and every number of minutes, is one of RESULTS.md."""
    results = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    text = "\n".join(source(name) for name, cell in CELLS.items() if cell["cell_type"] == "markdown")
    measured = re.findall(r"\d+\.\d+(?= %|\s+for\b|\s+and\b|\.)", text)
    assert {"76.24", "100.00", "115.11", "111.59", "78.33", "74.77"} <= set(measured)
    for number in measured:
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", results), number
    minutes = re.findall(r"(\d+) minutes", text)
    assert minutes
    for number in minutes:
        assert re.search(rf"(?<!\d){number} min\b", results), number


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
        ("gpu", 580, {}, "jax[cuda13]<0.12,>=0.10"),
        ("gpu", 550, {}, "jax[cuda12]<0.12,>=0.10"),
        ("gpu", 580, {"jax": "0.7.2", "jax-cuda12-plugin": "0.7.2"}, "jax[cuda12]<0.12,>=0.10"),
        ("gpu", 580, {"jax": "0.11.1", "jax-cuda12-plugin": "0.11.1"}, None),
        ("gpu", 580, {"jax": "0.11.1", "jax-cuda13-plugin": "0.11.1"}, None),
        ("gpu", 580, {"jax": "0.11.1"}, "jax[cuda13]<0.12,>=0.10"),
        ("gpu", 580, {"jax": "0.11.1", "jax-cuda12-plugin": "0.7.2"}, "jax[cuda12]<0.12,>=0.10"),
        ("tpu", 0, {}, "jax[tpu]<0.12,>=0.10"),
        ("tpu", 0, {"jax": "0.7.2", "libtpu": "0.0.20"}, "jax[tpu]<0.12,>=0.10"),
        ("tpu", 0, {"jax": "0.11.1"}, "jax[tpu]<0.12,>=0.10"),
        ("tpu", 0, {"jax": "0.11.1", "libtpu": "0.0.48"}, None),
    ],
)
def test_a_jax_that_fits_is_left_alone(device, driver, there, jax, functions):
    wanted = functions["requirements"](ROOT, device, driver, there.get)
    assert wanted == ["-e", f"{ROOT}[experiments]"] + ([jax] if jax else [])


def make_project(folder):
    (folder / "dynskip_jax").mkdir(parents=True)
    (folder / "dynskip_jax" / "__init__.py").touch()
    (folder / "pyproject.toml").touch()
    return folder


def test_source_is_the_checkout_around(monkeypatch, tmp_path):
    checkout = make_project(tmp_path / "checkout")
    (checkout / "experiments").mkdir()
    monkeypatch.chdir(checkout / "experiments")
    assert namespace_of("install-functions")["find_source"]() == checkout


def test_source_is_an_uploaded_folder(tmp_path):
    folder = make_project(tmp_path / "uploaded")
    assert namespace_of("install-functions", REPOSITORY=str(folder))["find_source"]() == folder


def test_source_is_an_uploaded_zip(tmp_path, here):
    make_project(tmp_path / "packed" / "main")
    functions = namespace_of("install-functions", REPOSITORY=str(tmp_path / "project.zip"))
    functions["shutil"].make_archive(str(tmp_path / "project"), "zip", tmp_path / "packed")
    assert functions["find_source"]() == here / "dynskip_jax-source" / "main"


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


def test_pip_is_called_where_the_project_is_not_installed(monkeypatch, tmp_path, capsys):
    folder = make_project(tmp_path / "uploaded")
    (folder / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    functions = namespace_of("install-functions", REPOSITORY=str(folder))
    monkeypatch.setattr(sys, "path", [*sys.path])
    versions = {"jax": "0.7.2", "numpy": np.__version__}
    commands = []

    def pip(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setitem(functions, "installed", versions.get)
    monkeypatch.setitem(functions, "find_device", lambda: "cpu")
    monkeypatch.setitem(functions, "requirements", lambda *arguments: ["-e", str(folder), JAX_PINS])
    monkeypatch.setattr(subprocess, "run", pip)
    # This process has imported another JAX than the one that pip says is there now.
    with pytest.raises(functions["Hint"], match="Restart session"):
        run_cell("install", functions)
    assert commands[-1] == [sys.executable, "-m", "pip", "install", "-q", "-e", str(folder), JAX_PINS]
    assert sys.path[0] == str(folder)
    assert "device: cpu" in capsys.readouterr().out


# --- Training cells ---


class Process:
    """Stands in for a process: the lines it writes, and the status with which it ends."""

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
    """Runs `python -m experiments.<task>` here: no imports, and the small data sets of the tests."""
    real = subprocess.Popen
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks have it

    def start(arguments, **options):
        if arguments[1:3] != ["-u", "-m"]:
            return real(arguments, **options)
        assert arguments[0] == sys.executable and options["stderr"] == subprocess.STDOUT
        assert not {"FORCE_COLOR", "TTY_COMPATIBLE"} & options["env"].keys()
        with unittest.mock.patch.dict(os.environ, options["env"], clear=True):
            outcome = command(COMMANDS[arguments[3]], *arguments[4:])
        return Process((outcome.out + outcome.err).splitlines(keepends=True), outcome.status)

    monkeypatch.setattr(subprocess, "Popen", start)


TINY = dict(
    EPOCHS=1,
    MORE_FLAGS="--features 4 --agent-features 2 --batch-size 20",
    LANGUAGE_EPOCHS=1,
    LANGUAGE_FLAGS="--features 4 --num-layers 1 --agent-features 2 --num-steps 5 --batch-size 4",
    OWN_STEPS=2,
)


@pytest.mark.slow
def test_number_prediction_cells(in_this_process, small_number_prediction, capsys):
    namespace = namespace_of(*cells("install-functions", "truth"), **TINY)
    out = capsys.readouterr().out
    assert "dynskip_jax is installed already" in out and "pip install" not in out
    assert re.search(r"computes on: cpu, ", out)

    folder = namespace["NUMBERS"]
    assert folder.parent == Path("runs/number_prediction")
    assert "--length 11 --mix 0.5 --compare dynamic:10,lstm --epochs 1 --features 4" in out
    result = json.loads((folder / "result.json").read_text())
    assert [row["model"] for row in result["rows"]] == ["dynamic:10", "lstm"]
    shown = {
        "plots/dev_accuracy.png",
        "dynamic-10/plots/skips_by_position.png",
        "dynamic-10/plots/last_skip_against_truth.png",
    }
    assert pictures(folder) == shown | {f"{m}/plots/learning_curve.png" for m in ("dynamic-10", "lstm")}
    assert {line for line in out.splitlines() if line.endswith(".png")} == {
        f"{folder}/{name}" for name in shown
    }
    # The table, with the paper's rows, and what the notebook reads from result.json.
    assert "paper: dynamic skip, λ=0.5, K=10" in out
    for model in ("dynamic:10", "lstm"):
        assert re.search(rf"^ +{model}  test_accuracy \d+\.\d\d%  best epoch 1 of 1$", out, re.M)


def test_language_cells(in_this_process, corpus_folder, capsys):
    parameters = TINY | dict(CORPUS_FOLDER=str(corpus_folder), LANGUAGE_MODELS="dynamic:3")
    parameters |= dict(SENTENCE="a b b h")
    names = ("install-functions", "helpers", *cells("language", "explain"), "results")
    folder = namespace_of(*names, **parameters)["LANGUAGE"]
    out = capsys.readouterr().out
    assert json.loads((folder / "result.json").read_text())["dataset"]["name"] == "letters"
    assert f"{folder}/result.json\n" in out
    digest = hashlib.sha256(b"a b b h").hexdigest()[:8]
    for name in ("learning_curve", "skips_by_word", f"explain-dynamic-3-seed-0-a-b-b-h-{digest}"):
        assert f"{folder}/plots/{name}.png\n" in out
    assert re.search(r"^ +dynamic:3  test_perplexity \d+\.\d\d  best epoch 1 of 1$", out, re.M)
    assert "dynamic:3: next word " in out


def test_own_model_cells(here, capsys):
    names = ("install-functions", "helpers", *cells("own-model", "probabilities"))
    namespace = namespace_of(*names, OWN_STEPS=2)
    out = capsys.readouterr().out
    assert re.search(r"^step 2: \d+\.\d% of answers and \d+\.\d% of last decisions right$", out, re.M)
    assert len(re.findall(r"^( {2}\d){7}   k = \d, says \d, right is \d$", out, re.M)) == 4
    assert "runs/own_model.png\n" in out
    assert (here / "runs" / "own_model.png").stat().st_size > 1000

    probabilities, decision = namespace["probabilities"], namespace["out"].decision
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    chosen = probabilities[np.arange(7), np.asarray(decision.action[0]) - 1]
    np.testing.assert_allclose(chosen, probabilities.max(axis=1), rtol=1e-6)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=1)
    np.testing.assert_allclose(entropy, decision.entropy[0], rtol=1e-4)

    arcs = [line for line in out.splitlines() if "╰" in line]
    for arc, k in zip(arcs, np.asarray(decision.action)[:4, -1], strict=True):
        # Digits stand in columns 2, 5, …, 20: from the state just after digit 6 - k to the last digit.
        assert (arc.index("╰"), arc.index("╯")) == (3 * (6 - k) + 2, 20)


def test_one_model_has_no_folders_within(in_this_process, small_number_prediction, capsys):
    namespace = namespace_of("install-functions", "helpers", **TINY | dict(BASELINE="", MODEL="fixed:3"))
    for name in ("numbers", "numbers-rows", "curve", "positions", "truth"):
        run_cell(name, namespace)
    out = capsys.readouterr().out
    assert pictures(namespace["NUMBERS"]) == {"plots/learning_curve.png"}
    assert re.search(r"^ +fixed:3  test_accuracy ", out, re.M)
    assert "no skips_by_position.png" in out and "no last_skip_against_truth.png" in out

    # The same parameters find the same folder.
    run_cell("numbers", namespace)
    assert "finished already" in capsys.readouterr().out


def test_a_failed_command_is_said_in_one_line(in_this_process, small_number_prediction, here, capsys):
    namespace = namespace_of("install-functions", "helpers", MODEL="nope")
    with pytest.raises(namespace["Hint"], match="status 2"):
        run_cell("numbers", namespace)
    assert "error: unknown model 'nope'" in capsys.readouterr().out
    assert not (here / "runs").exists()


def test_the_stop_button_lets_the_command_save(monkeypatch, capsys):
    namespace = namespace_of("install-functions", "helpers")

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
def test_all_cells_run_with_real_processes(monkeypatch, tmp_path, capsys):
    """With the experiments' own data; the agent of the last example learns its task."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as notebooks have it
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", python_path)
    parameters = dict(
        EPOCHS=1,
        MORE_FLAGS="--features 8 --agent-features 4 --batch-size 1000",
        CORPUS="pydoc-topics",
        LANGUAGE_EPOCHS=1,
        LANGUAGE_FLAGS="--features 8 --num-layers 1 --num-steps 50 --batch-size 100",
    )
    namespace = namespace_of(*cells("install-functions", "results"), **parameters)
    out = capsys.readouterr().out
    assert "data: number_prediction/length_11" in out and "train 100,000" in out
    assert re.search(r"test_accuracy \d+\.\d\d%  best epoch 1 of 1", out)
    assert "ptb on pydoc-topics" in out
    assert pictures(namespace["LANGUAGE"]) >= {
        "plots/dev_perplexity.png",
        "dynamic-5/plots/skips_by_word.png",
    }
    assert "not drawn" not in out and "\x1b" not in out
    accuracy, exact = namespace["judge"](namespace["model"], *namespace["test"])
    assert accuracy > 0.9 and exact > 0.9
