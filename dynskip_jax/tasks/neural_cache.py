"""Evaluate language models with many neural caches at once (Grave et al. 2017)."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.data import Batch
from dynskip_jax.models import LanguageModel
from dynskip_jax.tasks.language_modelling import LanguageModelling, OfTargets
from dynskip_jax.tasks.task import Forward, LossOutput


@dataclasses.dataclass(frozen=True)
class CacheGrid:
    """Neural caches to compare in one evaluation: every θ with every λ.

    Attributes:
        size: N, the number of words in a cache.
        flatness: Values of θ.
        weight: Values of λ.
    """

    size: int
    flatness: tuple[float, ...]
    weight: tuple[float, ...]


class WithCaches(NamedTuple):
    """Log-probabilities without and with caches, in nats.

    Attributes:
        model: Log-probabilities without a cache.
        cached: Log-probability of the next word with each cache, (rows, time, θ, λ).
    """

    model: OfTargets
    cached: Float[Array, "rows time flatness weight"]


class CachedLanguageModelling(LanguageModelling):
    """A `LanguageModelling` task for evaluation, with the additional metric `perplexity_cached`, (θ, λ).

    Args:
        *args: Arguments of `LanguageModelling`.
        cache: Caches to compare; each sample of a stream has its own cache.
        **options: Keyword arguments of `LanguageModelling`.
    """

    def __init__(self, *args: Any, cache: CacheGrid, **options: Any):
        super().__init__(*args, **options)
        self.cache = cache

    def initial_carry(self, model: LanguageModel, rows: int, key: Key[Array, ""]) -> Any:
        """See `Task`; the caches are empty."""
        features = model.stack.cells[-1].hidden_features
        return super().initial_carry(model, rows, key), F.empty_cache(rows, self.cache.size, features)

    def forward(self, model: LanguageModel, batch: Batch, carry: Any, **how: Any) -> Forward:
        """See `Task`."""
        carry, past = carry
        read, output = self.read(model, batch, carry, **how)
        past, cached = _cached(self.cache, past, output.states, batch.targets, read.log_probs.target)
        log_probs = WithCaches(read.log_probs, jnp.moveaxis(cached, (0, 1), (2, 3)))
        return read._replace(log_probs=log_probs, carry=(read.carry, past))

    def compute_loss(self, log_probs: WithCaches, batch: Batch) -> LossOutput:
        """See `Task`."""
        scored = super().compute_loss(log_probs.model, batch)
        return scored._replace(counted={**scored.counted, "cached_nll": -log_probs.cached})


def _cached(
    cache: CacheGrid,
    past: F.CacheCarry,
    states: Float[Array, "batch time hidden"],
    targets: Int[Array, "batch time"],
    log_likelihood: Float[Array, "batch time"],
) -> tuple[F.CacheCarry, Float[Array, "flatness weight batch time"]]:
    """Return the updated cache, shared by all θ and λ, and log p of the targets with each θ and λ."""

    def of(flatness, weight):
        return F.cached_log_likelihood(
            past, states, targets, log_likelihood, flatness=flatness, weight=weight
        )

    grid = jax.vmap(jax.vmap(of, (None, 0), (None, 0)), (0, None), (None, 0))
    return grid(jnp.asarray(cache.flatness), jnp.asarray(cache.weight))
