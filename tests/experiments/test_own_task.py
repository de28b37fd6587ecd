"""Check that the tasks of docs/own_task.md train, compare, predict and explain, and pages on
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
NAMES = ("seen_before", "same_ends")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Write the tasks of docs/own_task.md, whose first blocks are files; return experiments."""
    folder = tmp_path_factory.mktemp("own")
    for name, code in zip(NAMES, code_of("docs/own_task.md"), strict=False):
        (folder / f"{name}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield {name: importlib.import_module(name).EXPERIMENT for name in NAMES}


@pytest.fixture(scope="module")
def toy(own):
    return own["seen_before"]


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


def test_one_label_for_each_sequence_is_trained_resumed_and_predicted(own, tmp_path):
    experiment, folder = own["same_ends"], tmp_path / "run"
    train = ("--run-dir", folder, "--model", "lstm", "--epochs", 2, "--batch-size", 10)
    succeed(experiment, *train)
    assert row_of(folder)["metrics"].keys() >= {"test_accuracy", "test_macro_f1", "dev_nll"}
    assert "finished already" in succeed(experiment, *train).out
    lines = "a b a\n\nf c\n"
    said = succeed(experiment, "predict", "--run-dir", folder, standard_input=lines).out
    first, empty, last = said.splitlines()
    assert not empty and {first.split()[0], last.split()[0]} <= {"same", "different"}
    assert load_run(folder).read("a b a").prediction == first


def test_an_experiment_is_the_one_of_an_imported_module(own):
    """Neither a copy nor an experiment of the same name that no module has takes its place."""
    toy = own["seen_before"]
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
    names = run_code("docs/own_task.md")
    assert names["result"].epochs == 2 and names["SETTINGS"]().data.lines == 60


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
    folder = compared.folder
    folders = [folder / "lstm", folder / "dynamic-3"]
    names = run_code("docs/own_analysis.md", run_dir=folder, text="a b c a", run_dirs=folders)
    assert (names["always_1"].decisions[-1].action == 1).all()
    assert names["scores"].keys() >= {"dev_f1", "dev_accuracy", "dev_nll"}
