"""Check what is printed: tables are never cut, and users' names and texts are printed literally."""

import io
import logging
import re

import pytest
from rich.cells import cell_len

from dynskip_jax import functional as F
from dynskip_jax.config.experiment import Dataset, Experiment, Published
from dynskip_jax.config.settings import Settings, replace
from dynskip_jax.runs.spec import make_spec, variant_of
from dynskip_jax.runs.tables import print_results, row_name
from dynskip_jax.terminal import console
from dynskip_jax.terminal.failures import log_to_standard_output

CONTROL = "\x1b]0;owned\x07\x1b[31m\u202e"
ESCAPED = r"\x1b]0;owned\x07\x1b[31m\u202e"


@pytest.fixture
def terminal(monkeypatch):
    """Return a function that makes standard output a terminal (or not) of some width, and returns
    it.
    """

    def make(width, is_terminal=True):
        output = io.StringIO()
        output.isatty = lambda: is_terminal
        monkeypatch.setattr("sys.stdout", output)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
        return output

    return make


# --- Tables ---


def summary(*seeds):
    return {"mean": sum(seeds) / len(seeds), "std": 0.1, "per_seed": list(seeds)}


def print_a_run(size=100, **more):
    name = "Somebody et al. 2015, random vectors, BiLSTM-CRF and features of spelling"
    rows = [("", name, 84.26)]
    published = (
        Published("fixture", ["test_f1"], rows, sizes={"train": 100}, note="beside theirs"),
    )
    columns = {
        "dev_f1": ("dev", ".2f"),
        "test_f1": ("test", ".2f"),
        "test_f1_sampled": ("s", ".2f"),
    }
    experiment = Experiment("fixture", "", "", columns=columns, published=published)
    data = Dataset("fixture", {"train": size}, "", "", None)
    metrics = {
        "dev_f1": summary(91.25, 90.75, 91.5),
        "test_f1": summary(84.5, 85.25, 84.75),
        **more,
    }
    result = {
        "model": "dynamic:5",
        "wall_seconds": 4000,
        "parameters": 1_971_075,
        "metrics": metrics,
    }
    beside = experiment.published_rows(Settings(), data, ["dynamic:5"])
    print_results(experiment, data, [result], beside, "greedy")


@pytest.mark.parametrize("width", [40, 80, 0])
def test_numbers_and_names_stay_whole_on_any_terminal(width, terminal):
    # Off a terminal, tables have their full width.
    output = terminal(width or 40, is_terminal=bool(width))
    print_a_run()
    text = re.sub("\x1b.*?m", "", output.getvalue())
    cells = ("dynamic:5", "91.17 ± 0.10", "84.83 ± 0.10", "84.26", "1:06:40", "1,971,075")
    assert all(whole in text for whole in cells) and "…" not in text
    assert width < 80 or max(map(cell_len, text.splitlines())) <= width


@pytest.mark.parametrize("size", [100, 20])
def test_published_rows_stand_only_beside_results_on_their_corpus(size, terminal):
    output = terminal(120)
    print_a_run(size, test_f1_sampled=summary(83.5, 84.25, 83.75))
    text = output.getvalue()
    assert ("Somebody" in text) == ("beside theirs" in text) == (size == 100)
    assert ("train has 20 instead of 100" in text) == (size == 20)
    assert "where a column names no mode, choices are greedy" in text


@pytest.mark.parametrize(
    ("model", "given", "reach", "shown"),
    [
        ("lstm", {"transition": "ulstm"}, 1, "ulstm"),
        ("sparse:10", {"top": 3}, 10, "sparse:10, top 3"),
        ("fixed:3", {"agent": "content", "control": "untrained"}, 3, "fixed:3"),
        (
            "dynamic:3",
            {"agent": "content", "control": "mean"},
            3,
            "dynamic:3, by content, control: mean",
        ),
        ("segment_dynamic:10", {"stride": 2}, 10, "segment_dynamic:10, stride 2"),
    ],
)
def test_what_a_model_is_made_with_is_part_of_its_name(model, given, reach, shown):
    settings = replace(Settings(), **given)
    spec = make_spec(model, settings)
    assert (
        spec.skip.max_skip == reach
        and row_name({"model": model, **variant_of(spec, settings)}) == shown
    )
    assert "segment" not in model or spec.skip.among == F.Segments(2)


# --- Text ---


def test_control_sequences_in_the_log_are_escaped(capsys):
    log_to_standard_output()
    logging.getLogger("dynskip_jax").info("data: %s", CONTROL)
    assert capsys.readouterr().out == f"data: {ESCAPED}\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_results_are_escaped_on_terminals_only(is_terminal, terminal):
    output = terminal(80, is_terminal)
    console.write(f"word\t{CONTROL}\n")
    assert output.getvalue() == (f"word\t{ESCAPED}\n" if is_terminal else f"word\t{CONTROL}\n")
