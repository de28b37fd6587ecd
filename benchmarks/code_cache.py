"""Measure how often a model of code with a neural cache completes with the true token.

    python -m benchmarks.code_cache --run-dir DIR --flatness 0.8 --weight 0.4

`python -m experiments.code evaluate` chooses θ (`--flatness`) and the weight on dev. This command
gives the whole distribution of each token of test in one stream, so that tokens can be ranked
(Grave et al. 2017). The cache is emptied where a file begins, as the model's states are.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from benchmarks import run_command
from benchmarks.ngram import print_scores
from dynskip_jax import functional as F
from dynskip_jax import load_run
from dynskip_jax.config.flags import Rate, Weight
from dynskip_jax.experiments.code.task import ranks
from dynskip_jax.functional.neural_cache import first_of_document
from dynskip_jax.models.language_model import LanguageModelOutput

_SIZE = 500  # tokens in the cache
_STEPS = 100  # read in one call


def cached_log_probs(
    cache: F.CacheCarry,
    output: LanguageModelOutput,
    targets: Int[Array, " time"],
    begins: Bool[Array, " time"],
    flatness: float,
    weight: float,
) -> tuple[F.CacheCarry, Float[Array, "time vocabulary"]]:
    """Return the cache of one stream after a segment, and log p of all tokens at each step."""
    size = cache.words.shape[1]
    states = jnp.concatenate([cache.states[0], output.states[0]])
    tokens = jnp.concatenate([cache.words[0], targets])
    first = first_of_document(begins[None], size)[0]
    before = jnp.arange(len(targets))[:, None] + jnp.arange(size)[None]
    words = jnp.where(before >= first[:, None], tokens[before], F.NO_WORD)
    scores = flatness * jnp.einsum("th,tnh->tn", output.states[0], states[before])
    is_word = words != F.NO_WORD
    shares = jax.nn.softmax(jnp.where(is_word, scores, -1e9), axis=-1)
    shares = jnp.where(is_word, shares, 0)
    # A cache is a pointer whose gate is constant. Without any word the model's probability stays.
    gate = jnp.full((1, len(targets), 1), jnp.log(weight) - jnp.log1p(-weight))
    copies = F.Copies(
        words[None], shares[None] + (1 - shares.sum(-1, keepdims=True))[None] / size, gate
    )
    log_probs = F.copied_log_probs(copies, jax.nn.log_softmax(output.logits))
    kept = jnp.where(jnp.arange(len(tokens)) >= first[-1], tokens, F.NO_WORD)
    return F.CacheCarry(states[None, -size:], kept[None, -size:]), log_probs[0]


def score(run_dir: Path, flatness: Weight, weight: Rate) -> None:
    """Print perplexity, top-1 and top-5 accuracy and mean reciprocal rank on test.

    Args:
        run_dir: A finished run of experiments.code.
        flatness: θ.
        weight: Weight of the cache.
    """
    trained = load_run(run_dir)
    targets = np.asarray(trained.data().content.test)
    inputs = np.concatenate([[trained.vocabulary.restart_token], targets[:-1]]).astype(np.int32)

    @jax.jit
    def read(params: Any, carry: Any, cache: F.CacheCarry, tokens: Array, truth: Array) -> tuple:
        model = trained.learner.model(params)
        options = dict(policy=trained.policy, deterministic=True, return_carry=True)
        carry, output = model(tokens[None], initial_carry=carry, **options)
        begins = tokens == trained.vocabulary.restart_token
        cache, log_probs = cached_log_probs(cache, output, truth, begins, flatness, weight)
        nats = -jnp.take_along_axis(log_probs, truth[:, None], axis=-1)[:, 0]
        return carry, cache, nats, ranks(log_probs, truth)

    # One stream, segment by segment; states and cache go on.
    carry = trained.model.initialize_carry(1)
    cache = F.empty_cache(1, _SIZE, trained.model.stack.cells[-1].hidden_features)
    found = []
    for start in range(0, len(targets), _STEPS):
        part = slice(start, start + _STEPS)
        carry, cache, nats, rank = read(
            trained.params, carry, cache, jnp.asarray(inputs[part]), jnp.asarray(targets[part])
        )
        found.append((np.asarray(nats), np.asarray(rank)))
    nats, rank = (np.concatenate(each) for each in zip(*found, strict=True))
    print_scores("test", nats, rank, trained.vocabulary.groups(targets))


if __name__ == "__main__":
    run_command(score)
