"""Check every number of the results tables against its row in docs/results/rows.csv."""

import csv
import json
import re
import runpy
from typing import NamedTuple

import pytest
from pages import ROOT, tables_of, text_of

from dynskip_jax.experiment import NAMES, find_experiment

PAGES = [page.stem for page in sorted((ROOT / "docs" / "results").glob("*.md")) if page.stem != "log"]
NUMBER = re.compile(r"(\d+\.\d+)(?: ± (\d+\.\d+))?")
MODE = re.compile(r",? ?(?:\d+ samples )?\b(greedy|sampled|averaged)\b")
SEED = re.compile(r", (?:one seed|seed 0)\b")
SETTINGS = ("T", "seed", "size", "learning rate")  # columns that distinguish models


class Shown(NamedTuple):
    """A number of a results page, with the fields of its row in the file."""

    table: str
    model: str
    metric: str
    mode: str  # empty if the page does not say it
    mean: str
    sd: str


def shown_on(page):
    """Return the numbers of all tables of a results page, in order."""
    found = []
    for anchor, (_, *headings), rows in tables_of(f"docs/results/{page}.md"):
        group = base = ""
        for label, *cells in rows:
            if not any(cells):
                group = label.strip("*") + ": "
                continue
            model = SEED.sub("", MODE.sub("", label))
            if re.match(r"(its|the) control|the same", label):
                model = f"{base}: {model}"
            else:
                base = model
            for heading, cell in zip(headings, cells, strict=True):
                if heading in SETTINGS:
                    model += f", {heading} {cell}"
                    continue
                mode = MODE.search(heading) or MODE.search(label)
                about = f"{page}#{anchor}", group + model, MODE.sub("", heading), mode[1] if mode else ""
                found += [Shown(*about, *number) for number in NUMBER.findall(cell)]
    return found


def all_rows():
    with open(ROOT / "docs" / "results" / "rows.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


ROWS = all_rows()


def is_number_of(row, mean, sd):
    """Return whether a row's numbers are these texts, to as many digits."""
    for own, text in ((row["mean"], mean), (row["sd"], sd)):
        if not own or not text:
            if own != text:
                return False
        elif f"{float(own):.{len(text.partition('.')[2])}f}" != text:
            return False
    return True


@pytest.mark.parametrize("page", PAGES)
def test_each_number_of_a_page_is_that_of_its_row_and_each_row_is_shown(page):
    rows = [row for row in ROWS if row["table"].partition("#")[0] == page]
    for row, shown in zip(rows, shown_on(page), strict=True):
        assert (row["table"], row["model"], row["metric"]) == shown[:3]
        assert is_number_of(row, shown.mean, shown.sd), (row, shown)
        assert shown.mode in ("", row["mode"]), (row, shown)


def test_a_row_has_a_spread_if_and_only_if_it_has_several_seeds():
    assert {row["table"].partition("#")[0] for row in ROWS} == {*PAGES}
    for row in ROWS:
        assert row["mode"] in ("", "greedy", "sampled", "averaged")
        if row["seeds"]:  # published rows have none
            assert (int(row["seeds"]) > 1) == bool(row["sd"]), row


# --- Overviews ---

# Pattern of the models in each column.
MODELS = {
    "lstm": r"\blstm\b(?!.*(dynamic|control))",
    "dynamic skip": r"\bdynamic:\d+(?!.*control)",
    "its control": r"control",
    "best on dev": "",
    "paper": "paper",
    "paper's dynamic skip (its LSTM)": "paper",
}


def overview_of(page):
    """Return, for each row of an overview, its cells by heading, and the rows of the tables it links to."""
    ((_, headings, rows),) = [table for table in tables_of(page) if "its control" in table[1]]
    found = []
    for cells in rows:
        links = [
            f"{name}#{anchor}" for name, anchor in re.findall(r"results/(\w+)\.md#([\w-]+)", " ".join(cells))
        ]
        assert links, cells
        found.append(
            (dict(zip(headings, cells, strict=True)), [row for row in ROWS if row["table"] in links])
        )
    return found


@pytest.mark.parametrize("page", ["README.md", "RESULTS.md"])
def test_an_overview_has_test_numbers_of_the_rows_it_names_in_one_mode(page):
    for cells, rows in overview_of(page):
        both, _, other = cells["mode"].partition("; control ")
        for heading in MODELS.keys() & cells.keys():
            mode = {"dynamic skip": both, "its control": other or both}.get(heading)
            named = [
                row
                for row in rows
                if "test" in row["metric"] and re.search(MODELS[heading], f"{row['model']} {row['metric']}")
            ]
            named = [row for row in named if mode is None or row["mode"] == mode]
            named = [row for row in named if bool(row["seeds"]) != heading.startswith("paper")]
            for number in NUMBER.findall(cells[heading]):
                assert any(is_number_of(row, *number) for row in named), (heading, number, cells)


def test_the_best_model_of_an_overview_is_the_best_one_on_dev():
    for cells, rows in overview_of("RESULTS.md"):
        best = min if any(row["table"].startswith("language_models") for row in rows) else max
        ((mean, sd), *_) = NUMBER.findall(cells["best on dev"])
        models = [row["model"] for row in rows if "test" in row["metric"] and is_number_of(row, mean, sd)]
        dev = [row for row in rows if row["seeds"] and row["metric"].startswith("dev")]
        own = [float(row["mean"]) for row in dev if row["model"] in models]
        assert best(own) == best(float(row["mean"]) for row in dev), cells


# --- Numbers in other places ---


def help_of(name):
    """Return an experiment's help, without the values of flags."""
    return re.sub(r"--[\w-]+ [\d.]+", "", find_experiment(name).about)


def notes_of_the_notebook():
    cells = json.loads(text_of("experiments/colab.ipynb"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def scores_in(page):
    """Return the numbers from 10 with two decimals between a page's tables; smaller ones are differences."""
    prose = "\n".join(line for line in text_of(page).splitlines() if not line.startswith("|"))
    return " ".join(match[0] for match in re.finditer(r"(?<![\w.])\d{2,}\.\d\d(?!\d)( ± [\d.]+)?", prose))


PLACES = {name: help_of(name) for name in NAMES} | {"notebook": notes_of_the_notebook()}
PLACES |= {page: scores_in(page) for page in ("README.md", "RESULTS.md")}
PLACES |= {page: scores_in(page) for page in (f"docs/results/{name}.md" for name in PAGES)}


@pytest.mark.parametrize("place", PLACES)
def test_numbers_of_texts_are_those_of_rows(place):
    for mean, sd in NUMBER.findall(PLACES[place]):
        assert any(is_number_of(row, mean, sd or row["sd"]) for row in ROWS), (mean, sd)


CANDIDATES = {"our dynamic:K": "dynamic:k", "Flax RNN(OptimizedLSTMCell)": "Flax RNN"}


def test_the_speeds_of_the_readme_are_those_of_the_benchmarks():
    benchmarks = [table for table in tables_of("BENCHMARKS.md") if table[1][0].startswith("candidate")]
    on_cpu = {name: cells for name, *cells in benchmarks[0][2]}
    on_gpu = {
        name: cells for _, headings, rows in benchmarks if "/ lstm" in headings for name, *cells in rows
    }
    ((_, _, rows),) = [table for table in tables_of("README.md") if "PTB, GPU" in table[1]]
    for label, *speeds in rows:
        name = CANDIDATES.get(label, label.removeprefix("our "))
        assert speeds == [*on_cpu.get(name, [""] * 4), on_gpu[name][0]]


def test_the_figures_find_their_rows():
    names = runpy.run_path(str(ROOT / "docs" / "figures.py"))
    assert all(lstm > 0 for (lstm, _), _, _ in names["GAINS"].values())
    assert len(names["REPLACED"]) == 6 and len(names["RECALL"]) == 2
