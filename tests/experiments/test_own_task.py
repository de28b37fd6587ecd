"""Check that the task of docs/own_task.md trains, compares, predicts and explains, and pages on
analysis.
"""

import dataclasses
import importlib

import numpy as np
import pytest
from commands import assert_user_error, execute, finished_run, load, row_of, succeed
from pages import code_of, run_code

from dynskip_jax import load_run
from dynskip_jax.config.experiment import Experiment, find_experiment
from dynskip_jax.errors import UserError

SMALL = ("--agent-features", 4, "--batch-size", 10, "--devices", 1)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Write the task of docs/own_task.md, whose first block is a file; return its experiment."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "seen_before.py").write_text(code_of("docs/own_task.md")[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield importlib.import_module("seen_before").EXPERIMENT


@pytest.fixture(scope="module")
def compared(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy") / "run"
    return finished_run(toy, folder, "--compare", "lstm,dynamic:3", "--seeds", 2, *SMALL)


@pytest.mark.slow
def test_it_compares_predicts_and_explains(toy, compared):
    folder = compared.folder
    rows = load(folder / "result.json")["rows"]
    assert [row["model"] for row in rows] == ["lstm", "dynamic:3"]
    assert "dev F1" in compared.outcome.out
    for row in rows:
        assert row["metrics"].keys() >= {"test_accuracy", "test_nll"}
        assert all(0 <= value <= 1 for value in row["metrics"]["test_f1"]["per_seed"])
    lines = "a b a\n\nf f f f f f f f f\n"
    outcome = succeed(toy, "predict", "--run-dir", folder, standard_input=lines)
    predicted = [line.split("(")[0].split() for line in outcome.out.splitlines()]
    assert [len(tags) for tags in predicted] == [3, 0, 9] and set(predicted[0]) <= {"0", "1"}
    outcome = succeed(toy, "explain", "--run-dir", folder, "--text", "a b c a")
    (picture,) = (folder / "plots").glob("explain-dynamic-3-seed-0-*.png")
    assert str(picture) in outcome.out
    assert_user_error(execute(toy, "explain", "--run-dir", folder, "--text", "a z"), "'z'")


def test_an_experiment_is_the_one_of_an_imported_module(toy):
    """Neither a copy nor an experiment of the same name that no module has takes its place."""
    dataclasses.replace(toy, about="a copy")
    assert find_experiment("seen_before") is toy
    Experiment(name="of_no_module", about="", task=None)
    for name in ("of_no_module", "nothing", None):
        with pytest.raises(UserError, match="import yours first"):
            find_experiment(name)
    Experiment(name="ptb", about="another", task=None)
    assert find_experiment("ptb").about != "another"


# --- Pages ---


@pytest.mark.slow
def test_the_page_on_own_tasks_runs():
    assert run_code("docs/own_task.md")["SETTINGS"]().data.lines == 60


def test_the_pages_evaluation_of_a_swept_model_is_of_the_selected_one(swept_quick):
    folder = swept_quick.folder / "lstm"
    page = "docs/own_analysis.md"
    (code,) = [code for code in code_of(page) if "learner_with" in code]
    names = run_code(page, code, trained=load_run(folder, seed=1))
    metrics = row_of(folder)["metrics"]
    assert names["score"] == pytest.approx(metrics["dev_accuracy"]["per_seed"][1])
    right = np.array(names["predictions"]) == names["data"].content["test"].targets
    assert right.mean() == pytest.approx(metrics["test_accuracy"]["per_seed"][1])


@pytest.mark.slow
def test_the_page_on_ones_own_analysis_runs(compared, here):
    names = run_code("docs/own_analysis.md", run_dir=compared.folder, text="a b c a")
    assert (names["always_1"].decisions[-1].action == 1).all()
    assert names["scores"].keys() >= {"dev_f1", "dev_accuracy", "dev_nll"}
