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
from dynskip_jax.models import rating_distribution
from dynskip_jax.tasks.label_score import score_labels
from dynskip_jax.tasks.task import ExampleTask, Forward, LossOutput, MakeModel, where_counted


class Classification(ExampleTask):
    """A task with one class for each sequence of ids; it trains a `SequenceClassifier` (Gui et al. 2019).

    Args:
        splits: See `ExampleTask`.
        make_model: See `Task`; the model returns a `ClassifierOutput`.
        activation_coef: α of activation regularization (AR; Merity et al. 2018, Section 4.6), on the top
            layer's states.
        temporal_coef: β of temporal activation regularization (TAR), on the top layer's states.
        class_names: Name of each class, for which macro F1 is a metric; empty if classes have no names.
        **options: Other arguments of `ExampleTask`.
    """

    def __init__(
        self,
        splits: Mapping[str, Examples],
        make_model: MakeModel,
        *,
        activation_coef: float = 0.0,
        temporal_coef: float = 0.0,
        class_names: Sequence[str] = (),
        **options: Any,
    ):
        super().__init__(splits, make_model, **options)
        self.activation_coef, self.temporal_coef = activation_coef, temporal_coef
        self.class_names = tuple(class_names)

    @override
    def host_metrics(self, split: str, predictions: Sequence[Any]) -> dict[str, float]:
        if not self.class_names:
            return {}
        truth, predicted = (np.asarray(ids).tolist() for ids in (self.splits[split].targets, predictions))
        return {"macro_f1": score_labels([truth], [predicted], has_entities=False).macro_f1}

    @override
    def constant_score(self, split: str) -> float | None:
        if self.score != "accuracy":
            return None
        targets = self.splits[split].targets
        return np.bincount(targets).max(initial=0) / max(1, len(targets))

    @override
    def forward(self, model: nnx.Module, batch: Batch, carry: Any, *, shared_key: Any, **how: Any) -> Forward:
        if any(cell.weight_dropout for cell in model.stack.cells):
            how["weight_key"] = shared_key
        output = self.call(model, batch, **how)
        penalties = ()
        if self.activation_coef or self.temporal_coef:
            _, valid = where_counted(batch, output.states.shape[1])
            pairs = valid[:, :-1] & valid[:, 1:]
            activation = F.activation_regularisation(output.states, self.activation_coef, valid)
            temporal = F.temporal_activation_regularisation(output.states, self.temporal_coef, valid)
            counts = (each.sum(dtype=jnp.float32) for each in (valid, pairs))
            penalties = tuple(zip((activation, temporal), counts, strict=True))
        log_probs = jax.nn.log_softmax(output.logits)
        return Forward(log_probs, output.decisions, observations=output.observations, penalties=penalties)

    def call(self, model: nnx.Module, batch: Batch, **how: Any) -> Any:
        """Return the model's output for a batch; `how` is passed to the model."""
        return model(batch.inputs, seq_lengths=batch.seq_lengths, **how)


class SentencePairs(Classification):
    """A task with a rating for each pair of sentences; it trains a `SentencePairModel`.

    Inputs are those of `data.sentences.pair_inputs`; targets are ratings from 1. The loss is the
    Kullback-Leibler divergence KL(p || p̂), where p is the two-point distribution of the true rating. The
    prediction is the mean of p̂. It is scored by Pearson's r, Spearman's ρ and the mean squared error.
    """

    score, primary_metric = "pearson", "kl"

    @override
    def call(self, model: nnx.Module, batch: Batch, **how: Any) -> Any:
        inputs = batch.inputs
        return model(inputs["tokens"], inputs["sentences"], seq_lengths=batch.seq_lengths, **how)

    @override
    def compute_loss(self, log_probs: Float[Array, "rows ratings"], batch: Batch) -> LossOutput:
        p = rating_distribution(batch.targets, log_probs.shape[-1])
        divergence = (xlogy(p, p) - p * log_probs).sum(axis=-1)
        return LossOutput(divergence, None, {"kl": divergence})

    @override
    def predict(self, log_probs: Float[Array, "rows ratings"], batch: Batch) -> Float[Array, " rows"]:
        return jnp.exp(log_probs) @ jnp.arange(1, log_probs.shape[-1] + 1, dtype=log_probs.dtype)

    @override
    def host_metrics(self, split: str, predictions: Sequence[Any]) -> Mapping[str, float]:
        """Return the scores; correlations are 0 if all predictions, or all ratings, are equal."""
        import scipy.stats  # takes a second, which other tasks do not pay

        said = np.asarray(predictions, np.float64)
        true = np.asarray(self.splits[split].targets, np.float64)
        pearson = spearman = 0.0
        if np.ptp(said) and np.ptp(true):
            pearson = float(scipy.stats.pearsonr(said, true).statistic)
            spearman = float(scipy.stats.spearmanr(said, true).statistic)
        return {"pearson": pearson, "spearman": spearman, "mse": float(np.mean((said - true) ** 2))}
