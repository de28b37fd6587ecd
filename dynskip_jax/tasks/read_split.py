"""Read a split with trained models, batch by batch, in one compiled function that carries state over."""

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
    """Yield the carries after each batch of a split, and the result of `read` for the batch.

    Args:
        learner: Learner of the models, with its data.
        several: Parameters of each model.
        split: Name of the split, `train`, `dev` or `test`.
        rows: Number of rows in a batch.
        window: Number of steps in a language model's batch.
        read: Function `(models, carries, batch, key) -> (carries, result)`; it is compiled.
        owners: For each carry, the index in `several` of the model that it belongs to.
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
            # A carry may contain the key that choices are drawn with: each model gets a different one.
            starts = [
                task.initial_carry(model, count, jax.random.key(own))
                for own, model in enumerate(merged(states))
            ]
            carries = [starts[owner] for owner in owners]
        carries, found = compiled(states, carries, batch, jax.random.key(number))
        yield carries, found
