"""The data, the model, and the task."""

import jax
import numpy as np
from flax import nnx

from dynskip_jax.data import Examples, Vocabulary, length_buckets, pad_sequences
from dynskip_jax.experiment import Dataset
from dynskip_jax.models import ClassifierOutput
from dynskip_jax.nn import SkipLSTM
from dynskip_jax.tasks import ExampleTask, Forward

LETTERS = "abcdef"


class Tagger(nnx.Module):
    def __init__(self, features, skip, cell, rngs):
        self.stack = SkipLSTM(len(LETTERS), features, skip=skip, cell=cell, rngs=rngs)
        self.softmax = nnx.Linear(features, 2, rngs=rngs)

    def __call__(self, letters, **how):
        outputs = self.stack(jax.nn.one_hot(letters, len(LETTERS)), **how)
        return ClassifierOutput(self.softmax(outputs.h), outputs.decisions, outputs.observations)


class SeenBefore(ExampleTask):
    score, primary_metric, is_of_steps = "f1", "accuracy", True

    def forward(self, model, batch, carry, *, shared_key, **how):
        output = model(batch.inputs, seq_lengths=batch.seq_lengths, **how)
        log_probs = jax.nn.log_softmax(output.logits)
        return Forward(log_probs, output.decisions, observations=output.observations)

    def host_metrics(self, split, predictions):
        said, true = np.concatenate(predictions), np.concatenate(self.truth[split])
        return {"f1": 2 * (said & true).sum() / max(1, said.sum() + true.sum())}


def load(settings):
    rng, splits = np.random.default_rng(0), {}
    for split, size in (("train", 60), ("dev", 20), ("test", 20)):
        lines = [rng.integers(6, size=n).astype(np.int32) for n in rng.integers(2, 13, size)]
        truth = [np.array([a in line[:i] for i, a in enumerate(line)], np.int32) for line in lines]
        inputs, lengths = pad_sequences(lines)
        buckets = tuple(sorted({*length_buckets(lengths, 2), 16}))
        splits[split] = Examples(inputs, pad_sequences(truth)[0], lengths, buckets=buckets), truth
    sizes = {name: len(lines) for name, (lines, _) in splits.items()}
    vocabulary = Vocabulary(tuple(LETTERS))
    return Dataset("letters", sizes, "made with 0", "made up", content=splits, vocabulary=vocabulary)


def make_task(spec, settings, data, vocabulary):
    def make(rngs):
        return Tagger(settings.model.features, spec.skip, spec.cell_options, rngs)

    found = {} if data is None else data.content
    splits = {name: examples for name, (examples, _) in found.items()}
    task = SeenBefore(splits, make, batch_size=settings.training.batch_size)
    task.truth = {name: truth for name, (_, truth) in found.items()}
    return task
