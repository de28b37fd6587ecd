"""An n-gram model of source code with a cache of each file, the strong baseline without a network.

    python -m benchmarks.ngram

It reads Python's standard library. The n-grams of train are smoothed by interpolated Kneser-Ney
discounting (Chen & Goodman 1999, Section 3). The n-grams of the file so far are interpolated with
them by Witten-Bell smoothing, as in the nested cache of Hellendoorn & Devanbu (2017). It prints the
scores of `experiments.code` for dev and test.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np

from benchmarks import run_command
from dynskip_jax.data.source_code import read_code

ORDER = 5  # the largest n
Counts = dict[tuple[int, ...], dict[int, int]]  # how often each word followed each context


def recent_tokens(tokens: list[int], end: int) -> Iterator[list[int]]:
    """Yield each token after up to `ORDER` - 1 tokens of its file, which the token `end` ends."""
    begin = 0
    for i, token in enumerate(tokens):
        yield tokens[max(begin, i - ORDER + 1) : i + 1]
        if token == end:
            begin = i + 1


def add(counts: Counts, recent: list[int]) -> None:
    """Count the last of some tokens after each of its contexts among them."""
    *before, word = recent
    for start in range(len(recent)):
        followers = counts[tuple(before[start:])]
        followers[word] = followers.get(word, 0) + 1


def kneser_ney_counts(counts: Counts) -> Counts:
    """Return counts in which shorter contexts count different words before them."""
    smoothed: Counts = defaultdict(dict)
    for context, followers in counts.items():
        if len(context) == ORDER - 1:
            smoothed[context] = followers
        if context:
            shorter = smoothed[context[1:]]
            for word in followers:
                shorter[word] = shorter.get(word, 0) + 1
    return smoothed


def discounts(counts: Counts) -> np.ndarray:
    """Return the discount n1 / (n1 + 2 n2) of each length of a context."""
    seen = np.zeros((ORDER, 3))
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
    tokens: list[int], trained: Counts, size: int, end: int, *, cached: bool
) -> Iterator[np.ndarray]:
    """Yield the distribution of each token of a text, in which the token `end` ends each file."""
    discount = discounts(trained)
    cache: Counts = defaultdict(dict)
    for recent in recent_tokens(tokens, end):
        # From a uniform distribution to that of the longest context that train has.
        p = np.full(size, 1 / size)
        *before, token = recent
        contexts = [tuple(before[start:]) for start in range(len(before), -1, -1)]
        for context in itertools.takewhile(trained.__contains__, contexts):
            add_discounted(p, trained[context], discount[len(context)])
        # Then what followed these contexts in the file so far.
        for context in itertools.takewhile(cache.__contains__, contexts):
            add_witten_bell(p, cache[context])
        yield p
        # Only after the prediction: the token itself must not be known.
        if cached:
            add(cache, recent)
        if token == end:
            cache.clear()


def score() -> None:
    """Print perplexity, top-1 and top-5 accuracy and mean reciprocal rank of dev and test."""
    corpus, _ = read_code(None, max_tokens=1_200_000)
    end = corpus.vocabulary.index["<file>"]
    size = len(corpus.vocabulary)
    raw: Counts = defaultdict(dict)
    for recent in recent_tokens(corpus.train.tolist(), end):
        add(raw, recent)
    trained = kneser_ney_counts(raw)
    # Each token's -log p, and its rank among all.
    for split, cached in itertools.product(("dev", "test"), (False, True)):
        tokens = corpus.splits[split].tolist()
        found = distributions(tokens, trained, size, end, cached=cached)
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


if __name__ == "__main__":
    run_command(score)
