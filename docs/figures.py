"""Draw figures of the results pages from numbers of the tables: `python docs/figures.py`."""

import csv
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCS = Path(__file__).parent
with open(DOCS / "results" / "rows.csv", encoding="utf-8", newline="") as file:
    ROWS = list(csv.DictReader(file))


def numbers_of(table, model, column="test", modes=("", "greedy", "sampled")):
    """Return the mean and the standard deviation over seeds, or 0, of a row of the results
    tables: the first one in one of these modes.
    """
    about = {"table": table, "model": model, "column": column}
    row = next(row for row in ROWS if about.items() <= row.items() and row["mode"] in modes)
    return float(row["mean"]), float(row["sd"] or 0)


def gains_of(section, choice, lstm="lstm", page="language_models", mode=""):
    """Return the test perplexity of the plain LSTM, of the control and of the learned choice.

    Control and choice are in one mode; "" weighs all states.
    """
    table = f"{page}#{section}"
    of_lstm = numbers_of(table, lstm)
    return [
        of_lstm,
        *(numbers_of(table, m, modes=[mode]) for m in (f"{choice}: its control", choice)),
    ]


def replaced_of(model):
    """Return the loss, in nats, by a model's choices, those of another text, random ones, the best
    k.
    """
    ways = ("by the agent", "by the agent in another text", "at random", "always the best k")
    return [numbers_of("log#all-choices-replaced", model, way)[0] for way in ways]


FAR = "LSTM + learned pointer (λ = 0), K = 200"
GAINS = {
    "a state enters\nlast 5, averaged": gains_of(
        "the-small-model-without-dropout-preset-small", "dynamic:5", mode="averaged"
    ),
    "pointer, last 200\nno dropout": gains_of(
        "copying-words-from-the-last-200-without-dropout", FAR, page="log"
    ),
    "pointer, last 200\ndropout": gains_of("copying-words-from-the-last-200-with-dropout", FAR),
    "pointer, last 200\n2 × 650": gains_of("the-papers-size-preset-paper", FAR, "lstm, on a CPU"),
    "pointer, last 200\nWikiText-2": gains_of("wikitext-2-two-epochs", FAR, page="log"),
}
COPIED = "log#copying-each-choice-replaced", "hard, dropout: test"
WAYS = (
    "of the agent",
    "of the agent in another stream",
    "at random; all K with equal weight",
    "always the best k",
)
REPLACED = {
    "number prediction, K = 10": replaced_of("numbers"),
    "copying one word, K = 200": [np.log(numbers_of(COPIED[0], way, COPIED[1])[0]) for way in WAYS],
    "movie reviews, K = 3": replaced_of("IMDB"),
    "Penn Treebank, K = 5": replaced_of("Penn Treebank"),
    "named entities, K = 5": replaced_of("entities"),
    "SST-5, K = 3": replaced_of("SST-5"),
}
# Accuracy at associative recall, by number of pairs: the model of 64 units trained on rows of that
# many.
PAIRS = (4, 8, 16)
LONGER = (
    "128 words, 8 pairs, 50,000 rows: dynamic:256",
    "256 words, 16 pairs, 25,000 rows: dynamic:512",
)
RECALL = {
    name: [numbers_of("recall#associative-recall", model)[0]]
    + [numbers_of("log#other-sizes-and-estimators", longer + suffix)[0] for longer in LONGER]
    for name, model, suffix in (
        ("dynamic skip, copying", "LSTM + learned pointer (λ = 0), K = 128", ""),
        ("LSTM", "lstm", ": the same: lstm"),
    )
}


def draw_gains():
    """Draw bars: the learned choice beside its control and the plain LSTM."""
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    names = ("plain LSTM", "untrained agent (control)", "trained agent")
    for number, (name, color) in enumerate(zip(names, ("0.6", "C1", "C0"), strict=True)):
        means, deviations = np.transpose([values[number] for values in GAINS.values()])
        places = np.arange(len(GAINS)) + 0.27 * (number - 1)
        bars = axes.bar(
            places,
            means,
            0.25,
            yerr=np.where(deviations > 0, deviations, np.nan),
            color=color,
            label=name,
        )
        axes.bar_label(bars, [f"{mean:.0f}" for mean in means], fontsize=8, padding=2)
    axes.set_xticks(range(len(GAINS)), GAINS)
    axes.set(
        ylabel="test perplexity",
        ylim=(0, 180),
        title="A pointer at 200 words has to be learned; a choice among 5 states has not",
    )
    axes.legend(loc="upper left", ncols=3)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "choice_gains.png", dpi=150)


def draw_recall():
    """Draw accuracy over the number of pairs."""
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for color, (name, accuracy) in zip(("C0", "0.6"), RECALL.items(), strict=True):
        axes.plot(PAIRS, accuracy, "o-", color=color)
        axes.annotate(
            name, (PAIRS[1], accuracy[1]), (0, 8), textcoords="offset points", ha="center"
        )
    axes.set(
        xscale="log", xlabel="pairs of a key and a value", ylabel="test accuracy, %", ylim=(-3, 112)
    )
    axes.set_xticks(PAIRS, [f"{n}\nin {16 * n} words" for n in PAIRS])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(DOCS / "recall.png", dpi=150)


def draw_replaced():
    """Draw what a trained model loses when its choices are replaced."""
    figure, (near, far) = plt.subplots(
        1, 2, figsize=(9, 4), width_ratios=(3, 1), sharey=True, layout="constrained"
    )
    kinds = (
        ("choices of another text", "o", "C3"),
        ("random choices", "s", "C1"),
        ("best constant k", "^", "C2"),
    )
    for row, losses in enumerate(reversed(REPLACED.values())):
        for number, (kind, marker, color) in enumerate(kinds, 1):
            loss = losses[number] - losses[0]
            axes = far if loss > 1 else near
            axes.plot(
                loss,
                row + 0.15 * (2 - number),
                marker,
                color=color,
                label=kind if row == 1 else None,
            )
    for axes in (near, far):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="0.9")
    near.axvline(0, color="0.5")
    near.set_yticks(range(len(REPLACED)), reversed(REPLACED))
    near.set(xlim=(-0.03, 0.06), xlabel="loss added, in nats (0: the model's own choices)")
    far.set(xlim=(0, 8), xlabel="nats")
    near.legend(loc="lower right")
    figure.suptitle(
        "Only two trained agents clearly lose when their choices are replaced by a constant"
    )
    figure.savefig(DOCS / "choice_replaced.png", dpi=150)


if __name__ == "__main__":
    draw_gains()
    draw_recall()
    draw_replaced()
