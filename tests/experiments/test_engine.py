"""Check the parts of a run: imports without cycles, seeds, traces of resumed runs, and loaded runs."""

import ast
import shutil
from pathlib import Path

import numpy as np
import pytest
import quick
from commands import assert_user_error, execute, finished_run, load, row_of, tool, write_result

import dynskip_jax.experiments as experiments
from dynskip_jax import functional as F
from dynskip_jax import load_run
from dynskip_jax.experiments import provenance
from dynskip_jax.experiments.registry import EXPERIMENTS, find_experiment
from dynskip_jax.experiments.settings import Run
from dynskip_jax.training.model_names import MODEL_NAMES

FOLDER = Path(experiments.__file__).parent


def modules():
    return {
        str(path.relative_to(FOLDER).with_suffix("")).replace("/", "."): path for path in FOLDER.rglob("*.py")
    }


def imported_at_the_top(path):
    """Return the modules of `dynskip_jax.experiments` that a file imports.

    Imports inside functions and `LazyModule` count; imports for type hints do not.
    """
    tree, found = ast.parse(path.read_text(encoding="utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("dynskip_jax.experiments")
        ):
            found.add(node.module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "LazyModule":
            found.add(node.args[0].value)
    prefix = "dynskip_jax.experiments."
    return {name.removeprefix(prefix) for name in found if name.startswith(prefix)}


def test_no_file_of_the_engine_imports_itself_through_others():
    graph = {name: imported_at_the_top(path) & modules().keys() for name, path in modules().items()}

    def visit(name, path):
        assert name not in path, f"a circle of imports: {' -> '.join([*path, name])}"
        for other in graph[name]:
            visit(other, [*path, name])

    for name in graph:
        visit(name, [])


def test_every_experiment_has_a_command_of_the_checkout():
    commands = {path.stem for path in (FOLDER.parents[1] / "experiments").glob("*.py")}
    assert commands == {*EXPERIMENTS, "demo", "report", "reproduce", "word_vectors", "__init__", "__main__"}
    for name in EXPERIMENTS:
        assert find_experiment(name).name == name
    # Each file of the package is a command, too: running it calls `run_file`.
    for name in {*EXPERIMENTS}:
        assert "run_file(__file__)" in (FOLDER / f"{name}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("given", "seeds"),
    [(dict(seeds=3), (0, 1, 2)), (dict(seed=4, seeds=2), (4, 5)), (dict(seeds=(1, 5, 9)), (1, 5, 9))],
)
def test_seeds_are_a_number_or_a_list(given, seeds):
    assert tuple(Run(**given).all_seeds) == seeds


def test_a_list_of_seeds_trains_these_seeds(tmp_path):
    short = ("--epochs", 1, "--devices", 1)
    folder = finished_run(quick.Quick, tmp_path / "run", "--seeds", "1,5,9", *short).folder
    assert row_of(folder)["seeds"] == [1, 5, 9]
    assert [load_run(folder, seed=seed).seed for seed in (1, 5, 9)] == [1, 5, 9]
    alone = finished_run(quick.Quick, tmp_path / "alone", "--seed", 5, *short).folder
    metric = "test_accuracy"
    assert row_of(folder)["metrics"][metric]["per_seed"][1] == row_of(alone)["metrics"][metric]["mean"]


def test_a_misspelt_flag_gets_a_suggestion(here):
    assert_user_error(execute(quick.Quick, "--epoch", 2), "did you mean --epochs?")


def test_print_config_knows_the_models_without_jax(here):
    assert sorted(F.TIME_SKIPS) == sorted(MODEL_NAMES)
    assert_user_error(
        execute(quick.Quick, "--model", "foo:3", "--print-config"), "there is no 'foo:3'", "dynamic"
    )
    assert execute(quick.Quick, "--model", "my_module:Mine(3)", "--print-config").status == 0


def test_a_log_file_has_what_is_printed(here):
    finished_run(quick.Quick, here / "run", "--epochs", 1, "--devices", 1, "--log-file", here / "log.txt")
    text = (here / "log.txt").read_text()
    assert "INFO" in text and "run folder" in text


def test_resumes_are_recorded_and_another_commit_is_warned_of(tmp_path, monkeypatch):
    arguments = ("--devices", 1, "--run-dir", tmp_path / "run")
    assert execute(quick.Quick, "--epochs", 1, *arguments).status == 0
    monkeypatch.setattr(provenance, "_commit", lambda: "another")
    outcome = execute(quick.Quick, "--epochs", 2, *arguments)
    assert outcome.status == 0 and "not be the same bit for bit" in outcome.out
    entries = load(tmp_path / "run" / "config.json")["about"]
    assert len(entries) == 2 and entries[1]["commit"] == "another" != entries[0]["commit"]


def test_new_source_files_make_a_commit_dirty(monkeypatch):
    def git(command, **options):
        answer = "mine.py\n" if command[1] == "ls-files" else "1f3a5b7c9d0e\n"
        return provenance.subprocess.CompletedProcess(command, 0, answer, "")

    monkeypatch.setattr(provenance.subprocess, "run", git)
    assert provenance._commit() == "1f3a5b7c9d0e-dirty"


def test_metrics_are_a_tidy_table(finished_quick):
    loaded = load_run(finished_quick.folder)
    table = loaded.metrics
    final = table[table.epoch.isna()]
    assert set(final.split) >= {"dev", "test"} and set(table.seed) == {0, 1}
    row = row_of(finished_quick.folder)["metrics"]["test_accuracy"]
    found = final[final.split == "test"].sort_values("seed").accuracy
    np.testing.assert_allclose(found, row["per_seed"])
    dev = table[(table.split == "dev") & (table.epoch == 2)]
    assert len(dev) == 2 and dev.nll.notna().all()


@pytest.mark.parametrize("value", [0, 1])
def test_the_table_of_a_sweep_has_the_rows_of_the_selected_value(value, swept_quick, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(next(path.parent for path in swept_quick.folder.glob("*/result.json")), folder)
    result = load(folder / "result.json")
    row = result["rows"][0]
    row["selected"], row["metrics"] = (row["sweep"][value][name] for name in ("value", "metrics"))
    write_result(folder, result)
    table = load_run(folder).metrics
    dev = table[(table.split == "dev")]
    logged, final = (dev[rows].sort_values("seed").nll for rows in (dev.epoch.notna(), dev.epoch.isna()))
    np.testing.assert_allclose(logged, final, rtol=1e-5)
    np.testing.assert_allclose(final, row["sweep"][value]["metrics"]["dev_nll"]["per_seed"])


def test_report_overwrites_only_when_asked(finished_quick, here):
    report = tool("report")
    for flags, status in (((), 0), ((), 2), (("--overwrite",), 0)):
        assert execute(report, finished_quick.folder, "--csv", here / "t.csv", *flags).status == status
