"""Compile one training step of all seeds, and define its state and its PRNG keys."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, Key, PyTree

from dynskip_jax.functional.sequence import where_each
from dynskip_jax.training import mesh as devices
from dynskip_jax.training.asgd import AveragedState, average_start, average_update
from dynskip_jax.training.mesh import PER_EXAMPLE, PER_SEED, P, Parallel

Sums = dict[str, Any]  # arrays, or trees of them
Metrics = dict[str, np.ndarray]  # one value per seed


@runtime_checkable  # the check of signatures asks
class Trainable(Protocol):
    """What the loop trains; `init`, `initial_carry` and `loss` are for one seed, and are mapped."""

    monitor: str  # dev metric that selects the best epoch, such as `dev_perplexity`
    higher_is_better: bool  # whether a larger value of `monitor` is better
    primary_metric: str  # training metric shown next to the progress bar
    num_batches: int  # in an epoch
    unit: str  # what is counted: `examples`, or `tokens` for a language model
    # 0 if each seed has its own batches, stacked; None if all seeds share them. The next axis is
    # examples.
    batch_axis: int | None

    def init(self, key: Key[Array, ""]) -> PyTree:
        """Return initial parameters."""

    def initial_carry(self, params: PyTree, key: Key[Array, ""]) -> PyTree:
        """Return the carry for the first step of an epoch, each leaf (examples, ...)."""

    def loss(
        self,
        params: PyTree,
        carry: PyTree,
        batch: PyTree,
        keys: Key[Array, " batch"],
        scheduled: PyTree,
        axis_name: str | None = None,
    ) -> tuple[Float[Array, ""], tuple[PyTree, Sums]]:
        """Return the loss, a mean over examples, and (the next carry, sums for metrics).

        Values that combine examples, such as a baseline, have to be reduced over the mapped axis
        `axis_name`.
        """

    def scheduled(self, epoch: int) -> PyTree:
        """Return an epoch's values, each leaf (seeds, ...); static ones are its structure."""

    def train_batches(self, epoch: int) -> Iterable[PyTree]:
        """Return the batches of an epoch (from 0), the same ones at each call."""

    def train_batch_sizes(self, epoch: int) -> Sequence[int]:
        """Return how many of `unit` one model has in each batch; their sum never changes."""

    def summarise(self, sums: dict[str, np.ndarray]) -> Metrics:
        """Return metrics from sums, each leaf (seeds, ...)."""

    def evaluate(self, params: PyTree, split: str, keys: Key[Array, " seeds"]) -> Metrics:
        """Return the metrics of one split for parameters with a leading seed axis."""


class TrainState(NamedTuple):
    """State of training, which every step replaces; each leaf is (seeds, ...)."""

    params: PyTree
    opt_state: PyTree
    carry: PyTree  # (seeds, examples, ...)
    sums: Sums  # of the epoch so far, from which metrics are computed
    average: AveragedState | None = None  # mean of the iterates; None without averaging
    # Steps that changed nothing because loss or gradient was not finite: those in a row up to now,
    # and all.
    skipped: Int[Array, "*seeds two"] | None = None


LAYOUT = TrainState(
    params=PER_SEED,
    opt_state=PER_SEED,
    carry=PER_EXAMPLE,
    sums=PER_SEED,
    average=PER_SEED,
    skipped=PER_SEED,
)


class SeedKeys(NamedTuple):
    """Independent PRNG keys of each seed, one for each use."""

    init: Key[Array, " seeds"]
    train: Key[Array, " seeds"]
    carry: Key[Array, " seeds"]
    evaluate: Key[Array, " seeds"]


def seed_keys(seeds: tuple[int, ...]) -> SeedKeys:
    """Return the PRNG keys of each seed."""
    roots = jnp.stack([jax.random.key(seed) for seed in seeds])
    return SeedKeys(*(of_epoch(roots, i) for i in range(len(SeedKeys._fields))))


def evaluation_keys(seeds: tuple[int, ...]) -> Key[Array, " seeds"]:
    """Return the keys with which `fit` evaluates these seeds, (seeds,)."""
    return seed_keys(seeds).evaluate


def of_epoch(keys: Key[Array, " seeds"], epoch: int) -> Key[Array, " seeds"]:
    """Return the keys of an epoch, derived from the keys of the seeds, (seeds,)."""
    return jax.vmap(jax.random.fold_in, (0, None))(keys, epoch)


def start_state(
    task: Trainable,
    optimizer: optax.GradientTransformation,
    keys: SeedKeys,
    params: PyTree | None = None,
    averaged: bool = False,
) -> TrainState:
    """Return the state before the first step, from `params`, (seeds, ...), or from random ones."""
    if params is None:
        # Initialize one seed after the other: on a CPU with few cores, concurrent batched QR
        # decompositions (for orthogonal matrices) can deadlock on each other's threads.
        params = jax.jit(partial(jax.lax.map, task.init))(keys.init)
    else:
        params = jax.tree.map(jnp.array, params)  # a copy, because a step donates its arguments
    carry = jax.jit(jax.vmap(task.initial_carry))(params, of_epoch(keys.carry, 0))

    def sums_of(params, carry, batch, key, scheduled):
        _, (_, sums) = task.loss(params, carry, batch, _example_keys(key, batch), scheduled)
        return sums

    batch = next(iter(task.train_batches(0)))
    of_seeds = jax.vmap(sums_of, in_axes=(0, 0, task.batch_axis, 0, 0))
    sums = jax.eval_shape(of_seeds, params, carry, batch, keys.train, task.scheduled(0))
    return TrainState(
        params=params,
        opt_state=jax.jit(jax.vmap(optimizer.init))(params),
        carry=carry,
        sums=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), sums),
        average=jax.vmap(average_start)(params) if averaged else None,
        skipped=jnp.zeros((len(keys.init), 2), jnp.int32),
    )


def make_step(
    task: Trainable, optimizer: optax.GradientTransformation, parallel: Parallel
) -> Callable[..., TrainState]:
    """Return the compiled update of all seeds; it donates the old state's memory."""
    axis_name = parallel.axis_name

    def update(state, batch, key, index, learning_rate, scheduled, most):
        keys = _example_keys(jax.random.fold_in(key, index), batch, axis_name)
        gradient = jax.value_and_grad(task.loss, has_aux=True)
        (loss, (carry, sums)), grads = gradient(
            state.params, state.carry, batch, keys, scheduled, axis_name
        )
        grads = devices.mean_over(grads, axis_name)
        if axis_name is not None:
            sums = jax.lax.psum(sums, axis_name)
        # The total is finite only if the loss and all gradients are. Otherwise only `skipped`
        # changes.
        total = sum(map(jnp.sum, jax.tree.leaves(grads)), devices.mean_over(loss, axis_name))
        fine = jnp.isfinite(total)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = jax.tree.map(
            lambda p, u: p - learning_rate.astype(p.dtype) * u, state.params, updates
        )
        average = None
        if state.average is not None:
            average = average_update(state.average, params, most)
        sums = jax.tree.map(jnp.add, state.sums, sums)
        in_a_row, ever = state.skipped
        skipped = jnp.stack([jnp.where(fine, 0, in_a_row + 1), ever + ~fine])
        new = TrainState(params, opt_state, carry, sums, average, skipped)
        return where_each(fine, new, state._replace(skipped=skipped))

    return parallel.compile(
        jax.vmap(update, in_axes=(0, task.batch_axis, 0, None, 0, 0, 0)),
        in_specs=(
            LAYOUT,
            devices.batch_spec(task.batch_axis),
            PER_SEED,
            P(),
            PER_SEED,
            PER_SEED,
            PER_SEED,
        ),
        out_specs=LAYOUT,
    )


def _example_keys(
    key: Key[Array, ""], batch: PyTree, axis_name: str | None = None
) -> Key[Array, " batch"]:
    """Return one key per example, derived from its index in the whole batch on any device."""
    examples = devices.own_examples(jax.tree.leaves(batch)[0].shape[0], axis_name)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, examples)
