"""Check that the task of docs/own_task.md trains, compares, predicts and explains, and pages on
analysis.
"""

import importlib

import pytest
from commands import assert_user_error, execute, finished_run, load, row_of, succeed
from pages import code_of, run_code

from dynskip_jax import load_run

SMALL = ("--agent-features", 4, "--batch-size", 10, "--devices", 1)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    """Write the task of docs/own_task.md, whose first two blocks are its files, and return its
    experiment.
    """
    folder = tmp_path_factory.mktemp("own") / "toy"
    folder.mkdir()
    for name, code in zip(("task", "config"), code_of("docs/own_task.md"), strict=False):
        (folder / f"{name}.py").write_text(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder.parent)
        yield importlib.import_module("toy.config").EXPERIMENT


@pytest.fixture(scope="module")
def compared(toy, tmp_path_factory):
    folder = tmp_path_factory.mktemp("toy") / "run"
    return finished_run(toy, folder, "--compare", "lstm,dynamic:3", "--seeds", 2, *SMALL)


@pytest.mark.slow
def test_it_compares_predicts_and_explains(toy, compared):
    folder = compared.folder
    rows = load(folder / "result.json")["rows"]
    assert [row["model"] for row in rows] == [
        "lstm",
        "dynamic:3",
    ] and "dev F1" in compared.outcome.out
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


@pytest.mark.slow
def test_a_score_that_is_no_metric_is_named(toy, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("toy.task").SeenBefore, "score", "f2")
    outcome = execute(toy, "--run-dir", tmp_path / "run", *SMALL)
    assert outcome.status == 2 and "error: the task has no metric 'dev_f2', only" in outcome.err


# --- Pages ---


@pytest.mark.slow
def test_the_page_on_own_tasks_runs(toy):
    assert run_code("docs/own_task.md")["result"].epochs == 2


def test_the_pages_evaluation_of_a_swept_model_is_of_the_selected_one(swept_quick):
    folder = swept_quick.folder / "lstm"
    page = "docs/own_analysis.md"
    (code,) = [code for code in code_of(page) if "learner_with" in code]
    names = run_code(page, code, trained=load_run(folder, seed=1))
    assert names["score"] == pytest.approx(row_of(folder)["metrics"]["dev_accuracy"]["per_seed"][1])


@pytest.mark.slow
def test_the_page_on_ones_own_analysis_runs(compared, here):
    folder = compared.folder
    folders = [folder / "lstm", folder / "dynamic-3"]
    names = run_code("docs/own_analysis.md", run_dir=folder, text="a b c a", run_dirs=folders)
    assert (names["always_1"].decisions[-1].action == 1).all()
    assert names["scores"].keys() >= {"dev_f1", "dev_accuracy", "dev_nll"}
