"""The command `bigrams`: fit a linear model on words and pairs of words of reviews, as a baseline."""

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from dynskip_jax.config import Bounds
from dynskip_jax.console import print_table, say
from dynskip_jax.data.corpora import find_imdb, imdb_splits
from dynskip_jax.errors import UserError
from dynskip_jax.extras import needs


def bigrams(
    data: Path | None = None,
    split_seed: Annotated[int, Bounds(at_least=0, at_most=2**32 - 1)] = 0,
    max_length: Annotated[int, Bounds(at_least=1)] | None = None,
    min_count: Annotated[int, Bounds(at_least=1)] = 2,
    inverse_penalty: tuple[Annotated[float, Bounds(above=0)], ...] = (0.03, 0.1, 0.3, 1.0),
) -> None:
    """Train and score a logistic regression on whether words and pairs of words occur in a review.

    C is selected on dev. The first row is fitted on train, as the other models are; the second on train and
    dev.

    Args:
        data: Folder of the reviews; by default where `imdb` looks for them.
        split_seed: Seed of the split into train and dev.
        max_length: Cut longer reviews to this many words.
        min_count: Leave out words and pairs in fewer reviews of train.
        inverse_penalty: C of the logistic regression; the best on dev is taken.
    """
    with needs("bench"):
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
    reviews, source = find_imdb(None if data is None else str(data))
    begun = time.monotonic()
    say(f"data: imdb, {source}")
    texts = {
        split: [(text.words[:max_length], text.label) for text in own]
        for split, own in imdb_splits(reviews, split_seed).items()
    }

    def features(words: list[str]) -> list[str]:
        return [*words, *(f"{one} {two}" for one, two in itertools.pairwise(words))]

    def best_of(*parts: str, penalties: Sequence[float]) -> tuple[float, int, dict[str, float]]:
        """Fit on the splits `parts`, and return the best C, the number of features, and other accuracies."""
        vectorizer = CountVectorizer(analyzer=features, binary=True, min_df=min_count)
        words, y = zip(*(text for part in parts for text in texts[part]), strict=True)
        if len(set(y)) < 2:
            raise UserError("all reviews of train have the same label: there is nothing to tell apart")
        try:
            x = vectorizer.fit_transform(words)
        except ValueError as error:  # no word is frequent enough
            raise UserError(f"no word is in {min_count} reviews of train: lower --min-count") from error
        others = {}
        for split in texts.keys() - set(parts):
            words, labels = zip(*texts[split], strict=True)
            others[split] = vectorizer.transform(words), labels
        found = {}
        for C in penalties:
            # liblinear suits a sparse matrix with more columns than rows.
            fitted = LogisticRegression(C=C, solver="liblinear", random_state=0).fit(x, y)
            found[C] = {split: float(fitted.score(*other)) for split, other in others.items()}
        best = max(found, key=lambda C: found[C].get("dev", 0.0))
        return best, x.shape[1], found[best]

    best, size, scores = best_of("train", penalties=inverse_penalty)
    _, more, final = best_of("train", "dev", penalties=(best,))
    rows = [
        ["train", f"{scores['dev']:.2%}", f"{scores['test']:.2%}", f"{size:,}"],
        ["train and dev", "", f"{final['test']:.2%}", f"{more:,}"],
    ]
    headings = ["fitted on", "dev accuracy", "test accuracy", "features"]
    print_table(f"bag of bigrams on imdb, C = {best:g}", headings, rows)
    say(f"{time.monotonic() - begun:.0f} s")
