"""Check every number of the results tables against its row in docs/results/rows.csv."""

import re
import runpy

import pytest
from pages import ROOT, tables_of, text_of

from dynskip_jax.experiment import NAMES, find_experiment

# Figures find theirs, or this fails.
ROWS = runpy.run_path(str(ROOT / "docs" / "figures.py"))["ROWS"]
PAGES = [page.stem for page in sorted((ROOT / "docs" / "results").glob("*.md"))]
NUMBER = re.compile(r"(\d+\.\d+)(?: ± (\d+\.\d+))?")
MODE = re.compile(r",? ?(?:\d+ samples )?\b(greedy|sampled|averaged)\b")
SEED = re.compile(r", (?:one seed|seed 0)\b")
SETTINGS = ("T", "seed", "size", "learning rate")  # columns that distinguish models


def number_of(row):
    return row["mean"], row["sd"]


def shown_on(page):
    """Return (table, model, metric, mode if the page says it, mean, sd) of each number of a page's
    tables.
    """
    found = []
    listed = {row["table"] for row in ROWS}
    for anchor, (_, *headings), rows in tables_of(f"docs/results/{page}.md"):
        if page == "log" and f"log#{anchor}" not in listed:  # a table of details, without rows
            continue
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
                about = (
                    f"{page}#{anchor}",
                    group + model,
                    MODE.sub("", heading),
                    mode[1] if mode else "",
                )
                found += [(*about, *number) for number in NUMBER.findall(cell)]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_each_number_of_a_page_is_that_of_its_row_and_each_row_is_shown(page):
    rows = [row for row in ROWS if row["table"].partition("#")[0] == page]
    shown = shown_on(page)
    fields = [(row["table"], row["model"], row["metric"], *number_of(row)) for row in rows]
    assert fields == [(*about, mean, sd) for *about, _, mean, sd in shown]
    for row, (_, _, _, mode, _, _) in zip(rows, shown, strict=True):
        assert mode in ("", row["mode"]), row


def test_a_row_has_a_spread_if_and_only_if_it_has_several_seeds():
    assert {row["table"].partition("#")[0] for row in ROWS} == {*PAGES}
    for row in ROWS:
        assert row["mode"] in ("", "greedy", "sampled", "averaged")
        # None: published.
        assert not row["seeds"] or (int(row["seeds"]) > 1) == bool(row["sd"]), row


# --- Overviews ---

# Pattern of the models in each column.
MODELS = {
    "lstm": r"\blstm\b(?!.*(dynamic|control))",
    "dynamic skip": r"\bdynamic:\d+(?!.*control)",
    "its control": "control",
    "best on dev": "",
    "paper's dynamic skip": "paper",
}


def overview_of(page):
    """Return, for each row of an overview, its cells by heading, and the rows of the tables it
    links to.
    """
    ((_, headings, rows),) = [table for table in tables_of(page) if "its control" in table[1]]
    found = []
    for cells in rows:
        links = re.findall(r"results/(\w+)\.md(#[\w-]+)", " ".join(cells))
        linked = [row for row in ROWS if row["table"] in map("".join, links)]
        found.append((dict(zip(headings, cells, strict=True)), linked))
    return found


@pytest.mark.parametrize("page", ["README.md", "RESULTS.md"])
def test_an_overview_has_test_numbers_of_the_rows_it_names_in_one_mode(page):
    for cells, rows in overview_of(page):
        both, _, other = cells["mode"].partition("; control ")
        modes = {"dynamic skip": [both], "its control": [other or both]}
        for heading in MODELS.keys() & cells.keys():
            named = {
                number_of(row)
                for row in rows
                if "test" in row["metric"]
                and re.search(MODELS[heading], f"{row['model']} {row['metric']}")
                and row["mode"] in modes.get(heading, [row["mode"]])
                and bool(row["seeds"]) != heading.startswith("paper")
            }
            assert {*NUMBER.findall(cells[heading])} <= named, (heading, cells)


def best_of(rows):
    return min if rows[0]["task"] in ("ptb", "code") else max  # a perplexity, or an accuracy


@pytest.mark.parametrize("page", ["README.md", "RESULTS.md"])
def test_the_mode_of_an_overview_is_the_best_one_for_the_control_of_those_that_both_have(page):
    for cells, rows in overview_of(page):
        means = []
        for heading in ("dynamic skip", "its control"):
            shown = [row for row in rows if number_of(row) in NUMBER.findall(cells[heading])]
            shown = [row for row in shown if row["mode"] == cells["mode"]]
            own = [
                (row["model"], row["metric"])
                for row in shown
                if re.search(MODELS[heading], row["model"])
            ]
            kept = [row for row in rows if (row["model"], row["metric"]) in own]
            means.append({row["mode"]: float(row["mean"]) for row in kept})
        of_agent, of_control = means
        if of_control:  # not of two modes
            both = [of_control[mode] for mode in of_agent.keys() & of_control.keys()]
            assert of_control[cells["mode"]] == best_of(rows)(both), cells


def test_the_best_model_of_an_overview_is_the_best_one_on_dev():
    for cells, rows in overview_of("RESULTS.md"):
        best = best_of(rows)
        number, *_ = NUMBER.findall(cells["best on dev"])
        models = [
            row["model"] for row in rows if "test" in row["metric"] and number_of(row) == number
        ]
        dev = [row for row in rows if row["seeds"] and row["metric"].startswith("dev")]
        own = [float(row["mean"]) for row in dev if row["model"] in models]
        assert best(own) == best(float(row["mean"]) for row in dev), cells


# --- Numbers in other places ---


# Smaller numbers are differences.
SCORE = re.compile(r"(?<![\w.])(\d{2,}\.\d\d)(?!\d)(?: ± (\d+\.\d+))?")
TEXTS = {name: find_experiment(name).about for name in NAMES}
TEXTS |= {page: text_of(page) for page in ("README.md", "RESULTS.md", "experiments/colab.ipynb")}
TEXTS |= {
    page: text_of(page) for page in (f"docs/results/{name}.md" for name in PAGES if name != "log")
}


@pytest.mark.parametrize("place", TEXTS)
def test_scores_in_texts_are_those_of_rows(place):
    for mean, sd in SCORE.findall(re.sub(r"^\|.*", "", TEXTS[place], flags=re.MULTILINE)):
        assert any(row["mean"] == mean and sd in ("", row["sd"]) for row in ROWS), (mean, sd)


CANDIDATES = {"our dynamic:K": "dynamic:k", "Flax RNN(OptimizedLSTMCell)": "Flax RNN"}


def test_the_speeds_of_the_readme_are_those_of_the_benchmarks():
    benchmarks = [
        table for table in tables_of("BENCHMARKS.md") if table[1][0].startswith("candidate")
    ]
    (of_gpu,) = [rows for _, headings, rows in benchmarks if "/ torch.nn.LSTM" in headings]
    on_cpu, on_gpu = ({name: cells for name, *cells in rows} for rows in (benchmarks[0][2], of_gpu))
    ((_, _, rows),) = [table for table in tables_of("README.md") if "PTB, GPU" in table[1]]
    for label, *speeds in rows:
        name = CANDIDATES.get(label, label.removeprefix("our "))
        assert speeds == [*on_cpu.get(name, [""] * 4), on_gpu[name][0]]
