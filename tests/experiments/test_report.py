"""Check the report on several runs: numbers against NumPy and SciPy, written files, and one-line errors."""

import csv
import shutil
import sys

import numpy as np
import pytest
from commands import assert_picture, assert_user_error, events_in, load, records, tool
from scipy import stats

from dynskip_jax.commands.report import Found, compare_rows, report

REPORT = tool("report")


def numbers_of(folder, metric):
    return [row["metrics"][metric]["per_seed"] for row in load(folder / "result.json")["rows"]]


def table_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def found_of(*rows, columns=None):
    """Return the contents of run folders with these rows: name, metric, values of each seed, fingerprint."""
    known = {"test_f1": ("test F1", ".2%")} if columns is None else columns
    listed = [
        dict(model=name, kind=name, label="", seeds=[*range(len(values))], metrics={metric: values})
        | dict(dataset="corpus_a", fingerprint=fingerprint * 64, parameters=10)
        for name, metric, values, fingerprint in rows
    ]
    return Found(listed, known, {}, [])


def test_compared_models_and_a_run_of_one_side_by_side(compared_ptb, finished_ptb, command, tmp_path):
    """The baseline has two seeds, and one pair with the run of one seed, which has no interval."""
    files = "--csv", tmp_path / "t.csv", "--plot", tmp_path / "p.png"
    outcome = command(REPORT, compared_ptb.folder, finished_ptb.folder, *files)
    assert outcome.status == 0, outcome.err
    lstm, dynamic = numbers_of(compared_ptb.folder, "test_perplexity")
    (alone,) = numbers_of(finished_ptb.folder, "test_perplexity")
    for values in (lstm, dynamic):
        assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in outcome.out
    rows = [row for row in table_of(tmp_path / "t.csv") if row["metric"] == "test_perplexity"]
    assert [row["model"] for row in rows] == ["compared: lstm", "compared: dynamic:3", "run: lstm"]
    assert [row["seeds"] for row in rows] == ["2", "2", "1"]
    assert [row["difference_pairs"] for row in rows] == ["0", "2", "1"]
    wanted = stats.ttest_rel(dynamic, lstm).confidence_interval(0.95)
    found = [float(rows[1][f"difference_{name}"]) for name in ("mean", "low", "high")]
    np.testing.assert_allclose(found, [np.mean(dynamic) - np.mean(lstm), wanted.low, wanted.high])
    assert float(rows[2]["difference_mean"]) == pytest.approx(alone[0] - lstm[0])
    assert rows[2]["sd"] == rows[2]["low"] == rows[2]["difference_low"] == ""
    assert_picture(tmp_path / "p.png")  # by default test perplexity over parameters
    # The files exist now, and are overwritten only when asked.
    before = (tmp_path / "t.csv").read_bytes()
    assert_user_error(command(REPORT, compared_ptb.folder, *files), "t.csv exists")
    assert (tmp_path / "t.csv").read_bytes() == before
    assert command(REPORT, compared_ptb.folder, *files, "--overwrite").status == 0
    assert (tmp_path / "t.csv").read_bytes() != before


def test_metrics_and_baseline_may_be_chosen(compared_ptb, command, tmp_path):
    chosen = "--metrics", "dev_agent_skip_1,test_perplexity", "--baseline", "dynamic:3"
    files = "--csv", tmp_path / "t.csv", "--plot", tmp_path / "p.png"
    outcome = command(REPORT, compared_ptb.folder, *chosen, *files)
    assert outcome.status == 0, outcome.err
    lstm, dynamic = numbers_of(compared_ptb.folder, "test_perplexity")
    rows = table_of(tmp_path / "t.csv")
    assert [row["metric"] for row in rows] == ["dev_agent_skip_1", "test_perplexity", "test_perplexity"]
    assert float(rows[1]["difference_mean"]) == pytest.approx(np.mean(lstm) - np.mean(dynamic))
    assert rows[2]["difference_mean"] == ""
    assert_picture(tmp_path / "p.png")


def test_every_value_of_a_sweep_is_a_row_and_other_data_have_a_baseline_of_their_own(
    swept_quick, finished_ptb, command, tmp_path
):
    outcome = command(REPORT, finished_ptb.folder, swept_quick.folder, "--csv", tmp_path / "t.csv")
    assert outcome.status == 0 and "points" in outcome.out, outcome.err
    rows = [row for row in table_of(tmp_path / "t.csv") if row["metric"] == "test_accuracy"]
    assert len(rows) == 4 and rows[3]["model"] == "swept: fixed:2, rate=0.01"
    assert [row["difference_pairs"] for row in rows] == ["0", "2", "2", "2"]


def test_what_is_left_out_is_said_in_a_line(compared_ptb, finished_ptb, command, tmp_path):
    folder, damaged, empty = tmp_path / "compared", tmp_path / "damaged", tmp_path / "empty"
    shutil.copytree(compared_ptb.folder, folder)
    (folder / "dynamic-3" / "result.json").unlink()
    shutil.copytree(finished_ptb.folder, damaged)
    empty.mkdir()
    for damage in ("", "[]", '{"seeds": [0', '{"rows": null}', '{"rows": [{"model": "lstm"}]}'):
        (damaged / "result.json").write_text(damage)
        outcome = command(REPORT, folder, empty, damaged)
        assert outcome.status == 0, outcome.err
        notes = [line for line in outcome.out.splitlines() if line.endswith("left out")]
        assert notes[0] == "compared: dynamic:3: not finished, after 1 epochs, left out"
        assert notes[1].startswith(f"{empty}: not a run folder")
        assert notes[2].startswith("damaged: lstm: ") and "result.json" in notes[2]
        assert "compared: lstm" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("nowhere",), "none of the folders holds a finished run"),
        ((), "report DIR DIR"),
        (("RUN", "--metrics", "f1"), "there is no metric 'f1': choose dev_"),
        (("RUN", "--baseline", "gru"), "there is no row 'gru' for --baseline: choose lstm or dynamic:3"),
        (("RUN", "--csv", "no/where.csv"), "does not exist"),
        (("RUN", "--csv", "mine.csv"), "mine.csv.tmp exists: remove it"),
        (("RUN", "--csv", "s", "--plot", "s"), "a file of their own"),
        (("RUN", "--plot", "p.png", "--metrics", "test_nll"), "--metrics X,Y"),
    ],
)
def test_errors_are_one_line(arguments, part, compared_ptb, command, here):
    (here / "mine.csv.tmp").write_text("mine")
    given = [compared_ptb.folder if argument == "RUN" else argument for argument in arguments]
    assert_user_error(command(REPORT, *given), part)
    assert [path.read_text() for path in here.iterdir()] == ["mine"]


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_no_cell_of_a_csv_file_is_a_formula(start, monkeypatch, tmp_path):
    found = found_of((f"{start}1+1", "m", [-1.0, 2.0], "1"), columns={})
    monkeypatch.setattr("dynskip_jax.commands.report.read_folders", lambda folders: found)
    report((tmp_path,), csv=tmp_path / "t.csv")
    (row,) = table_of(tmp_path / "t.csv")
    assert row["model"].startswith("'") and float(row["low"]) < 0  # numbers stay numbers


def test_corpora_of_one_name_have_tables_of_their_own(capsys, monkeypatch):
    found = found_of(("a", "test_f1", [0.5], "1"), ("b", "test_f1", [0.25], "2"))
    monkeypatch.setattr("dynskip_jax.commands.report.read_folders", lambda folders: found)
    report(("",))
    said = capsys.readouterr().out
    assert said.count("test F1 on corpus_a (test_f1), data") == 2 and "data 22222222" in said
    assert set(compare_rows(found)["difference_pairs"]) == {0}


def test_event_files(compared_ptb, command, tmp_path, monkeypatch):
    """The files contain every logged number of a seed at its step. They are parsed as protobuf."""
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    outcome = command(REPORT, compared_ptb.folder, "--tensorboard", tmp_path / "events")
    assert outcome.status == 0 and "tensorflow" not in sys.modules, outcome.err
    names = {path.name for path in (tmp_path / "events").iterdir()}
    assert names == {f"{model}-seed-{seed}" for model in ("lstm", "dynamic-3") for seed in (0, 1)}
    events = events_in(tmp_path / "events" / "dynamic-3-seed-1")
    found = {(step, name): value for step, name, value in events}
    for record in records(compared_ptb.folder / "dynamic-3"):
        for name, values in record.items():
            if isinstance(values, list) and not isinstance(values[1], list):
                assert found[record["step"], name] == pytest.approx(values[1], rel=1e-5)
    again = command(REPORT, compared_ptb.folder, "--tensorboard", tmp_path / "events")
    assert_user_error(again, "is not empty")
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    outcome = command(REPORT, compared_ptb.folder, "--tensorboard", tmp_path / "more")
    assert_user_error(outcome, 'pip install -e ".[tensorboard]"')
    assert not (tmp_path / "more").exists()
