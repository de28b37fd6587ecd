"""Check that users' names and texts are printed literally: no terminal control sequences, no Rich markup."""

import csv
import io
import json
import logging
import shutil

import numpy as np
import pytest
import quick
from commands import COMMANDS, execute, load, write_result

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import cli, console, report
from dynskip_jax.experiments.report_files import csv_text
from dynskip_jax.experiments.report_table import Line, Row

PTB = COMMANDS["ptb"]
CONTROL = "\x1b]0;owned\x07\x1b[31m\u202e"
ESCAPED = r"\x1b]0;owned\x07\x1b[31m\u202e"


def named(finished, folder, dataset):
    """Copy a finished run into `folder`, rename its data to `dataset`, and return the folder."""
    shutil.copytree(finished.folder, folder)
    for name in ("config.json", "result.json"):
        text = json.dumps(load(folder / name))
        (folder / name).write_text(text.replace('"letters"', json.dumps(dataset)))
    write_result(folder, load(folder / "result.json"))
    return folder


@pytest.mark.parametrize("name", ["[/red]", "[bold", "[link=file:///x]here[/link]", ":smile:"])
def test_markup_in_names_is_printed(name, finished_ptb, tmp_path):
    """The name `[/red]` once caused a traceback in Rich."""
    folders = [named(finished_ptb, tmp_path / "a" / name.replace("/", "|"), name), finished_ptb.folder]
    outcome = execute(report.main, *folders)
    assert outcome.status == 0, outcome.err
    assert name in outcome.out


def test_control_sequences_in_names_are_escaped(finished_ptb, tmp_path):
    folder = named(finished_ptb, tmp_path / f"run{CONTROL}", CONTROL)
    outcomes = [
        execute(report.main, folder, finished_ptb.folder),
        execute(report.main, folder, tmp_path / f"no{CONTROL}"),
        execute(report.main, f"nowhere{CONTROL}"),
        execute(
            PTB, "explain", "--run-dir", folder, "--text", f"a {CONTROL}", "--html", folder / "page.html"
        ),
        execute(PTB, "evaluate", "--run-dir", folder, "--data", f"no{CONTROL}"),
        execute(PTB, "--run-dir", f"no\0{CONTROL}"),
        execute(PTB, "--data", f"no{CONTROL}", "--print-config"),
    ]
    for outcome in outcomes:
        assert not {"\x1b", "\x07", "\u202e"} & {*outcome.out, *outcome.err}, outcome
        assert ESCAPED in outcome.out + outcome.err, outcome


def test_control_sequences_in_the_log_and_in_errors_are_escaped(tmp_path, capsys):
    cli.log_to_standard_output(str(tmp_path / "log"))
    logging.getLogger("dynskip_jax").info("data: %s", CONTROL)
    assert capsys.readouterr().out == f"data: {ESCAPED}\n"
    assert ESCAPED in (tmp_path / "log").read_text()
    cli.log_to_standard_output()

    def fail(error):
        raise error

    for error in (UserError(CONTROL), KeyboardInterrupt(CONTROL), OSError(2, "no such file", CONTROL)):
        outcome = execute(lambda error=error: fail(error))
        assert ESCAPED in outcome.err and "\x1b" not in outcome.err


@pytest.mark.parametrize("is_terminal", [True, False])
def test_results_are_escaped_on_terminals_only(is_terminal, monkeypatch):
    """Output to another program keeps the characters of the file."""

    class Output(io.StringIO):
        def isatty(self):
            return is_terminal

    monkeypatch.setattr("sys.stdout", output := Output())
    console.write(f"word\t{CONTROL}\n")
    assert output.getvalue() == (f"word\t{ESCAPED}\n" if is_terminal else f"word\t{CONTROL}\n")


@pytest.mark.parametrize("start", ["=", "+", "-", "@"])
def test_no_cell_of_a_csv_file_is_a_formula(start):
    name = f"{start}HYPERLINK(1)"
    row = Row(name, [0], {"m": [1.0]}, (name, "f"), 7, "lstm", "", "")
    own = report.t_interval([-1.0, 2.0])
    (found,) = csv.DictReader(io.StringIO(csv_text([Line(row, name, "m", ".2f", own, None)]), newline=""))
    assert [found[key] for key in ("model", "dataset", "metric")] == [f"'{name}"] * 3
    assert np.isclose(float(found["mean"]), 0.5) and float(found["low"]) < 0  # numbers stay numbers


def test_a_dataset_named_like_a_formula_is_text_in_the_report(finished_ptb, tmp_path):
    folder = named(finished_ptb, tmp_path / "run", "=1+1\x1b\u202e")
    assert execute(report.main, folder, "--csv", tmp_path / "t.csv").status == 0
    rows = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert {row["dataset"] for row in rows} == {"'=1+1\\x1b\\u202e"}


def test_training_escapes_a_folders_name(tmp_path):
    outcome = execute(quick.Quick, "--epochs", 1, "--devices", 1, "--run-dir", tmp_path / f"run{CONTROL}")
    assert outcome.status == 0, outcome.err
    assert "\x1b" not in outcome.out and ESCAPED in outcome.out
