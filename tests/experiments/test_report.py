"""Check the report on several runs: numbers against NumPy and SciPy, written files, and one-line errors."""

import csv
import re
import shutil
import statistics
import subprocess
import sys

import numpy as np
import pytest
from commands import assert_user_error, events_in, load, records, write_result
from scipy import stats

from dynskip_jax.analysis import plots
from dynskip_jax.analysis.statistics import paired_difference, t_interval
from dynskip_jax.experiments import report
from dynskip_jax.experiments.report_files import latex_escaped, latex_text
from dynskip_jax.experiments.report_table import Line, Row, tables


def numbers_of(folder, metric):
    return [row["metrics"][metric]["per_seed"] for row in load(folder / "result.json")["rows"]]


def table_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_intervals_are_those_of_a_t_test():
    a, b = [3.0, 5.0, 4.5, 3.5], [2.0, 4.5, 3.0, 3.25]
    found, wanted = t_interval(a), stats.ttest_1samp(a, 0).confidence_interval(0.95)
    np.testing.assert_allclose(found, (np.mean(a), statistics.stdev(a), wanted.low, wanted.high, 4))
    found = paired_difference(dict(enumerate(a)), {**dict(enumerate(b)), 7: 100.0})
    wanted = stats.ttest_rel(a, b).confidence_interval(0.95)
    np.testing.assert_allclose(found[2:], (wanted.low, wanted.high, 4))
    assert np.isnan(t_interval([1.0])[1:4]).all() and t_interval([1.0]).mean == 1
    assert paired_difference({0: 1.0}, {1: 1.0}).count == 0


def test_compared_models_and_a_run_of_one_side_by_side(compared_ptb, finished_ptb, command, tmp_path):
    """The baseline row has two seeds.

    It has one pair with the run of one seed, so that this difference has no interval.
    """
    files = "--csv", tmp_path / "t.csv", "--latex", tmp_path / "t.tex"
    outcome = command(report.main, compared_ptb.folder, finished_ptb.folder, *files)
    assert outcome.status == 0, outcome.err
    lstm, dynamic = numbers_of(compared_ptb.folder, "test_perplexity")
    (alone,) = numbers_of(finished_ptb.folder, "test_perplexity")
    assert "mean ± sd" in outcome.out and "95 % interval" in outcome.out
    for values in (lstm, dynamic):
        assert f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}" in outcome.out
    rows = [row for row in table_of(tmp_path / "t.csv") if row["metric"] == "test_perplexity"]
    assert [row["model"] for row in rows] == ["compared: lstm", "compared: dynamic:3", "run: lstm"]
    assert [row["seeds"] for row in rows] == ["2", "2", "1"]
    assert [row["difference_pairs"] for row in rows] == ["", "2", "1"]
    wanted = stats.ttest_rel(dynamic, lstm).confidence_interval(0.95)
    found = [float(rows[1][f"difference_{name}"]) for name in ("mean", "low", "high")]
    np.testing.assert_allclose(found, [np.mean(dynamic) - np.mean(lstm), wanted.low, wanted.high])
    assert float(rows[2]["difference_mean"]) == pytest.approx(alone[0] - lstm[0])
    assert rows[2]["sd"] == rows[2]["low"] == rows[2]["difference_low"] == ""
    # LaTeX: each row has the declared number of columns, and special characters are escaped.
    text = (tmp_path / "t.tex").read_text()
    assert text.isascii() and re.search(r"\\textit\{test perplexity on letters \(test\\_perplexity\)\}", text)
    (columns,) = re.findall(r"\\begin\{tabular\}\{@\{\}(l?r+)@\{\}\}", text)
    for line in text.splitlines():
        if line.endswith(r"\\") and "multicolumn" not in line:
            assert line.count("&") == len(columns) - 1
    assert text.count("{") - text.count(r"\{") == text.count("}") - text.count(r"\}")
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 1
    (row,) = re.findall(r"^compared: dynamic:3 & (.*) \\\\$", text[text.index(r"test\_perplexity") :], re.M)[
        :1
    ]
    _, mean, half, difference, *_ = (cell.replace("$", "").strip() for cell in row.split("&"))
    assert mean == f"{np.mean(dynamic):.2f} \\pm {np.std(dynamic, ddof=1):.2f}"
    own = stats.ttest_1samp(dynamic, 0).confidence_interval(0.95)
    assert half == f"\\pm{(own.high - own.low) / 2:.2f}"
    assert float(difference) == pytest.approx(np.mean(dynamic) - np.mean(lstm), abs=0.006)

    # The files exist now, and are not overwritten.
    before = (tmp_path / "t.csv").read_bytes()
    assert_user_error(command(report.main, compared_ptb.folder, *files), "t.csv exists")
    assert (tmp_path / "t.csv").read_bytes() == before

    same = command(report.main, compared_ptb.folder, "--csv", tmp_path / "s", "--latex", tmp_path / "s")
    assert_user_error(same, "a file of their own")
    assert not (tmp_path / "s").exists()


def test_metrics_and_baseline_may_be_chosen(compared_ptb, command, tmp_path):
    arguments = (compared_ptb.folder, "--csv", tmp_path / "t.csv", "--baseline", "dynamic:3")
    outcome = command(report.main, *arguments, "--metrics", "dev_perplexity")
    assert outcome.status == 0, outcome.err
    lstm, dynamic = numbers_of(compared_ptb.folder, "dev_perplexity")
    first, second = table_of(tmp_path / "t.csv")
    assert first["metric"] == second["metric"] == "dev_perplexity"
    assert float(first["difference_mean"]) == pytest.approx(np.mean(lstm) - np.mean(dynamic))
    assert second["difference_mean"] == ""


def test_one_metric_may_be_drawn_over_another(compared_ptb, command, tmp_path):
    metrics = "--metrics", "dev_agent_skip_1,test_perplexity"
    outcome = command(report.main, compared_ptb.folder, *metrics, "--plot", tmp_path / "p.png")
    assert outcome.status == 0 and (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG", outcome.err
    outcome = command(report.main, compared_ptb.folder, *metrics, "--plot", tmp_path / "p.png")
    assert_user_error(outcome, "p.png")
    outcome = command(report.main, compared_ptb.folder, "--plot", tmp_path / "q.png")
    assert_user_error(outcome, "--metrics X,Y")


def test_what_a_row_says_beside_its_model_is_its_label(monkeypatch):
    """The label is not parsed from the row's name, because names can contain commas and colons."""
    drawn = {}
    monkeypatch.setattr(plots, "metric_over_metric", lambda groups, *_, **more: drawn.update(groups, **more))
    metrics = {"x": {"mean": 1.0, "per_seed": [1.0]}, "y": {"mean": 2.0, "per_seed": [2.0]}}
    row = dict(seeds=[0], metrics=metrics, parameters=1, agent="content", control="untrained")
    plain = dict(seeds=[0], metrics={"y": metrics["y"]}, parameters=1, model="lstm")
    of_data = dict(name="corpus", fingerprint="1")
    rows = report._rows("dynamic:4", "a: b, c", dict(row, model="dynamic:4"), of_data)
    rows += report._rows("dynamic:4", "e", dict(row, model="dynamic:4"), of_data)
    rows += report._rows("dynamic:5", "e", dict(row, model="dynamic:5"), of_data)
    rows += report._rows("lstm", "d", plain, of_data)
    report.draw(report.Found(rows, {}, {}, []), "x", "y", "p.png")
    labels = [label for label, *_ in drawn["dynamic:4"]]
    assert labels == ["by content, control: untrained, a: b, c", "by content, control: untrained, e"]
    assert drawn["dynamic:5"] == [("by content, control: untrained", [1.0], [2.0])]
    assert drawn["levels"] == {"d: lstm": [2.0]}


def test_every_value_of_a_sweep_is_a_row_and_other_data_have_a_baseline_of_their_own(
    swept_quick, finished_ptb, command, tmp_path
):
    folders = (finished_ptb.folder, swept_quick.folder)
    outcome = command(report.main, *folders, "--csv", tmp_path / "t.csv")
    assert outcome.status == 0, outcome.err
    rows = [row for row in table_of(tmp_path / "t.csv") if row["metric"] == "test_accuracy"]
    assert len(rows) == 4 and rows[3]["model"] == "swept: fixed:2, rate=0.01"
    assert [row["difference_pairs"] for row in rows] == ["", "2", "2", "2"]
    assert "points" in outcome.out


def test_what_is_left_out_is_said_in_a_line(compared_ptb, command, tmp_path):
    folder = tmp_path / "compared"
    shutil.copytree(compared_ptb.folder, folder)
    (folder / "dynamic-3" / "result.json").unlink()
    (tmp_path / "empty").mkdir()
    outcome = command(report.main, folder, tmp_path / "empty")
    assert outcome.status == 0, outcome.err
    assert "compared: dynamic:3: not finished, after 1 epochs, left out" in outcome.out
    assert f"{tmp_path / 'empty'}: not a run folder" in outcome.out
    assert outcome.out.count("│ compared: lstm") == 2 and "│ compared: dynamic:3" not in outcome.out


@pytest.mark.parametrize(
    "damage",
    ["", "[]", '{"seeds": [0', '{"rows": null}', '{"rows": [{"model": "lstm"}]}'],
    ids=["empty", "list", "cut", "no_rows", "half_a_row"],
)
def test_a_damaged_result_is_left_out(damage, finished_ptb, compared_ptb, command, tmp_path):
    shutil.copytree(finished_ptb.folder, tmp_path / "damaged")
    (tmp_path / "damaged" / "result.json").write_text(damage)
    outcome = command(report.main, tmp_path / "damaged", compared_ptb.folder)
    assert outcome.status == 0, outcome.err
    (note,) = [line for line in outcome.out.splitlines() if line.endswith("left out")]
    assert note.startswith("damaged: lstm: ") and "result.json" in note
    assert "compared: lstm" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("nowhere",), "none of the folders holds a finished run"),
        ((), "DIR"),
        (("RUN", "--metrics", "f1"), "there is no metric 'f1': choose dev_"),
        (("RUN", "--baseline", "gru"), "there is no row 'gru' for --baseline: choose lstm or dynamic:3"),
        (("RUN", "--csv", "no/where.csv"), "does not exist"),
        (("RUN", "--csv", "mine.csv"), "mine.csv.tmp exists: remove it"),
    ],
)
def test_errors_are_one_line(arguments, part, compared_ptb, command, here):
    (here / "mine.csv.tmp").write_text("mine")
    given = [compared_ptb.folder if argument == "RUN" else argument for argument in arguments]
    assert_user_error(command(report.main, *given), part)
    assert (here / "mine.csv.tmp").read_text() == "mine"


def test_a_folder_written_before_there_were_rows(finished_ptb, command, tmp_path):
    """Its `result.json` contains the entries of the row, next to experiment and dataset."""
    folder = tmp_path / "run"
    shutil.copytree(finished_ptb.folder, folder)
    result = load(folder / "result.json")
    (row,) = result.pop("rows")
    write_result(folder, {**result, **row})
    outcomes = [command(report.main, path).out for path in (folder, finished_ptb.folder)]
    assert outcomes[0] == outcomes[1] and "lstm" in outcomes[0]


def test_event_files(compared_ptb, command, tmp_path, monkeypatch):
    """The files contain every logged number of a seed at its step. They are parsed as protobuf."""
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    outcome = command(report.main, compared_ptb.folder, "--tensorboard", tmp_path / "events")
    assert outcome.status == 0, outcome.err
    assert "tensorflow" not in sys.modules
    names = {path.name for path in (tmp_path / "events").iterdir()}
    assert names == {f"{model}-seed-{seed}" for model in ("lstm", "dynamic-3") for seed in (0, 1)}
    events = events_in(tmp_path / "events" / "dynamic-3-seed-1")
    found = {(step, name): value for step, name, value in events}
    for record in records(compared_ptb.folder / "dynamic-3"):
        for name, values in record.items():
            if isinstance(values, list) and not isinstance(values[1], list):
                assert found[record["step"], name] == pytest.approx(values[1], rel=1e-5)
        share = next(name for name in record if "agent_share" in name)
        kept = [found[record["step"], f"{share}/k{k}"] for k in (1, 2, 3)]
        np.testing.assert_allclose(kept, record[share][1], rtol=1e-5)
    again = command(report.main, compared_ptb.folder, "--tensorboard", tmp_path / "events")
    assert_user_error(again, "is not empty")


def test_without_the_library_event_files_are_an_error_of_one_line(
    compared_ptb, command, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    outcome = command(report.main, compared_ptb.folder, "--tensorboard", tmp_path / "events")
    assert_user_error(outcome, 'pip install -e ".[tensorboard]"')
    assert not (tmp_path / "events").exists()


def line_of(name, metric, form, values, fingerprint="1" * 64, base=None):
    row = Row(name, range(len(values)), {metric: values}, ("corpus_a", fingerprint), 10, name, "", "")
    difference = base and paired_difference(dict(enumerate(values)), dict(enumerate(base)))
    return Line(row, metric, metric.replace("_", " "), form, t_interval(values), difference)


def test_corpora_of_one_name_have_tables_of_their_own():
    lines = [
        line_of(name, "f1", ".2%", [0.5], fingerprint * 64) for name, fingerprint in (("a", "1"), ("b", "2"))
    ]
    assert {title: [line.row.name for line in own] for title, own in tables(lines).items()} == {
        "f1 on corpus_a (f1), data 11111111": ["a"],
        "f1 on corpus_a (f1), data 22222222": ["b"],
    }
    assert list(tables(lines[:1])) == ["f1 on corpus_a (f1)"]


def test_latex_leaves_out_columns_in_which_nothing_stands():
    text = latex_text([line_of("alone", "f1", ".2%", [0.5])])
    assert "model & seeds & mean $\\pm$ sd \\\\" in text and "alone & 1 & 50.00 \\\\" in text
    assert "(f1), \\%}" in text
    some = line_of("b", "f1", ".2%", [0.25, 0.5, 0.75], base=[0.5, 0.5])
    assert "& pairs" in latex_text([some]) and "& 2 \\\\" in latex_text([some])


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no pdflatex to compile the table with")
def test_the_table_compiles_and_stays_between_the_margins(tmp_path):
    """The document class is `article`. Some names contain special characters of LaTeX."""
    deep, odd = "vec: dynamic:5, gated_output", (r"a_b {5%} & \x ~^#$", "<|> λ=0.5 β τ ± – é 日本")
    lines = [line_of("vec: lstm", "test_f1", ".2%", [0.8652, 0.86, 0.87])]
    lines += [line_of(deep, "test_f1", ".2%", [0.85, 0.861, 0.8], base=[0.9, 0.85, 0.7])]
    lines += [line_of(name, "test_perplexity", ".2f", [115.1, 112.8], "2" * 64, base=[116.0]) for name in odd]
    (tmp_path / "table.tex").write_text(latex_text(lines))
    table = r"\begin{table}\centering\input{table}\end{table}"
    page = rf"\documentclass{{article}}\begin{{document}}{table}\end{{document}}"
    (tmp_path / "page.tex").write_text(page)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    made = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, timeout=120)
    log = (tmp_path / "page.log").read_text("latin-1")
    assert made.returncode == 0 and "Overfull" not in log and "Missing character" not in log, log
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_names_in_latex():
    assert latex_escaped("a_b 5% & {x}\\~^#$") == (
        r"a\_b 5\% \& \{x\}\textbackslash{}\textasciitilde{}\textasciicircum{}\#\$"
    )
    assert latex_escaped("λ=0.5 日本") == r"$\lambda$=0.5 ??"
