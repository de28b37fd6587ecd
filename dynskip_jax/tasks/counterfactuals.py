"""Measure a trained model's loss under other choices: one choice replaced, or all choices of a layer.

`single_interventions` replaces one choice by every k and keeps the others as the model took them.
`policy_interventions` replaces every choice of a layer. `chosen` compares the choices of several models.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Key

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch
from dynskip_jax.errors import UserError
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.read_split import read_split
from dynskip_jax.tasks.rows import of_another_row, repeat_rows, where_counted
from dynskip_jax.tasks.task import Forward, Task


class SingleInterventions(NamedTuple):
    """Losses under every choice at each step of a batch, in nats, summed over the row or window.

    Attributes:
        counts: Whether the step was examined, (rows, time).
        taken: The k that the model chose, 1..K, (rows, time).
        losses: Loss with each allowed k (`choices_of`) at this step, (rows, time, choices).
        x: Input x(t) of the layer, (rows, time, in).
        before: States h(t-1), h(t-2), … of the layer, (rows, time, states, hidden); zeros before the first
            step.
        path: Loss with the choices that the model took, (rows,).
        best: Smallest loss found by a beam search over all choices of the window, (rows,).
    """

    counts: Bool[Array, "rows time"]
    taken: Int[Array, "rows time"]
    losses: Float[Array, "rows time choices"]
    x: Float[Array, "rows time in"]
    before: Float[Array, "rows time states hidden"]
    path: Float[Array, " rows"]
    best: Float[Array, " rows"]


def single_interventions(
    learner: Learner,
    params: nnx.State,
    policy: F.Policy,
    split: str,
    *,
    layer: int,
    rows: int,
    window: int = 1,
    beam: int = 0,
    states: int = 1,
) -> Iterator[SingleInterventions]:
    """Yield the loss under every choice of a layer, batch by batch.

    A language model reads `rows` streams in windows of `window` steps. Each window starts from the state that
    the model's own choices left, and the loss is that of the window. Other tasks read whole sequences. If
    agents are rewarded at each step (`Task.is_of_steps`), every step is examined. Otherwise only the last
    step that the layer reads is examined.

    Args:
        learner: Learner of the model, with its data.
        params: Parameters of one model.
        policy: How the model chooses, as in evaluation.
        split: Name of the split, `train`, `dev` or `test`.
        layer: Index of the layer whose choices are replaced, among the stack's layers and directions.
        rows: Number of streams, or of sequences, in a batch.
        window: Number of steps in a language model's window.
        beam: Number of paths that the beam search keeps. 0 for no search; `best` then equals `path`.
        states: Number of earlier states to return, starting with h(t-1).

    Raises:
        UserError: If the layer does not sample a choice among several states.
    """
    choices, skip = _checked_choices(learner, layer, policy), learner.skips[layer]
    reverse = learner.reverse[layer]
    examine = partial(_examine, learner.task, policy, choices, layer=layer, reverse=reverse, beam=beam)
    enters = float(skip.mix if policy.mix is None else policy.mix) > 0
    if not enters and layer == len(learner.skips) - 1:
        examine = partial(_examine_at_once, learner.task, policy, choices, layer, beam, otherwise=examine)
    tail = None
    for carry, found in read_split(learner, [params], split, rows, window, examine):
        if not jax.tree.leaves(carry):  # each row is a whole sequence
            tail = None
        before, tail = _last_states(np.asarray(found.before), tail, states, reverse=reverse)
        yield found._replace(before=before)


class Chosen(NamedTuple):
    """Choices of several agents on the same batch.

    Attributes:
        counts: Whether each step counts, (rows, time).
        actions: The k that each agent chose, 1..K, (rows, time, agents).
        inputs: Inputs of the batch; for a language model the words, (rows, time).
    """

    counts: Bool[Array, "rows time"]
    actions: Int[Array, "rows time agents"]
    inputs: Any


def chosen(
    learner: Learner,
    several: Sequence[nnx.State],
    policy: F.Policy,
    split: str,
    *,
    layer: int,
    rows: int,
    window: int = 35,
) -> Iterator[Chosen]:
    """Yield the choices of several models' agents, batch by batch; each model reads the text independently.

    Args:
        learner: Learner of the models, with its data.
        several: Parameters of models with the same architecture, such as several seeds.
        policy: How the models choose, as in evaluation. Models that sample draw independently.
        split: Name of the split, `train`, `dev` or `test`.
        layer: Index of the layer whose choices are returned, among the stack's layers and directions.
        rows: Number of streams, or of sequences, in a batch.
        window: Number of steps in a language model's batch.

    Raises:
        UserError: If the layer does not sample a choice among several states.
    """
    _checked_choices(learner, layer, policy)

    def read(models, carries, batch, key):
        found = [
            _forward(learner.task, model, batch, carry, policy, jax.random.fold_in(key, number), None)
            for number, (model, carry) in enumerate(zip(models, carries, strict=True))
        ]
        actions = jnp.stack([forward.decisions[layer].action for forward in found], axis=-1)
        _, in_steps = where_counted(batch, actions.shape[1])
        return [forward.carry for forward in found], Chosen(in_steps, actions, batch.inputs)

    for _, found in read_split(learner, several, split, rows, window, read, range(len(several))):
        yield found


class PolicyInterventions(NamedTuple):
    """Losses of a batch when all choices of a layer are replaced, in nats, summed over the row.

    Attributes:
        count: Number of counted steps, or 1 if the task has one loss for each sequence; 0 for rows that do
            not count, (rows,).
        losses: Loss with the choices of each way, (rows, ways): the agent's; sampled uniformly from the
            allowed ones; those that the agent took at the same step of another row (a shorter row repeats);
            those of each other model on the same row; and each k of `constants` at every step.
    """

    count: Float[Array, " rows"]
    losses: Float[Array, "rows ways"]


def policy_interventions(
    learner: Learner,
    params: nnx.State,
    policy: F.Policy,
    split: str,
    *,
    layer: int,
    rows: int,
    constants: Sequence[int],
    others: Sequence[nnx.State] = (),
    window: int = 35,
) -> Iterator[PolicyInterventions]:
    """Yield the losses with every choice of a layer replaced in several ways, batch by batch.

    Each way reads the text separately, from the states that its choices lead to. Other layers choose anew.

    Args:
        learner: Learner of the model, with its data.
        params: Parameters of one model.
        policy: How the model chooses, as in evaluation.
        split: Name of the split, `train`, `dev` or `test`.
        layer: Index of the layer whose choices are replaced, among the stack's layers and directions.
        rows: Number of streams, or of sequences, in a batch; at least 2, for the choices of another row. If
            only one row of the last batch counts, that row gets its own choices.
        constants: Values of k, each of which is taken at every step.
        others: Parameters of other models with the same architecture, such as other seeds.
        window: Number of steps in a language model's batch.

    Raises:
        UserError: If the layer does not sample a choice among several states, or if `rows` is 1.
    """
    task, choices = learner.task, _checked_choices(learner, layer, policy)

    def read(models, carries, batch, key):
        def one(carry, actions=None, model=models[0], key=key):
            if actions is not None:
                actions = [actions if i == layer else None for i in range(len(learner.skips))]
            return _forward(task, model, batch, carry, policy, key, actions)

        def actions_of(forward):
            return forward.decisions[layer].action

        # One carry for the agent, one for each other model, one for each other way.
        own, *rest = carries
        path = one(own)
        theirs = [
            one(carry, model=model, key=jax.random.fold_in(key, 2 + number))
            for number, (carry, model) in enumerate(zip(rest[: len(others)], models[1:], strict=True))
        ]
        taken = actions_of(path)
        drawn = jax.random.choice(jax.random.fold_in(key, 1), choices, taken.shape)
        in_rows, in_steps = where_counted(batch, taken.shape[1])
        ways = [
            *(drawn, of_another_row(taken, batch, in_rows), *map(actions_of, theirs)),
            *(jnp.full_like(taken, k) for k in constants),
        ]
        found = [one(carry, way) for carry, way in zip(rest[len(others) :], ways, strict=True)]
        nlls = [task.compute_loss(forward.log_probs, batch).nll for forward in (path, *found)]
        counted = in_rows if nlls[0].ndim == 1 else in_steps
        losses = jnp.stack([_row_sums(nll, counted) for nll in nlls], axis=-1)
        carries = [forward.carry for forward in (path, *theirs, *found)]
        return carries, PolicyInterventions(_row_sums(jnp.ones(counted.shape), counted), losses)

    owners = [0, *range(1, 1 + len(others)), *[0] * (2 + len(others) + len(constants))]
    for _, found in read_split(learner, [params, *others], split, rows, window, read, owners):
        yield found


def _forward(
    task: Task,
    model: nnx.Module,
    batch: Batch,
    carry: Any,
    policy: F.Policy,
    key: Key[Array, ""],
    actions: Sequence[Array | None] | None,
) -> Forward:
    """Run a forward pass as in evaluation; `actions` of a layer, if given, replace its choices."""
    how = dict(policy=policy, rngs=key, shared_key=None, deterministic=True)
    return task.forward(model, batch, carry, **how, **({} if actions is None else {"actions": actions}))


def _row_sums(
    values: Float[Array, "rows *time"], counted: Bool[Array, "rows *time"]
) -> Float[Array, " rows"]:
    """Return the sum of the counted values of each row."""
    return jnp.where(counted, values, 0).reshape(len(values), -1).sum(axis=1)


def _examine(
    task: Task,
    policy: F.Policy,
    choices: Int[np.ndarray, " choices"],
    models: Sequence[nnx.Module],
    carries: Sequence[Any],
    batch: Batch,
    key: Key[Array, ""],
    *,
    layer: int,
    reverse: bool,
    beam: int,
) -> tuple[list, SingleInterventions]:
    """Return the carry after a batch, and its `SingleInterventions` with only h(t-1) in `before`."""
    (model,), (carry,) = models, carries
    path = _forward(task, model, batch, carry, policy, key, None)
    taken = tuple(decision.action for decision in path.decisions)
    shape = taken[layer].shape
    in_rows, in_steps = where_counted(batch, shape[1])

    def total(log_probs, batch, ways=1) -> Float[Array, " rows"]:
        nll = task.compute_loss(log_probs, batch).nll
        return _row_sums(nll, repeat_rows(in_rows if nll.ndim == 1 else in_steps, ways))

    def losses(chosen: Int[Array, "rows ways time"]) -> Float[Array, "rows ways"]:
        """Return the loss of each row with each of the given choices of this layer."""
        ways = chosen.shape[1]
        actions = [repeat_rows(actions, ways) for actions in taken]
        actions[layer] = chosen.reshape(-1, shape[1])
        again = repeat_rows(batch, ways)
        read = _forward(task, model, again, repeat_rows(carry, ways), policy, key, actions)
        return total(read.log_probs, again, ways).reshape(-1, ways)

    def change(chosen: Int[Array, "rows ways time"], t: Int[Array, ""]) -> Int[Array, "rows changed time"]:
        """Return copies of each sequence of choices, one with each allowed choice at step t."""
        each = jnp.repeat(chosen, len(choices), axis=1)
        return each.at[:, :, t].set(jnp.tile(choices, chosen.shape[1])[None])

    chosen = taken[layer][:, None]
    steps = jnp.arange(shape[1])
    if task.is_of_steps:
        of_each = jnp.moveaxis(jax.lax.map(lambda t: losses(change(chosen, t)), steps), 0, 1)
        examined = in_steps
    else:
        last = jnp.zeros(shape[:1], int) if reverse else _last(batch, shape)
        each = jnp.repeat(chosen, len(choices), axis=1)
        at_last = (steps[None] == last[:, None])[:, None]
        each = jnp.where(at_last, jnp.asarray(choices)[None, :, None], each)
        of_each = jnp.broadcast_to(losses(each)[:, None], (*shape, len(choices)))
        examined = in_steps & at_last[:, 0]
    as_taken = total(path.log_probs, batch)
    best = as_taken
    if beam:
        start = jnp.repeat(chosen, beam, axis=1)

        def widen(kept, t):
            ways = change(kept, t)
            # Paths may be identical, since later steps do not differ yet: keep one of each.
            of_ways = jnp.where(_repeated(ways), jnp.inf, losses(ways))
            order = jnp.argsort(of_ways, axis=1)[:, :beam]
            found = jnp.take_along_axis(of_ways, order, axis=1)
            return jnp.take_along_axis(ways, order[:, :, None], axis=1), found[:, 0]

        _, bests = jax.lax.scan(widen, start, steps)
        best = jnp.minimum(as_taken, bests.min(axis=0))
    x, before = path.observations[layer]
    return [path.carry], SingleInterventions(examined, taken[layer], of_each, x, before, as_taken, best)


def _examine_at_once(
    task: Task,
    policy: F.Policy,
    choices: Int[np.ndarray, " choices"],
    layer: int,
    beam: int,
    models: Sequence[nnx.Module],
    carries: Sequence[Any],
    batch: Batch,
    key: Key[Array, ""],
    *,
    otherwise: Callable,
) -> tuple[list, SingleInterventions]:
    """Return the result of `_examine` from one forward pass, for choices that affect only their own step.

    These are choices of the last layer with λ = 0. If `Task.forward_of_each_choice` returns None, return the
    result of `otherwise`, which is `_examine` with its other arguments bound.
    """
    how = dict(policy=policy, rngs=key, shared_key=None, deterministic=True)
    found = task.forward_of_each_choice(models[0], batch, carries[0], **how)
    if found is None:
        return otherwise(models, carries, batch, key)
    path, of_each = found[0], found[1][..., choices - 1]
    nll = task.compute_loss(path.log_probs, batch).nll
    _, in_steps = where_counted(batch, nll.shape[1])
    as_taken = _row_sums(nll, in_steps)
    losses = as_taken[:, None, None] - jnp.where(in_steps, nll, 0)[..., None]
    losses += jnp.where(in_steps[..., None], of_each, 0)
    best = _row_sums(of_each.min(axis=-1), in_steps) if beam else as_taken
    x, before = path.observations[layer]
    taken = path.decisions[layer].action
    return [path.carry], SingleInterventions(in_steps, taken, losses, x, before, as_taken, best)


def _last_states(
    before: Float[np.ndarray, "rows time hidden"],
    tail: Float[np.ndarray, "rows tail hidden"] | None,
    count: int,
    *,
    reverse: bool,
) -> tuple[Float[np.ndarray, "rows time states hidden"], Float[np.ndarray, "rows tail hidden"]]:
    """Return the last `count` states before each step, newest first, and the `tail` of the next batch.

    Args:
        before: h(t-1) of each step.
        tail: Last `count` - 1 states before the first h(t-1); None for zeros.
        count: Number of states to return for each step.
        reverse: Whether the layer reads from the end to the start.
    """
    if reverse:
        before = before[:, ::-1]
    rows, time, hidden = before.shape
    if tail is None:
        tail = np.zeros((rows, count - 1, hidden), before.dtype)
    whole = np.concatenate([tail, before], axis=1)
    states = np.stack([whole[:, count - k : count - k + time] for k in range(1, count + 1)], axis=2)
    return states[:, ::-1] if reverse else states, whole[:, time:]


def choices_of(skip: F.TimeSkip, policy: F.Policy) -> Int[np.ndarray, " choices"]:
    """Return each k that may be chosen once K states exist; a stride or a mask excludes some."""
    allowed = skip.allowed(jnp.full((1,), skip.max_skip), policy.mask)
    ways = np.ones(skip.max_skip, bool) if allowed is None else np.asarray(allowed)[0]
    return np.flatnonzero(ways) + 1


def _checked_choices(learner: Learner, layer: int, policy: F.Policy) -> Int[np.ndarray, " choices"]:
    """Return `choices_of` the layer; raise a `UserError` if it does not sample among several states."""
    skip = learner.skips[layer]
    if not skip.is_stochastic or len(found := choices_of(skip, policy)) < 2:
        raise UserError("this model samples no choice among several states: train one such as dynamic:5")
    return found


def _last(batch: Batch, shape: tuple[int, int]) -> Int[Array, " rows"]:
    if batch.seq_lengths is None:
        return jnp.full(shape[:1], shape[1] - 1)
    return jnp.asarray(batch.seq_lengths) - 1


def _repeated(ways: Int[Array, "rows ways time"]) -> Bool[Array, "rows ways"]:
    """Return which ways equal an earlier way of the same row."""
    same = (ways[:, :, None] == ways[:, None]).all(axis=-1)
    return jnp.tril(same, -1).any(axis=-1)
