"""Classify sequences, and rate the similarity of two sentences (Tai et al. 2015, Section 4.2)."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.scipy.special import xlogy
from jaxtyping import Array, Float
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch, Examples
from dynskip_jax.tasks.label_score import score_labels
from dynskip_jax.tasks.rows import where_counted
from dynskip_jax.tasks.task import ExampleTask, Forward, LossOutput, MakeModel


class Classification(ExampleTask):
    """A task with one class for each sequence of ids; it trains a `SequenceClassifier`.

    Args:
        make_model: Function that makes the model, which returns a `ClassifierOutput`.
        activation_coefs: α of activation regularization and β of temporal activation regularization
            (Merity et al. 2018, Section 4.6), of the top layer.
        class_names: Name of each class, for which macro F1 is a metric; empty if classes have no
            names.
    """

    def __init__(
        self,
        splits: Mapping[str, Examples],
        make_model: MakeModel,
        *,
        activation_coefs: tuple[float, float] = (0.0, 0.0),
        class_names: Sequence[str] = (),
        **options: Any,
    ):
        super().__init__(splits, make_model, **options)
        self.activation_coefs = activation_coefs
        self.class_names = tuple(class_names)

    @override
    def host_metrics(self, split: str, predictions: Sequence[Any]) -> dict[str, float]:
        if not self.class_names:
            return {}
        truth, predicted = (
            np.asarray(ids).tolist() for ids in (self.splits[split].targets, predictions)
        )
        return {"macro_f1": score_labels([truth], [predicted], has_entities=False).macro_f1}

    @override
    def forward(
        self, model: nnx.Module, batch: Batch, carry: Any, *, shared_key: Any, **how: Any
    ) -> Forward:
        if any(cell.weight_dropout for cell in model.stack.cells):
            how["weight_key"] = shared_key
        output = model(batch.inputs, seq_lengths=batch.seq_lengths, **how)
        penalties = ()
        if any(self.activation_coefs):
            _, valid = where_counted(batch, output.states.shape[1])
            pairs = valid[:, :-1] & valid[:, 1:]
            alpha, beta = self.activation_coefs
            activation = F.activation_regularisation(output.states, alpha, valid)
            temporal = F.temporal_activation_regularisation(output.states, beta, valid)
            penalties = (activation, jnp.float32(valid.sum())), (temporal, jnp.float32(pairs.sum()))
        log_probs = jax.nn.log_softmax(output.logits)
        return Forward(
            log_probs, output.decisions, observations=output.observations, penalties=penalties
        )


class SentencePairs(Classification):
    """A task with a rating for each pair of sentences; it trains a `SentencePairModel`.

    Inputs are those of `data.sentences.pair_inputs`; targets are ratings y from 1. The loss is the
    Kullback-Leibler divergence KL(p || p̂), where p has the mean y: only ⌊y⌋ and ⌊y⌋ + 1 have a
    probability (Tai et al. 2015, Eq. 16). The prediction is the mean of p̂. It is scored by
    Pearson's r, Spearman's ρ and the mean squared error.
    """

    score = "pearson"
    primary_metric = "kl"

    @override
    def compute_loss(self, log_probs: Float[Array, "rows ratings"], batch: Batch) -> LossOutput:
        ratings = jnp.arange(1, log_probs.shape[-1] + 1)[None]
        p = jnp.maximum(1 - jnp.abs(batch.targets[:, None] - ratings), 0)
        divergence = (xlogy(p, p) - p * log_probs).sum(axis=-1)
        return LossOutput(divergence, None, {"kl": divergence})

    @override
    def predict(
        self, log_probs: Float[Array, "rows ratings"], batch: Batch
    ) -> Float[Array, " rows"]:
        return jnp.exp(log_probs) @ jnp.arange(1, log_probs.shape[-1] + 1, dtype=log_probs.dtype)

    @override
    def host_metrics(self, split: str, predictions: Sequence[Any]) -> Mapping[str, float]:
        """Return the scores; correlations are 0 if all predictions, or all ratings, are equal."""
        from scipy.stats import pearsonr, spearmanr  # takes a second, which other tasks do not pay

        said, true = (
            np.asarray(of, np.float64) for of in (predictions, self.splits[split].targets)
        )
        varies = np.ptp(said) and np.ptp(true)
        scores = {"pearson": pearsonr, "spearman": spearmanr}
        found = {
            name: float(of(said, true).statistic) if varies else 0.0 for name, of in scores.items()
        }
        return found | {"mse": float(np.mean((said - true) ** 2))}
