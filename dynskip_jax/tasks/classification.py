"""Classification of sequences."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.analysis.statistics import confusion_matrix, macro_f1
from dynskip_jax.data.batches import Batch, Examples
from dynskip_jax.tasks.rows import where_counted
from dynskip_jax.tasks.task import ExampleTask, Forward, MakeModel, StepPenalty


class Classification(ExampleTask):
    """A task with one class for each sequence of ids; it trains a `SequenceClassifier` (Gui et al. 2019).

    Args:
        splits: See `ExampleTask`.
        make_model: See `Task`; the model returns a `ClassifierOutput`.
        activation_coef: α of activation regularization (AR; Merity et al. 2018, Section 4.6), on the top
            layer's states.
        temporal_coef: β of temporal activation regularization (TAR), on the top layer's states.
        class_names: Name of each class; empty if classes have no names.
        has_macro_f1: Whether macro F1 over these classes is a metric.
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
        has_macro_f1: bool = False,
        **options: Any,
    ):
        super().__init__(splits, make_model, **options)
        self.activation_coef, self.temporal_coef = activation_coef, temporal_coef
        self.class_names = tuple(class_names)
        if has_macro_f1:  # only then: a subclass may define other host metrics
            self.has_host_metrics = True

    def host_metrics(self, split: str, predictions: Sequence[Any]) -> dict[str, float]:
        """See `Task`."""
        truth, predicted = np.asarray(self.splits[split].targets), np.asarray(predictions)
        return {"macro_f1": macro_f1(confusion_matrix(truth, predicted, len(self.class_names)))}

    def forward(self, model: nnx.Module, batch: Batch, carry: Any, *, shared_key: Any, **how: Any) -> Forward:
        """See `Task`."""
        if any(cell.weight_dropout for cell in model.stack.cells):
            how["weight_key"] = shared_key
        output = self.call(model, batch, **how)
        penalties = ()
        if self.activation_coef or self.temporal_coef:
            _, valid = where_counted(batch, output.states.shape[1])
            activation = F.activation_regularisation(output.states, self.activation_coef, valid)
            temporal = F.temporal_activation_regularisation(output.states, self.temporal_coef, valid)
            pairs = valid[:, :-1] & valid[:, 1:]
            penalties = (
                StepPenalty(activation, valid.sum(dtype=jnp.float32)),
                StepPenalty(temporal, pairs.sum(dtype=jnp.float32)),
            )
        log_probs = jax.nn.log_softmax(output.logits)
        read = dict(observations=output.observations, step_penalties=penalties)
        return Forward(log_probs, output.decisions, **read)

    def call(self, model: nnx.Module, batch: Batch, **how: Any) -> Any:
        """Return the model's output for a batch; `how` is passed to the model."""
        return model(batch.inputs, seq_lengths=batch.seq_lengths, **how)
