"""Classification of sequences."""

import jax

from dynskip_jax.tasks.task import ExampleTask, Forward


class Classification(ExampleTask):
    """A class for each sequence of ids; trains a `SequenceClassifier` (Gui et al. 2019)."""

    def forward(self, model, batch, carry, *, shared_key, **how) -> Forward:
        """See `Task`."""
        output = model(batch.inputs, seq_lengths=batch.seq_lengths, **how)
        log_probs = jax.nn.log_softmax(output.logits)
        return Forward(log_probs, output.decisions, observations=output.observations)
