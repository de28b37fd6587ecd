"""An n-gram model of source code with a cache of each file, the strong baseline without a network.

    python -m benchmarks.ngram [--data DIR] [--order 5]

The n-grams of train are smoothed by interpolated Kneser-Ney discounting (Chen & Goodman 1999,
Section 3). The n-grams of the file so far are interpolated with them by Witten-Bell smoothing, as
in the nested cache of Hellendoorn & Devanbu (2017). It prints the scores of `experiments.code` for
dev and test.
"""

import itertools
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import numpy as np

from dynskip_jax.config.flags import Bounds, call
from dynskip_jax.data.source_code import read_code
from dynskip_jax.terminal.failures import run_main

Counts = dict[tuple[int, ...], dict[int, int]]  # how often each word followed each context


def add(counts: Counts, recent: list[int]) -> None:
    """Count the last of some tokens after each of its contexts among them."""
    *before, word = recent
    for start in range(len(recent)):
        followers = counts[tuple(before[start:])]
        followers[word] = followers.get(word, 0) + 1


def kneser_ney_counts(counts: Counts, order: int) -> Counts:
    """Return counts in which shorter contexts count different words before them."""
    smoothed: Counts = defaultdict(dict)
    for context, followers in counts.items():
        if len(context) == order - 1:
            smoothed[context] = followers
        if context:
            shorter = smoothed[context[1:]]
            for word in followers:
                shorter[word] = shorter.get(word, 0) + 1
    return smoothed


def discounts(counts: Counts, order: int) -> np.ndarray:
    """Return the discount n1 / (n1 + 2 n2) of each length of a context."""
    seen = np.zeros((order, 3))
    for context, followers in counts.items():
        for count in followers.values():
            seen[len(context), min(count, 3) - 1] += 1
    return seen[:, 0] / (seen[:, 0] + 2 * seen[:, 1])


def add_discounted(p: np.ndarray, followers: dict[int, int], discount: float) -> None:
    """Interpolate a shorter context's distribution `p` with a longer one's counts, in place."""
    words = np.fromiter(followers, np.int64)
    found = np.fromiter(followers.values(), float)
    total = found.sum()
    p *= discount * len(words) / total
    p[words] += (found - discount) / total


def add_witten_bell(p: np.ndarray, followers: dict[int, int]) -> None:
    """Interpolate `p` with counts, weighted by the share of tokens that were not new, in place."""
    words = np.fromiter(followers, np.int64)
    found = np.fromiter(followers.values(), float)
    p *= len(words)
    p[words] += found
    p /= found.sum() + len(words)


def distributions(
    tokens: list[int],
    trained: Counts,
    discount: np.ndarray,
    order: int,
    size: int,
    end: int,
    cached: bool,
) -> Iterator[np.ndarray]:
    """Yield the distribution of each token of a text, in which the token `end` ends each file."""
    cache: Counts = defaultdict(dict)
    begin = 0
    for i, token in enumerate(tokens):
        p = np.full(size, 1 / size)
        for length in range(min(order - 1, i - begin) + 1):
            followers = trained.get(tuple(tokens[i - length : i]))
            if followers is None:
                break
            add_discounted(p, followers, discount[length])
        for length in range(min(order - 1, i - begin) + 1):
            followers = cache.get(tuple(tokens[i - length : i]))
            if followers is None or not cached:
                break
            add_witten_bell(p, followers)
        yield p
        # Only after the prediction: the token itself must not be known.
        add(cache, tokens[max(begin, i - order + 1) : i + 1])
        if token == end:
            begin = i + 1
            cache.clear()


def score(
    data: Path | None = None,
    order: Annotated[int, Bounds(2, 9)] = 5,
    max_tokens: Annotated[int, Bounds(1, 10**9)] = 1_200_000,
) -> None:
    """Print perplexity, top-1 and top-5 accuracy and mean reciprocal rank of dev and test.

    Args:
        data: Folder of source code; by default Python's standard library.
        order: Largest n.
        max_tokens: Read at most about this many tokens.
    """
    corpus, _ = read_code(data, max_tokens)
    end = corpus.vocabulary.index["<file>"]
    size = len(corpus.vocabulary)
    raw: Counts = defaultdict(dict)
    train = corpus.train.tolist()
    begin = 0  # of the file, whose end counts do not cross
    for i, token in enumerate(train):
        add(raw, train[max(begin, i - order + 1) : i + 1])
        if token == end:
            begin = i + 1
    trained = kneser_ney_counts(raw, order)
    discount = discounts(trained, order)
    for split, cached in itertools.product(("dev", "test"), (False, True)):
        tokens = corpus.splits[split].tolist()
        found = distributions(tokens, trained, discount, order, size, end, cached)
        nats = []
        ranks = []
        for token, p in zip(tokens, found, strict=True):
            nats.append(-np.log(p[token]))
            ranks.append(1 + np.count_nonzero(p > p[token]))
        name = f"{split}, with a cache" if cached else split
        groups = corpus.vocabulary.groups(corpus.splits[split])
        print_scores(name, np.array(nats), np.array(ranks), groups)


def print_scores(
    name: str, nats: np.ndarray, ranks: np.ndarray, groups: Mapping[str, np.ndarray]
) -> None:
    """Print the perplexity of all tokens, and how all and those of each group were ranked."""
    print(f"{name}: perplexity {np.exp(nats.mean()):.2f}")
    for group, is_of_group in {"all": np.ones(len(ranks), bool), **groups}.items():
        rank = ranks[is_of_group]
        top1 = (rank == 1).mean()
        top5 = (rank <= 5).mean()
        mrr = (1 / rank).mean()
        print(f"  {group}: top-1 {top1:.1%}, top-5 {top5:.1%}, MRR {mrr:.3f}", flush=True)


def main() -> None:
    """Run the command line."""
    call(score, "python -m benchmarks.ngram", sys.argv[1:])


if __name__ == "__main__":
    run_main(main)
