"""Rate the similarity of two sentences, as in SICK's relatedness task (Tai et al. 2015, Section 4.2)."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.stats
from flax import nnx
from jax.scipy.special import xlogy
from jaxtyping import Array, Float

from dynskip_jax.data.batches import Batch
from dynskip_jax.models import rating_distribution
from dynskip_jax.tasks.classification import Classification
from dynskip_jax.tasks.task import LossOutput


class SentencePairs(Classification):
    """A task with a rating for each pair of sentences; it trains a `SentencePairModel`.

    Inputs are those of `data.sentences.pair_inputs`; targets are ratings from 1. The loss is the
    Kullback-Leibler divergence KL(p || p̂), where p is the two-point distribution of the true rating. The
    prediction is the mean of p̂. It is scored by Pearson's r, Spearman's ρ and the mean squared error.
    """

    score, primary_metric, has_host_metrics = "pearson", "kl", True
    has_likelihood = False  # exp(-KL) is no probability: its mean is not that of an averaged prediction

    def call(self, model: nnx.Module, batch: Batch, **how: Any) -> Any:
        """See `Classification`."""
        inputs = batch.inputs
        return model(inputs["tokens"], inputs["sentences"], seq_lengths=batch.seq_lengths, **how)

    def compute_loss(self, log_probs: Float[Array, "rows ratings"], batch: Batch) -> LossOutput:
        """See `Task`."""
        p = rating_distribution(batch.targets, log_probs.shape[-1])
        divergence = (xlogy(p, p) - p * log_probs).sum(axis=-1)
        return LossOutput(divergence, None, {"kl": divergence})

    def predict(self, log_probs: Float[Array, "rows ratings"], batch: Batch) -> Float[Array, " rows"]:
        """See `Task`; returns the mean rating of each row."""
        return jnp.exp(log_probs) @ jnp.arange(1, log_probs.shape[-1] + 1, dtype=log_probs.dtype)

    def host_metrics(self, split: str, predictions: Sequence[Any]) -> Mapping[str, float]:
        """See `Task`; correlations are 0 if all predictions, or all ratings, are equal."""
        said = np.asarray(predictions, np.float64)
        true = np.asarray(self.splits[split].targets, np.float64)
        pearson = spearman = 0.0
        if np.ptp(said) and np.ptp(true):
            pearson = float(scipy.stats.pearsonr(said, true).statistic)
            spearman = float(scipy.stats.spearmanr(said, true).statistic)
        return {"pearson": pearson, "spearman": spearman, "mse": float(np.mean((said - true) ** 2))}
