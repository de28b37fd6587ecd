"""Measure a trained language model's loss with other copy probabilities in place of π.

The copy gate and all states of the model stay the same.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from dynskip_jax import functional as F
from dynskip_jax.tasks.counterfactuals import choices_of
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.read_split import read_split
from dynskip_jax.tasks.rows import of_another_row, where_counted


class CopiedWords(NamedTuple):
    """Losses of a batch with different copy probabilities, in nats.

    Attributes:
        counts: Whether each step counts, (rows, time).
        losses: Loss with each distribution over k, (rows, time, ways): the model's π; a uniform distribution
            over the allowed choices; the π at the same step of another row; then the π of each other model.
        of_each: Loss with each single k that may be chosen (`choices_of`), (rows, time, choices).
        likeliest: Loss with only the k that is most probable under π, (rows, time).
    """

    counts: Bool[Array, "rows time"]
    losses: Float[Array, "rows time ways"]
    of_each: Float[Array, "rows time choices"]
    likeliest: Float[Array, "rows time"]


def copied_words(
    learner: Learner,
    params: nnx.State,
    policy: F.Policy,
    split: str,
    *,
    rows: int,
    others: Sequence[nnx.State] = (),
    window: int = 35,
) -> Iterator[CopiedWords]:
    """Yield the losses of a language model that copies words in expectation, batch by batch.

    Args:
        learner: Learner of language models with `copy="expected"`, with its data.
        params: Parameters of one model.
        policy: How the model chooses, as in evaluation.
        split: Name of the split, `train`, `dev` or `test`.
        rows: Number of streams in a batch; at least 2, for the π of another row.
        others: Parameters of other models with the same architecture, such as other seeds.
        window: Number of steps in a batch.

    Raises:
        UserError: If `rows` is 1.
    """
    choices = choices_of(learner.skips[-1], policy)

    def read(models, carries, batch, key):
        behind, outputs = [], []
        for number, (model, carry) in enumerate(zip(models, carries, strict=True)):
            rngs = jax.random.fold_in(key, number)  # samples the choices, which affect states if λ > 0
            how = dict(policy=policy, rngs=rngs, shared_key=None, deterministic=True)
            forward, output = learner.task.read(model, batch, carry, **how)
            behind.append(forward.carry)
            outputs.append(output)
        own = outputs[0]
        in_rows, in_steps = where_counted(batch, batch.inputs.shape[1])
        weights = own.copies.weights
        even = jnp.zeros_like(weights).at[..., choices - 1].set(1 / len(choices))
        of_softmax = own.log_likelihood_of_softmax(batch.targets)
        ways = [weights, even, of_another_row(weights, batch, in_rows)]
        ways += [output.copies.weights for output in outputs[1:]]
        losses = [
            -F.copied_log_likelihood(own.copies._replace(weights=way), of_softmax, batch.targets)
            for way in ways
        ]
        of_each = -own.log_likelihood_of_each(batch.targets)
        likeliest = jnp.take_along_axis(of_each, weights.argmax(axis=-1)[..., None], axis=-1)[..., 0]
        losses = jnp.stack(losses, axis=-1)
        return behind, CopiedWords(in_steps, losses, of_each[..., choices - 1], likeliest)

    several = [params, *others]
    for _, found in read_split(learner, several, split, rows, window, read, range(len(several))):
        yield found
