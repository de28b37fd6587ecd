"""Check the numbers of the results pages, README and RESULTS against docs/results/rows.csv."""

import re
import runpy
import statistics
from math import sqrt

import pytest
from pages import ROOT, tables_of, text_of
from scipy import stats

from dynskip_jax.config.experiment import NAMES, find_experiment

# Figures find theirs, or this fails.
ROWS = runpy.run_path(str(ROOT / "docs" / "figures.py"))["ROWS"]
PAGES = [page.stem for page in sorted((ROOT / "docs" / "results").glob("*.md"))]
NUMBER = re.compile(r"(-?\d+\.\d+|\d+(?= %))(?: ± (\d+\.\d+))?")
MODE = re.compile(r",? ?(?:\d+ samples )?\b(greedy|sampled|averaged)\b")
SEED = re.compile(r", (?:one seed|seed 0)\b")
SETTINGS = ("T", "seed", "size", "learning rate")  # columns that distinguish models


def number_of(row):
    return row["mean"], row["sd"]


def shown_on(page):
    """Return (table, model, column, mode if the page says it, mean, sd) of each number of a page's
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
    fields = [(row["table"], row["model"], row["column"], *number_of(row)) for row in rows]
    assert fields == [(*about, mean, sd) for *about, _, mean, sd in shown]
    for row, (_, _, _, mode, _, _) in zip(rows, shown, strict=True):
        assert mode in ("", row["mode"]), row


# --- Rows

PERCENT = {"readme", "agreement", "imdb", "sst", "number_prediction", "recall", "pos", "code"}
# The tasks in which a metric is measured, which gives it one meaning.
METRICS = {
    "accuracy": PERCENT,
    "accuracy at twice the length": {"recall"},
    "accuracy of names": {"code"},
    "accuracy of new names": {"code"},
    "top-5 accuracy of names": {"code"},
    "exact choices": {"agreement", "number_prediction"},
    "share of choices": {"ptb"},
    "words read": {"imdb"},
    "F1": {"conll2000", "conll2003"},
    "Pearson's r": {"sick"},
    "Spearman's ρ": {"sick"},
    "squared error": {"sick"},
    "perplexity": {"code", "ptb"},
    "perplexity lead": {"ptb"},  # of the control or the LSTM over the model
    "loss": {"conll2003", "imdb", "number_prediction", "ptb", "sst"},  # in nats
    "loss difference": {"ptb"},
    "kappa": {"ptb"},
    "return": {"popgym"},  # of an episode; the most is 1
}


def test_the_key_of_a_row_is_unique():
    fields = ("table", "model", "mode", "column", "part")
    keys = [tuple(row[field] for field in fields) for row in ROWS]
    assert len(keys) == len({*keys})


def test_a_metric_has_one_meaning():
    for row in ROWS:
        assert row["task"] in METRICS[row["metric"]], row
        assert row["split"] in ("train", "dev", "test")
        # A column that names a split names that of its rows.
        assert row["split"] in (re.findall(r"\b(train|dev|test)\b", row["column"]) or row["split"])
        unit = row["metric"].partition(" ")[0]
        if unit in ("accuracy", "top-5", "exact", "share", "words", "F1"):
            assert 0 <= float(row["mean"]) <= 100, row
        if row["metric"] == "perplexity":
            assert float(row["mean"]) > 1, row


def test_a_row_has_a_spread_if_and_only_if_it_has_several_seeds_and_else_is_published():
    assert {row["table"].partition("#")[0] for row in ROWS} == {*PAGES}
    for row in ROWS:
        assert row["mode"] in ("", "greedy", "sampled", "averaged")
        # None: published.
        assert not row["seeds"] or (int(row["seeds"]) > 1) == bool(row["sd"]), row
        is_known = re.fullmatch(r"[0-9a-f]{7}|unknown( \(≤ [0-9a-f]{7}\))?", row["commit"])
        assert bool(row["seeds"]) == bool(is_known), row
        if values := [*map(float, row["by_seed"].split())]:
            assert len(values) == int(row["seeds"])
            rounding = 10 ** -len(row["mean"].partition(".")[2])
            assert statistics.mean(values) == pytest.approx(float(row["mean"]), abs=rounding)
            assert statistics.stdev(values) == pytest.approx(float(row["sd"]), abs=rounding)


# --- Overviews ---

# Pattern of the models in each column.
MODELS = {
    "lstm": r"\blstm\b(?!.*(dynamic|control|cache))",
    "lstm + cache": r"\blstm\b.*cache",
    "attention": r"\battention:|\bcontent:|as a pointer",
    "dynamic skip": r"\bdynamic:\d+(?!.*control)",
    "pointer": r"learned pointer(?!.*control)",
    "model": r"(learned pointer|\bdynamic:\d+)(?!.*control)",
    "its control": "control",
    "best on dev": "",
    "paper's dynamic skip": "paper",
}
OF_MODE = ("dynamic skip", "pointer", "model", "its control")


def overview_of(page):
    """Return, for each row of the overviews, its cells by heading, and the rows of the tables it
    links to.
    """
    found = []
    for _, headings, rows in tables_of(page):
        if "its control" not in headings:
            continue
        for cells in rows:
            links = re.findall(r"results/(\w+)\.md(#[\w-]+)", " ".join(cells))
            linked = [row for row in ROWS if row["table"] in map("".join, links)]
            if links:
                found.append((dict(zip(headings, cells, strict=True)), linked))
    assert found
    return found


def mode_of(cells):
    return cells["mode"].replace("all weighed", "")


@pytest.mark.parametrize("page", ["README.md", "RESULTS.md"])
def test_an_overview_has_test_numbers_of_the_rows_it_names_in_one_mode(page):
    for cells, rows in overview_of(page):
        for heading in MODELS.keys() & cells.keys():
            named = {
                number_of(row)
                for row in rows
                if row["split"] == "test"
                and re.search(MODELS[heading], f"{row['model']} {row['column']}")
                and (heading not in OF_MODE or row["mode"] == mode_of(cells))
                and bool(row["seeds"]) != heading.startswith("paper")
            }
            assert {*NUMBER.findall(cells[heading])} <= named, (heading, cells)


def best_of(rows):
    return min if rows[0]["task"] in ("ptb", "code") else max  # a perplexity, or an accuracy


@pytest.mark.parametrize("page", ["README.md", "RESULTS.md"])
def test_the_mode_of_an_overview_is_the_best_one_for_the_control_of_those_that_both_have(page):
    for cells, rows in overview_of(page):
        means = []
        for heading in OF_MODE:
            if heading not in cells:
                continue
            shown = [row for row in rows if number_of(row) in NUMBER.findall(cells[heading])]
            shown = [row for row in shown if row["mode"] == mode_of(cells)]
            own = [
                (row["model"], row["column"])
                for row in shown
                if re.search(MODELS[heading], row["model"])
            ]
            kept = [row for row in rows if (row["model"], row["column"]) in own]
            means.append({row["mode"]: float(row["mean"]) for row in kept})
        of_agent, of_control = means
        if of_control:
            both = [of_control[mode] for mode in of_agent.keys() & of_control.keys()]
            assert of_control[mode_of(cells)] == best_of(rows)(both), cells


def test_the_best_model_of_an_overview_is_the_best_one_on_dev():
    for cells, rows in overview_of("RESULTS.md"):
        best = best_of(rows)
        number, *_ = NUMBER.findall(cells["best on dev"])
        models = [
            row["model"] for row in rows if row["split"] == "test" and number_of(row) == number
        ]
        dev = [row for row in rows if row["seeds"] and row["column"].startswith("dev")]
        own = [float(row["mean"]) for row in dev if row["model"] in models]
        assert best(own) == best(float(row["mean"]) for row in dev), cells


# --- Numbers in other places ---

# A score of two decimals in a text is a row.
SCORE = re.compile(r"(?<![\w.])(\d{2,}\.\d\d)(?!\d)(?: ± (\d+\.\d+))?")
TEXTS = {name: find_experiment(name).about for name in NAMES}
TEXTS |= {page: text_of(page) for page in ("README.md", "RESULTS.md", "experiments/colab.ipynb")}
TEXTS |= {
    page: text_of(page) for page in (f"docs/results/{name}.md" for name in PAGES if name != "log")
}


def prose_of(text):
    """Return a text without tables, code and links."""
    text = re.sub(
        r"```.*?```|^\|.*?$|`[^`]*`|\]\([^)]*\)", "", text, flags=re.DOTALL | re.MULTILINE
    )
    return " ".join(text.split())


@pytest.mark.parametrize("place", TEXTS)
def test_scores_in_texts_are_those_of_rows(place):
    for mean, sd in SCORE.findall(re.sub(r"^\|.*", "", TEXTS[place], flags=re.MULTILINE)):
        assert any(row["mean"] == mean and sd in ("", row["sd"]) for row in ROWS), (mean, sd)


def row_of(key):
    """Return a row by its table, a model, a column and perhaps a mode."""
    table, model, column, *mode = key
    about = dict(table=table, model=model, column=column, **dict(zip(["mode"], mode, strict=False)))
    (row,) = (row for row in ROWS if about.items() <= row.items())
    return row


def mean_of(key):
    return float(row_of(key)["mean"])


def lead(model, other):
    """Return by how much the perplexity of a model is lower than another one's."""
    return [mean_of(other) - mean_of(model)]


def leads(*pairs):
    return [number for pair in pairs for number in lead(*pair)]


def times(*pairs):
    return [mean_of(other) / mean_of(model) for model, other in pairs]


def percent(*pairs):
    return [100 * mean_of(model) / mean_of(other) for model, other in pairs]


def by_seed(*pair):
    """Return the mean difference by seed, its standard deviation, and its 95 % interval."""
    values = [map(float, row_of(key)["by_seed"].split()) for key in pair]
    differences = [b - a for a, b in zip(*values, strict=True)]
    mean = statistics.mean(differences)
    sd = statistics.stdev(differences)
    count = len(differences)
    half = stats.t.ppf(0.975, count - 1) * sd / sqrt(count)
    return [mean, sd, 95, mean - half, mean + half]


CODE = "code#the-standard-library"
POINTER = "LSTM + learned pointer (λ = 0), K = 500"
EPOCHS = "log#source-code"
EPOCH_ROWS = [
    ((EPOCHS, POINTER, f"epoch {epoch}"), (EPOCHS, f"{POINTER}: its control", f"epoch {epoch}"))
    for epoch in (1, 2, 3)
]
PTB = "language_models#copying-words-from-the-last-200-with-dropout"
RATE = f"{POINTER}, rate 0.01"
PTB_EPOCHS = "log#copying-with-dropout"
PAPER = "tagging#named-entities-conll-2003-gui-et-al-2019-table-2"

CODE_TEST = {name: (CODE, name, "test") for name in (POINTER, "lstm", f"{POINTER}: its control")}
CODE_TEST["cache"] = (CODE, "lstm and a neural cache of 500 tokens, across files", "test")


def times_of_flax():
    """Return the least and the largest part of the time of Flax's `RNN` that our layer takes."""
    table = next(
        rows for _, (first, *_), rows in tables_of("BENCHMARKS.md") if first == "candidate"
    )
    rows = {name: [float(cell) for cell in cells] for name, *cells in table[:8]}
    parts = [ours / flax for ours, flax in zip(rows["lstm"], rows["Flax RNN"], strict=True)]
    return [min(parts), max(parts)]


# Sentences of README and RESULTS whose numbers follow from rows: (page, text, numbers by a rule).
DERIVED = [
    (
        "README.md",
        "41 % of an LSTM's perplexity per token, 73 % of that of an LSTM with a neural cache, "
        "63 % of its control's",
        percent(
            (CODE_TEST[POINTER], CODE_TEST["lstm"]),
            (CODE_TEST[POINTER], CODE_TEST["cache"]),
            (CODE_TEST[POINTER], CODE_TEST[f"{POINTER}: its control"]),
        ),
    ),
    ("README.md", "0.45 to 0.96 of the time of Flax's", times_of_flax()),
    ("README.md", "1.81, 1.67 and 1.58 times the perplexity", times(*EPOCH_ROWS)),
    (
        "RESULTS.md",
        "41 % of the LSTM's and 73 % of that of the LSTM with a neural cache",
        percent((CODE_TEST[POINTER], CODE_TEST["lstm"]), (CODE_TEST[POINTER], CODE_TEST["cache"])),
    ),
    (
        "RESULTS.md",
        "1.72 ± 0.03 below by seed (95 % interval 1.64 to 1.79)",
        by_seed(CODE_TEST[POINTER], CODE_TEST["cache"]),
    ),
    ("RESULTS.md", "1.81, 1.67 and 1.58 times the pointer's perplexity", times(*EPOCH_ROWS)),
    (
        "RESULTS.md",
        "16.7 ahead of its control at the same rate",
        lead((PTB, RATE, "test"), (PTB, f"{RATE}: its control, rate 0.01", "test")),
    ),
    (
        "RESULTS.md",
        "falls from 17.7 to 16.4 and 15.3",
        leads(
            *(
                ((PTB_EPOCHS, RATE, epoch), (PTB_EPOCHS, f"{RATE}: its control, rate 0.01", epoch))
                for epoch in ("epoch 4", "epoch 5", "epoch 6")
            )
        ),
    ),
    (
        "RESULTS.md",
        "1.90 ± 0.15 F1 behind the LSTM by seed (95 % interval 1.53 to 2.28)",
        by_seed(
            (PAPER, "GloVe 50-d, preset paper: dynamic:5, λ = 1", "test", "greedy"),
            (PAPER, "GloVe 50-d, preset paper: lstm", "test"),
        ),
    ),
]
# What is no result: versions, settings, times.
SETTINGS_IN_TEXTS = (
    "95 % interval above 0",
    "rate 0.01",
    "rate 0.003",
    "Python 3.11",
    "JAX 0.10 to 0.12",
    "Apache 2.0",
)
ANY_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+|\d+(?= %)")


@pytest.mark.parametrize(("page", "text", "numbers"), DERIVED, ids=[text for _, text, _ in DERIVED])
def test_numbers_of_a_sentence_follow_from_rows(page, text, numbers):
    assert text in prose_of(text_of(page))
    said = re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?= %|[^%\w]|$)", text.replace("F1", ""))
    assert len(said) == len(numbers)
    for one, number in zip(said, numbers, strict=True):
        decimals = len(one.partition(".")[2])
        # Rows are rounded themselves.
        assert float(one) == pytest.approx(number, abs=0.51 * 10**-decimals + 1e-9)


@pytest.mark.parametrize("page", ["README.md", "RESULTS.md"])
def test_every_number_of_a_text_is_a_row_or_follows_from_rows(page):
    text = prose_of(text_of(page))
    for known in (*(text for where, text, _ in DERIVED if where == page), *SETTINGS_IN_TEXTS):
        text = text.replace(known, "")
    left = set(ANY_NUMBER.findall(text))
    assert left <= {row["mean"] for row in ROWS} | {row["sd"] for row in ROWS}, sorted(left)


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
