"""The command `bigrams`: fit a linear model on words and pairs of words, as a baseline."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import shared_settings as shared
from dynskip_jax.experiments.command_line import Subcommand
from dynskip_jax.extras import needs
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import setting

if TYPE_CHECKING:
    from dynskip_jax.experiments.experiment import Experiment

consoles = LazyModule("dynskip_jax.experiments.console")
imdb_data = LazyModule("dynskip_jax.data.corpora")
rich_table = LazyModule("rich.table")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BigramFlags:
    """Flags of `bigrams`."""

    data: str | None = shared.data(None)
    split_seed: int = shared.split_seed(0)
    max_length: int | None = shared.max_length(None)
    min_count: int = setting(2, "Leave out words and pairs in fewer reviews of train.", at_least=1)
    inverse_penalty: tuple[float, ...] = setting(
        (0.03, 0.1, 0.3, 1.0), "C of the logistic regression; the best on dev is taken.", above=0
    )


def bigrams(experiment: type[Experiment], flags: BigramFlags) -> None:
    """Fit a logistic regression on the words and pairs of words of reviews, and print its accuracy.

    The features are binary: whether a word or pair occurs in a review. C is selected on dev. The first row of
    the table is fitted on train, as the other models of this experiment are. The second row is fitted on
    train and dev.

    Args:
        experiment: The experiment; not used.
        flags: Flags of the command.

    Raises:
        UserError: scikit-learn is not installed, the data is not found, all reviews of train have the same
            label, or no word is frequent enough.
    """
    with needs("bench"):
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
    reviews, source = imdb_data.find_imdb(flags.data)
    console, begun = consoles.PlainConsole(), time.monotonic()
    console.print(f"data: imdb, {source}")
    texts = {
        split: [(text.words[: flags.max_length], text.label) for text in own]
        for split, own in imdb_data.imdb_splits(reviews, flags.split_seed).items()
    }

    def features(words: list[str]) -> list[str]:
        return [*words, *(f"{one} {two}" for one, two in itertools.pairwise(words))]

    def best_of(*parts: str, penalties: Sequence[float]) -> tuple[float, int, dict[str, float]]:
        """Fit on the splits `parts`, and select C on the first other split.

        Returns:
            The best C, the number of features, and the accuracy on each of the other splits.
        """
        vectorizer = CountVectorizer(analyzer=features, binary=True, min_df=flags.min_count)
        train = [text for part in parts for text in texts[part]]
        y = [label for _, label in train]
        if len(set(y)) < 2:
            raise UserError("all reviews of train have the same label: there is nothing to tell apart")
        try:
            x = vectorizer.fit_transform(words for words, _ in train)
        except ValueError as error:  # no word is frequent enough
            raise UserError(f"no word is in {flags.min_count} reviews of train: lower --min-count") from error
        others = {}
        for split in texts:
            if split not in parts:
                words, labels = zip(*texts[split], strict=True)
                others[split] = vectorizer.transform(words), labels
        found = {}
        for C in penalties:
            # liblinear suits a sparse matrix with more columns than rows.
            fitted = LogisticRegression(C=C, solver="liblinear", random_state=0).fit(x, y)
            found[C] = {split: float(fitted.score(*other)) for split, other in others.items()}
        best = max(found, key=lambda C: next(iter(found[C].values())))
        return best, x.shape[1], found[best]

    best, size, scores = best_of("train", penalties=flags.inverse_penalty)
    rows = [("train", size, scores), ("train and dev", *best_of("train", "dev", penalties=(best,))[1:])]
    table = rich_table.Table(title=f"bag of bigrams on imdb, C = {best:g}", title_justify="left")
    for heading in ("fitted on", "dev accuracy", "test accuracy", "features"):
        table.add_column(heading, justify="right" if heading != "fitted on" else "left")
    for name, size, scores in rows:
        dev = f"{scores['dev']:.2%}" if "dev" in scores else ""
        table.add_row(name, dev, f"{scores['test']:.2%}", f"{size:,}")
    console.print(table)
    console.print(f"{time.monotonic() - begun:.0f} s", style="dim")


BIGRAMS = Subcommand(
    "Train and score a linear model on words and pairs of words.",
    BigramFlags,
    bigrams,
)
