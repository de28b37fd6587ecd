"""The command `bigrams`: a linear model on words and pairs of words, as a baseline."""

from pathlib import Path

from dynskip_jax.console import print_table, say
from dynskip_jax.data.sentence_corpora import find_imdb, imdb_splits
from dynskip_jax.errors import needs

_PENALTIES = (0.03, 0.1, 0.3, 1.0)  # C of the logistic regression


def bigrams(data: Path | None = None) -> None:
    """Train and score a logistic regression on whether words and pairs of words occur in a review.

    It is fitted on train, and C is selected on dev.

    Args:
        data: Folder of the reviews; by default where `imdb` looks for them.
    """
    with needs("bench"):
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
    reviews, source = find_imdb(data)
    say(f"data: imdb, {source}")
    splits = {split: list(texts) for split, texts in imdb_splits(reviews).items()}
    words = {split: [text.words for text in texts] for split, texts in splits.items()}
    labels = {split: [text.label for text in texts] for split, texts in splits.items()}
    # Reviews are words already. Words and pairs in one review only are left out.
    vectorizer = CountVectorizer(
        tokenizer=list,
        preprocessor=list,
        token_pattern=None,
        ngram_range=(1, 2),
        binary=True,
        min_df=2,
    )
    x = {"train": vectorizer.fit_transform(words["train"])}
    x |= {split: vectorizer.transform(words[split]) for split in ("dev", "test")}
    # liblinear suits a sparse matrix with more columns than rows.
    models = [LogisticRegression(C=C, solver="liblinear", random_state=0) for C in _PENALTIES]
    fitted = [model.fit(x["train"], labels["train"]) for model in models]
    # The first of equals: the strongest penalty.
    best = max(fitted, key=lambda model: model.score(x["dev"], labels["dev"]))
    accuracies = [f"{best.score(x[split], labels[split]):.2%}" for split in ("dev", "test")]
    row = [f"{best.C:g}", *accuracies, f"{x['train'].shape[1]:,}"]
    print_table("bag of bigrams on imdb", ["C", "dev accuracy", "test accuracy", "features"], [row])
