"""Check the notebook for Colab: its flags, what it would install, and its cells at a tiny size."""

import json
import os
import re
import subprocess
import unittest.mock
from pathlib import Path

import numpy as np
import pytest
from commands import execute

import dynskip_jax
from dynskip_jax.cli.main import read_training
from dynskip_jax.config.experiment import find_experiment

ROOT = Path(dynskip_jax.__file__).parents[1]
NOTEBOOK = json.loads((ROOT / "experiments" / "colab.ipynb").read_text(encoding="utf-8"))
CODE = {c["id"]: "".join(c["source"]) for c in NOTEBOOK["cells"] if c["cell_type"] == "code"}

pytestmark = pytest.mark.usefixtures("here")


def run_cell(name, namespace):
    exec(compile(CODE[name], f"colab.ipynb:{name}", "exec"), namespace)
    return namespace


def namespace_of(*names, **parameters):
    """Run the cell `parameters`, set some parameters, run the cells `names`, and return all
    definitions.
    """
    namespace = run_cell("parameters", {"__name__": "__main__"}) | parameters
    for name in names:
        run_cell(name, namespace)
    return namespace


@pytest.mark.parametrize(
    ("cell", "parameters", "flags"),
    [
        ("numbers", dict(LENGTH=11, QUICK=True), "--features 50 --epochs 4"),
        ("numbers", dict(LENGTH=21, QUICK=False), "--length 21"),
        ("language", dict(QUICK=True), "--dataset pydoc-topics"),
        ("language", dict(QUICK=True, CORPUS_FOLDER="x"), "--data x"),
        *(
            ("language", dict(QUICK=False, LANGUAGE_PRESET=p), p)
            for p in ("paper", "charlm", "awd_small")
        ),
    ],
)
def test_cells_train_with_flags_that_the_commands_have(cell, parameters, flags):
    namespace, given = namespace_of("install-functions", "helpers", **parameters), []
    run_cell(cell, namespace | {"train_run": lambda task, *words: given.extend([task, *words])})
    assert flags in " ".join(given)
    read_training(find_experiment(given[0]), given[1:])


# --- What would be installed ---


def test_pip_installs_what_is_named_or_the_checkout_around_or_the_newest_file(here):
    functions = namespace_of("install-functions")
    find = functions["find_source"]
    with pytest.raises(functions["Hint"], match="Fill in REPOSITORY"):
        find()
    (here / "dynskip_jax-1.0.tar.gz").touch()
    assert find() == f"{here}/dynskip_jax-1.0.tar.gz[experiments]"
    (here / "dynskip_jax").mkdir()
    (here / "dynskip_jax" / "__init__.py").touch()
    assert find() == f"{here}[experiments]"
    functions["REPOSITORY"] = "https://host/project.git"
    assert find() == "dynskip_jax[experiments] @ git+https://host/project.git"


# --- Training cells ---


@pytest.fixture
def in_this_process(monkeypatch):
    """Run the command line of `<task>` in this process, on the tests' small data sets."""
    real = subprocess.Popen

    def start(arguments, **options):
        if arguments[1:4] != ["-u", "-m", "dynskip_jax.cli.main"]:
            return real(arguments, **options)
        with unittest.mock.patch.dict(os.environ, options["env"], clear=True):
            outcome = execute(find_experiment(arguments[4]), *arguments[5:])
        process = unittest.mock.MagicMock(
            stdout=iter((outcome.out + outcome.err).splitlines(keepends=True))
        )
        process.__enter__.return_value, process.wait.return_value = process, outcome.status
        return process

    monkeypatch.setattr(subprocess, "Popen", start)


TINY = dict(
    QUICK=False,
    OWN_EPOCHS=6,
    EPOCHS=1,
    MORE_FLAGS="--features 4 --batch-size 20 --train-examples 60",
    LANGUAGE_EPOCHS=1,
    LANGUAGE_FLAGS="--features 4 --num-layers 1 --agent-features 2 --num-steps 5 --batch-size 4",
    LANGUAGE_MODELS="dynamic:3",
    SENTENCE="a b b h",
)


@pytest.mark.slow
def test_all_cells_run(in_this_process, small_generated_data, corpus_folder, capsys):
    names = [name for name in CODE if name not in ("parameters", "install", "device")]
    namespace = namespace_of(*names, **TINY, CORPUS_FOLDER=str(corpus_folder))
    out = capsys.readouterr().out
    assert float(re.search(r"^(\d+\.\d)% of 10,000 unseen sequences$", out, re.M)[1]) > 50
    np.testing.assert_allclose(namespace["probabilities"].sum(axis=1), 1, rtol=1e-5)
    assert "runs/own_model.png\n" in out
    for folder in (namespace["NUMBERS"], namespace["LANGUAGE"]):
        assert f"{folder}/result.json\n" in out
    for model, metric in (
        ("lstm", "accuracy"),
        ("dynamic:10", "accuracy"),
        ("dynamic:3", "perplexity"),
    ):
        assert re.search(
            rf"^ +{model}  test_{metric} [\d.]+%?  best epoch 1 of 1$", out, re.MULTILINE
        )
    # A finished run below PRETRAINED is loaded, not trained again.
    (namespace["NUMBERS"].parent / "numbers").symlink_to(namespace["NUMBERS"].absolute())
    namespace |= dict(PRETRAINED=str(namespace["NUMBERS"].parent), train_run=None)
    run_cell("numbers", namespace)
    assert "read from" in capsys.readouterr().out
