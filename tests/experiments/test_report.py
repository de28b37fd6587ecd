"""Check the report on several runs: numbers against NumPy and SciPy, written files, and one-line
errors.
"""

import csv
import shutil

import numpy as np
import pytest
from commands import assert_user_error, execute, forge, load, succeed, tool
from pages import ROOT
from scipy import stats

from dynskip_jax.commands.report import _cells, _read, compare_rows

REPORT = tool("report")


def table_of(metric, *folders, baseline=None):
    rows, _ = _read(folders)
    return compare_rows(rows, [metric], baseline).to_dict("records")


def test_compared_models_and_a_run_of_one_side_by_side(compared_ptb, finished_ptb, tmp_path):
    files = "--json", tmp_path / "t.json"
    outcome = succeed(REPORT, compared_ptb.folder, finished_ptb.folder, *files)
    lstm, dynamic, _ = (
        row["metrics"]["test_perplexity"]["per_seed"]
        for run in (compared_ptb, finished_ptb)
        for row in load(run.folder / "result.json")["rows"]
    )
    for values in (lstm, dynamic):
        assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in outcome.out
    rows = table_of("test_perplexity", compared_ptb.folder, finished_ptb.folder)
    folders = [compared_ptb.folder] * 2 + [finished_ptb.folder]
    names = zip(folders, ("lstm", "dynamic:3", "lstm"), strict=True)
    assert [row["model"] for row in rows] == [f"{folder}: {model}" for folder, model in names]
    assert [row["seeds"] for row in rows] == [2, 2, 2]
    assert [row["difference_pairs"] for row in rows] == [0, 2, 2]
    wanted = stats.ttest_rel(dynamic, lstm).confidence_interval(0.95)
    found = [rows[1][f"difference_{name}"] for name in ("mean", "low", "high")]
    np.testing.assert_allclose(found, [np.mean(dynamic) - np.mean(lstm), wanted.low, wanted.high])
    assert rows[2]["difference_mean"] == 0  # the same run
    before = (tmp_path / "t.json").read_bytes()
    assert_user_error(execute(REPORT, compared_ptb.folder, *files), "t.json exists")
    assert (tmp_path / "t.json").read_bytes() == before

    one, two = table_of("test_perplexity", compared_ptb.folder, baseline="dynamic:3")
    assert one["difference_mean"] == pytest.approx(np.mean(lstm) - np.mean(dynamic))
    assert two["difference_pairs"] == 0
    chosen = "--metrics", "dev_agent_skip_1,test_perplexity", "--baseline", "dynamic:3"
    outcome = succeed(REPORT, compared_ptb.folder, *chosen)
    assert outcome.out.index("(dev_agent_skip_1)") < outcome.out.index("(test_perplexity)")


def test_rows_as_data_have_the_fields_of_the_results_file_and_both_modes(
    compared_ptb, swept_quick, tmp_path
):
    said = succeed(
        REPORT, compared_ptb.folder, swept_quick.folder, "--json", tmp_path / "rows.json"
    ).out
    assert "test, sampled" in said and "test, greedy" not in said  # greedy is the usual mode
    rows = load(tmp_path / "rows.json")
    with open(ROOT / "docs" / "results" / "rows.csv", newline="", encoding="utf-8") as file:
        fields = next(csv.reader(file))
    assert all([*row] == fields for row in rows)
    own = [
        row
        for row in rows
        if row["model"].endswith("dynamic:3")
        and (row["split"], row["metric"]) == ("test", "perplexity")
    ]
    assert [row["mode"] for row in own] == ["greedy", "sampled", "averaged"]
    metrics = load(compared_ptb.folder / "result.json")["rows"][1]["metrics"]
    for row in own:
        values = metrics[f"test_perplexity_{row['mode']}"]["per_seed"]
        assert (row["mean"], row["sd"]) == (
            f"{np.mean(values):.2f}",
            f"{np.std(values, ddof=1):.2f}",
        )
        assert (row["task"], row["seeds"]) == ("ptb", 2)
    assert {row["mode"] for row in rows if "dynamic" not in row["model"]} == {""}
    accuracies = load(swept_quick.folder / "result.json")["rows"][0]["sweep"][0]["metrics"][
        "dev_accuracy"
    ]
    assert f"{100 * accuracies['mean']:.2f}" in [
        row["mean"] for row in rows if (row["split"], row["metric"]) == ("dev", "accuracy")
    ]


def test_every_value_of_a_sweep_is_a_row_and_other_data_have_a_baseline_of_their_own(
    swept_quick, finished_ptb
):
    folders = (finished_ptb.folder, swept_quick.folder)
    outcome = succeed(REPORT, *folders)
    assert "points" in outcome.out
    rows = table_of("dev_accuracy", *folders)
    assert len(rows) == 4 and rows[3]["model"].endswith("swept: fixed:2, rate=0.01")
    assert [row["difference_pairs"] for row in rows] == [0, 2, 2, 2]
    # Of the selected value of each model.
    assert len(table_of("test_accuracy", *folders)) == 2


def test_a_difference_of_percentages_is_in_points():
    row = dict(model="m", seeds=2, mean=0.5, sd=0.1, low=0.4, high=0.6, difference_pairs=2)
    row |= dict(difference_mean=0.05, difference_low=-0.01, difference_high=0.11)
    assert _cells(row, ".2%")[4:] == ["+5.00", "-1.00 to +11.00", "2"]


def test_the_interval_of_a_percentage_ends_where_percentages_do(finished_quick, tmp_path):
    folder = shutil.copytree(finished_quick.folder, tmp_path / "run")
    result = load(folder / "result.json")
    row = result["rows"][0]
    row["seeds"] = [0, 1]
    for metric, values in (("test_accuracy", [0.99, 1.0]), ("dev_accuracy", [0.0, 0.02])):
        row["metrics"][metric] = {
            "mean": np.mean(values),
            "std": np.std(values, ddof=1),
            "per_seed": values,
        }
    forge(folder, result=result)
    said = succeed(REPORT, folder).out
    assert " to 100.00%" in said and " 0.00% to " in said
