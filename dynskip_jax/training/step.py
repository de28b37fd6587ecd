"""One training step of all seeds: what it replaces, the keys it draws with, and how it is compiled."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key

from dynskip_jax.devices.parallel import (
    PER_EXAMPLE,
    PER_SEED,
    P,
    Parallel,
    batch_spec,
    mean_over,
    own_examples,
    sum_over,
)
from dynskip_jax.functional.sequence import where_each
from dynskip_jax.training.asgd import AveragedState, average_start, average_update

PyTree = Any
Sums = dict[str, Any]  # arrays, or trees of them
Metrics = dict[str, np.ndarray]  # one value per seed


@runtime_checkable
class Trainable(Protocol):
    """What the loop trains. Everything is for one seed; the loop maps it over seeds.

    Attributes:
        monitor: the dev metric that selects the best epoch, as in `dev_perplexity`.
        higher_is_better: whether more of it is better.
        primary_metric: the training metric shown beside the progress bar.
        num_batches: batches in an epoch.
        examples_per_batch: how many of its `unit` one model sees in a batch.
        unit: what is counted: `examples`, of a language model `tokens`.
        train_lengths: the numbers of steps that training batches have; for each a program is compiled. Empty
            where batches have no time axis, or all the same one.
        batch_axis: 0 if each seed has batches of its own, stacked; None if all share them. Beyond that every
            leaf of a batch leads with its examples.
    """

    monitor: str
    higher_is_better: bool
    primary_metric: str
    num_batches: int
    examples_per_batch: int
    unit: str
    train_lengths: tuple[int, ...]
    batch_axis: int | None

    def init(self, key: Key[Array, ""]) -> PyTree:
        """Returns fresh parameters."""

    def initial_carry(self, params: PyTree, key: Key[Array, ""]) -> PyTree:
        """Returns what the first step of an epoch starts from; every leaf leads with the examples."""

    def loss(
        self,
        params: PyTree,
        carry: PyTree,
        batch: PyTree,
        keys: Key[Array, " batch"],
        scheduled: PyTree,
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[PyTree, Sums]]:
        """Returns the loss, the carry for the next step, and sums from which metrics are made.

        The loss is a mean over examples, each of which draws its noise with a key of its own: the batch may
        then be divided among devices. Where it is divided over a mapped axis (`axis_name`, under pmap),
        whatever one example takes from the others (a baseline) has to be exchanged over that axis.
        """

    def scheduled(self, epoch: int) -> PyTree:
        """Return the scheduled values of an epoch (from 0), the same ones at each call.

        Every leaf has a number for each seed, (seeds, ...). Static values belong to the structure: when they
        change, the step is compiled again.
        """

    def train_batches(self, epoch: int) -> Iterable[PyTree]:
        """Returns the batches of an epoch, the same ones each time it is asked."""

    def summarise(self, sums: dict[str, np.ndarray]) -> Metrics:
        """Turns sums, which lead with the seed axis, into metrics."""

    def evaluate(self, params: PyTree, split: str, keys: Key[Array, " seeds"]) -> Metrics:
        """Returns the metrics of one split for parameters that lead with the seed axis."""


class TrainState(NamedTuple):
    """What a step replaces; every leaf leads with the seed axis, and the carry's go on with the examples.

    Attributes:
        params: the parameters.
        opt_state: the optimizer's.
        carry: of the task.
        sums: from which the metrics of the epoch so far are made.
        average: of the iterates, if they are averaged.
        skipped: steps whose loss or gradient was not finite and which changed nothing: those in a row up to
            now, and all of them, (seeds, 2).
    """

    params: PyTree
    opt_state: PyTree
    carry: PyTree
    sums: Sums
    average: AveragedState | None = None
    skipped: Int[Array, "*seeds two"] | None = None


LAYOUT = TrainState(
    params=PER_SEED, opt_state=PER_SEED, carry=PER_EXAMPLE, sums=PER_SEED, average=PER_SEED, skipped=PER_SEED
)


class SeedKeys(NamedTuple):
    """Independent streams of each seed, (seeds,)."""

    init: Key[Array, " seeds"]
    train: Key[Array, " seeds"]
    carry: Key[Array, " seeds"]
    evaluate: Key[Array, " seeds"]


def evaluation_keys(seeds: tuple[int, ...]) -> Key[Array, " seeds"]:
    """Returns the keys with which `fit` evaluates these seeds, (seeds,)."""
    return seed_keys(seeds).evaluate


def seed_keys(seeds: tuple[int, ...]) -> SeedKeys:
    """Returns the keys of each seed."""
    roots = jnp.stack([jax.random.key(seed) for seed in seeds])
    return SeedKeys(
        *(jax.vmap(jax.random.fold_in, (0, None))(roots, i) for i in range(len(SeedKeys._fields)))
    )


def of_epoch(keys: Key[Array, " seeds"], epoch: int) -> Key[Array, " seeds"]:
    """Returns the keys of an epoch."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, epoch)


def start_state(
    task: Trainable,
    optimizer: optax.GradientTransformation,
    keys: SeedKeys,
    params: PyTree | None = None,
    *,
    averaged: bool = False,
    initial_carry: Callable[..., PyTree] | None = None,
) -> TrainState:
    """Returns where training begins.

    Args:
        task: what to train.
        optimizer: direction of descent.
        keys: of the seeds.
        params: to start from in place of fresh ones, (seeds, ...).
        averaged: whether iterates are to be averaged.
        initial_carry: the task's, for all seeds, where it is compiled already.
    """
    initial_carry = initial_carry or jax.jit(jax.vmap(task.initial_carry))
    if params is None:
        # One seed after the other: on a CPU of few cores, several batched QR decompositions (of orthogonal
        # matrices) at once can wait for each other's threads without end.
        params = jax.jit(partial(jax.lax.map, task.init))(keys.init)
    else:
        params = jax.tree.map(jnp.array, params)  # a copy: a step deletes the arrays that it is given
    return TrainState(
        params=params,
        opt_state=jax.jit(jax.vmap(optimizer.init))(params),
        carry=initial_carry(params, of_epoch(keys.carry, 0)),
        sums=zero_sums(task, params, keys),
        average=jax.vmap(average_start)(params) if averaged else None,
        skipped=jnp.zeros((len(keys.init), 2), jnp.int32),
    )


def make_step(
    task: Trainable, optimizer: optax.GradientTransformation, parallel: Parallel
) -> Callable[..., TrainState]:
    """Compiles one update of all seeds; the old state's memory is given to the new one."""
    axis_name = parallel.axis_name

    def update(state, batch, key, index, learning_rate, scheduled, averaged):
        keys = _example_keys(jax.random.fold_in(key, index), batch, axis_name)
        gradient = jax.value_and_grad(task.loss, has_aux=True)
        (loss, (carry, sums)), grads = gradient(state.params, state.carry, batch, keys, scheduled, axis_name)
        grads, sums = mean_over(grads, axis_name), sum_over(sums, axis_name)
        # One sum is finite if all are; what is not finite changes nothing but the count.
        total = sum(map(jnp.sum, jax.tree.leaves(grads)), mean_over(loss, axis_name))
        fine = jnp.isfinite(total)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = jax.tree.map(lambda p, u: p - learning_rate.astype(p.dtype) * u, state.params, updates)
        average = None if state.average is None else average_update(state.average, params, averaged)
        sums = jax.tree.map(jnp.add, state.sums, sums)
        in_a_row, ever = state.skipped
        skipped = jnp.stack([jnp.where(fine, 0, in_a_row + 1), ever + ~fine])
        new = TrainState(params, opt_state, carry, sums, average, skipped)
        return where_each(fine, new, state._replace(skipped=skipped))

    return parallel.compile(
        jax.vmap(update, in_axes=(0, task.batch_axis, 0, None, 0, 0, 0)),
        in_specs=(LAYOUT, batch_spec(task.batch_axis), PER_SEED, P(), PER_SEED, PER_SEED, PER_SEED),
        out_specs=LAYOUT,
    )


def _example_keys(key: Key[Array, ""], batch: PyTree, axis_name: str | None = None) -> Key[Array, " batch"]:
    """One key per example, made from its number in the whole batch, wherever the example is."""
    examples = own_examples(jax.tree.leaves(batch)[0].shape[0], axis_name)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, examples)


def zero_sums(task: Trainable, params: PyTree, keys: SeedKeys) -> Sums:
    """Returns the sums of no batch, (seeds, ...)."""
    batch = next(iter(task.train_batches(0)))
    carry = jax.eval_shape(jax.vmap(task.initial_carry), params, keys.carry)

    def loss(params, carry, batch, key, scheduled):
        return task.loss(params, carry, batch, _example_keys(key, batch), scheduled)

    loss = jax.vmap(loss, in_axes=(0, 0, task.batch_axis, 0, 0))
    _, (_, sums) = jax.eval_shape(loss, params, carry, batch, keys.train, task.scheduled(0))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums)
