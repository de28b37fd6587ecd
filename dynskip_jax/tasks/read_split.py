"""Reads a split with trained models: a compiled call for each batch, from the carry of the one before."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from flax import nnx

from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.rows import num_rows


def read_split(
    learner: Learner,
    several: Sequence[nnx.State],
    split: str,
    rows: int,
    window: int,
    read: Callable,
    owners: Sequence[int] = (0,),
) -> Iterator[tuple[list, Any]]:
    """Yields of each batch of a split the carries behind it, and what `read` makes of it.

    Args:
        learner: with its data.
        several: the parameters of each model.
        split: `train`, `dev` or `test`.
        rows: read side by side.
        window: steps that a language model reads at a time.
        read: from models, carries, batch and key to the carries behind the batch and what is yielded.
        owners: of each carry the model that it belongs to.
    """
    task = learner.task
    models = [task.evaluation_model(learner.model(params)) for params in several]
    graphdef = nnx.graphdef(models[0])
    states = [nnx.state(model) for model in models]

    def merged(states):
        return [nnx.merge(graphdef, state) for state in states]

    compiled = jax.jit(lambda states, *rest: read(merged(states), *rest))
    carries = None
    for number, batch in enumerate(task.windows(split, rows, window)):
        if carries is None:
            count = num_rows(batch)
            # A carry may hold the key that choices are drawn with: to each model its own.
            starts = [
                task.initial_carry(model, count, jax.random.key(own))
                for own, model in enumerate(merged(states))
            ]
            carries = [starts[owner] for owner in owners]
        carries, found = compiled(states, carries, batch, jax.random.key(number))
        yield carries, found
