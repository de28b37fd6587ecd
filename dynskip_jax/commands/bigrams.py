"""The command `bigrams`: fit a linear model on words and pairs of words of reviews, as a baseline."""

import time
from pathlib import Path

from dynskip_jax.console import print_table, say
from dynskip_jax.data.corpora import find_imdb, imdb_splits
from dynskip_jax.errors import needs

_PENALTIES = (0.03, 0.1, 0.3, 1.0)  # C of the logistic regression


def bigrams(data: Path | None = None) -> None:
    """Train and score a logistic regression on whether words and pairs of words occur in a review.

    C is selected on dev. The first row is fitted on train, as the other models are; the second on train and
    dev.

    Args:
        data: Folder of the reviews; by default where `imdb` looks for them.
    """
    with needs("bench"):
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
    reviews, source = find_imdb(data)
    begun = time.monotonic()
    say(f"data: imdb, {source}")
    splits = {split: list(texts) for split, texts in imdb_splits(reviews).items()}
    penalties, rows = _PENALTIES, []
    for parts in (("train",), ("train", "dev")):
        # Reviews are words already. Words and pairs in one review only are left out.
        vectorizer = CountVectorizer(
            tokenizer=list, preprocessor=list, token_pattern=None, ngram_range=(1, 2), binary=True, min_df=2
        )
        texts = [text for part in parts for text in splits[part]]
        x, y = vectorizer.fit_transform([text.words for text in texts]), [text.label for text in texts]
        # liblinear suits a sparse matrix with more columns than rows.
        fitted = [LogisticRegression(C=C, solver="liblinear", random_state=0).fit(x, y) for C in penalties]
        others = {
            split: (vectorizer.transform([text.words for text in own]), [text.label for text in own])
            for split, own in splits.items()
        }
        best = max(fitted, key=lambda model, others=others: model.score(*others["dev"]))
        penalties = (best.C,)  # of the second row
        accuracies = [f"{best.score(*others[split]):.2%}" for split in ("dev", "test") if split not in parts]
        rows.append([" and ".join(parts), *[""] * (2 - len(accuracies)), *accuracies, f"{x.shape[1]:,}"])
    headings = ["fitted on", "dev accuracy", "test accuracy", "features"]
    print_table(f"bag of bigrams on imdb, C = {best.C:g}", headings, rows)
    say(f"{time.monotonic() - begun:.0f} s")
