"""What other choices would have cost: a trained model's loss with one choice exchanged, or all of a window.

The path is the one that the model takes; at each of its steps every k is tried, all other choices held.
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
from dynskip_jax.data.batching import Batch
from dynskip_jax.errors import UserError
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.read_split import read_split
from dynskip_jax.tasks.rows import of_another_row, repeat_rows, where_counted
from dynskip_jax.tasks.task import Forward, Task


class SingleInterventions(NamedTuple):
    """Of each step of a batch what every choice costs; nats, summed over the row or window.

    Attributes:
        counts: whether the step is one of those examined, (rows, time).
        taken: the k that was chosen, 1..K, (rows, time).
        losses: with each k in its place that may be chosen (`choices_of`), (rows, time, choices).
        x: x(t) of the layer, (rows, time, in).
        before: h(t-1), h(t-2), … of the layer, (rows, time, states, hidden); zeros before the first step.
        path: the loss as it was, (rows,).
        best: the smallest loss that a beam search over all choices of the window finds, (rows,).
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
    """Yields, batch by batch, what every choice of a layer costs.

    A language model reads `rows` streams in windows of so many steps, each from the state that the path left;
    the loss is that of the window. Other tasks read whole sequences: where agents are rewarded at each step
    every choice is tried, otherwise that at the last step that the layer reads, which decides it.

    Args:
        learner: with its data.
        params: of one model.
        policy: how it chooses, as in evaluation.
        split: `train`, `dev` or `test`.
        layer: of the stack's layers and directions the one whose choices are exchanged.
        rows: streams, or sequences, read side by side.
        window: steps of a language model's window.
        beam: how many paths the search for the best one keeps; 0 for no search, `best` then being `path`.
        states: how many earlier states are told, beginning with h(t-1).

    Raises:
        UserError: the layer has no choice among several states.
    """
    choices, skip = _checked_choices(learner, layer, policy), learner.skips[layer]
    reverse = learner.reverse[layer]
    examine = partial(_examine, learner.task, policy, choices, layer=layer, reverse=reverse, beam=beam)
    enters = float(skip.mix if policy.mix is None else policy.mix) > 0
    if not enters and layer == len(learner.skips) - 1:
        examine = partial(_examine_at_once, learner.task, policy, choices, layer, beam, otherwise=examine)
    tail = None
    for carry, found in read_split(learner, [params], split, rows, window, examine):
        if not jax.tree.leaves(carry):  # rows are whole
            tail = None
        before, tail = _last_states(np.asarray(found.before), tail, states, reverse=reverse)
        yield found._replace(before=before)


class Chosen(NamedTuple):
    """What several agents choose in one text.

    Attributes:
        counts: whether the step counts, (rows, time).
        actions: the k of each of them, 1..K, (rows, time, agents).
        inputs: what the batch gives to be read; words of a language model, (rows, time).
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
    """Yields, batch by batch, what the agents of several models choose; each reads the text by itself.

    Args:
        learner: with its data.
        several: parameters of models of one kind, such as those of other seeds.
        policy: how they choose, as in evaluation; where they sample, each draws by itself.
        split: `train`, `dev` or `test`.
        layer: of the stack's layers and directions the one whose choices are told.
        rows: streams, or sequences, read side by side.
        window: steps that a language model reads at a time.

    Raises:
        UserError: the layer has no choice among several states.
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
    """What a batch costs where all choices of a layer are made in another way; nats, summed over the row.

    Attributes:
        count: steps, or of tasks that have one loss for each sequence these, (rows,).
        losses: by the agent; drawn evenly from those that it may choose; as the agent chose at the same step
            of another row (of a shorter one over and over); as each of the other models chose in its own
            reading of the same row; always k, for each of the k asked for; (rows, ways).
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
    """Yields, batch by batch, what a split costs where every choice of a layer is made in another way.

    Each way reads the text by itself, with the states that it leads to; other layers choose anew.

    Args:
        learner: with its data.
        params: of one model.
        policy: how it chooses, as in evaluation.
        split: `train`, `dev` or `test`.
        layer: of the stack's layers and directions the one whose choices are replaced.
        rows: streams, or sequences, read side by side; at least 2, for choices of another row. A last batch
            in which one row alone counts has no other.
        constants: the k that are taken throughout, each a way of its own.
        others: parameters of models of the same kind, such as those of other seeds, each a way of its own.
        window: steps that a language model reads at a time.

    Raises:
        UserError: the layer has no choice among several states, or there is one row.
    """
    task, choices = learner.task, _checked_choices(learner, layer, policy)

    def read(models, carries, batch, key):
        def one(carry, actions=None, model=models[0], key=key):
            if actions is not None:
                actions = [actions if i == layer else None for i in range(len(learner.skips))]
            return _forward(task, model, batch, carry, policy, key, actions)

        def actions_of(forward):
            return forward.decisions[layer].action

        # The agent, each of the others, then the other ways: each has a carry of its own.
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
    """Reads as evaluation does, with actions in the place of choices where they are given."""
    how = dict(policy=policy, rngs=key, shared_key=None, deterministic=True)
    return task.forward(model, batch, carry, **how, **({} if actions is None else {"actions": actions}))


def _row_sums(
    values: Float[Array, "rows *time"], counted: Bool[Array, "rows *time"]
) -> Float[Array, " rows"]:
    """Of each row the sum of what counts."""
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
    """What is yielded of a batch, `before` being h(t-1) alone, and the carry behind it."""
    (model,), (carry,) = models, carries
    path = _forward(task, model, batch, carry, policy, key, None)
    taken = tuple(decision.action for decision in path.decisions)
    shape = taken[layer].shape
    in_rows, in_steps = where_counted(batch, shape[1])

    def total(log_probs, batch, ways=1) -> Float[Array, " rows"]:
        nll = task.compute_loss(log_probs, batch).nll
        return _row_sums(nll, repeat_rows(in_rows if nll.ndim == 1 else in_steps, ways))

    def losses(chosen: Int[Array, "rows ways time"]) -> Float[Array, "rows ways"]:
        """Of each row read with other choices of this layer, `ways` times."""
        ways = chosen.shape[1]
        actions = [repeat_rows(actions, ways) for actions in taken]
        actions[layer] = chosen.reshape(-1, shape[1])
        again = repeat_rows(batch, ways)
        read = _forward(task, model, again, repeat_rows(carry, ways), policy, key, actions)
        return total(read.log_probs, again, ways).reshape(-1, ways)

    def change(chosen: Int[Array, "rows ways time"], t: Int[Array, ""]) -> Int[Array, "rows changed time"]:
        """Every way with each choice at step t."""
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
            # The ways to come differ in nothing yet: of the same ones one is kept.
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
    """What `_examine` finds, from one reading, where choices enter no state and yet say something."""
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
    """The last states before each step, the newest first, and those that the next piece has before it."""
    if reverse:
        before = before[:, ::-1]
    rows, time, hidden = before.shape
    if tail is None:
        tail = np.zeros((rows, count - 1, hidden), before.dtype)
    whole = np.concatenate([tail, before], axis=1)
    states = np.stack([whole[:, count - k : count - k + time] for k in range(1, count + 1)], axis=2)
    return states[:, ::-1] if reverse else states, whole[:, time:]


def choices_of(skip: F.TimeSkip, policy: F.Policy) -> Int[np.ndarray, " choices"]:
    """Returns each k that may be chosen once all K states are there: a stride or a mask leaves some out."""
    allowed = skip.allowed(jnp.full((1,), skip.max_skip), policy.mask)
    ways = np.ones(skip.max_skip, bool) if allowed is None else np.asarray(allowed)[0]
    return np.flatnonzero(ways) + 1


def _checked_choices(learner: Learner, layer: int, policy: F.Policy) -> Int[np.ndarray, " choices"]:
    """Those of a layer that samples."""
    skip = learner.skips[layer]
    if not skip.is_stochastic or len(found := choices_of(skip, policy)) < 2:
        raise UserError("this model samples no choice among several states: train one such as dynamic:5")
    return found


def _last(batch: Batch, shape: tuple[int, int]) -> Int[Array, " rows"]:
    if batch.seq_lengths is None:
        return jnp.full(shape[:1], shape[1] - 1)
    return jnp.asarray(batch.seq_lengths) - 1


def _repeated(ways: Int[Array, "rows ways time"]) -> Bool[Array, "rows ways"]:
    """Which ways an earlier one of the same row equals."""
    same = (ways[:, :, None] == ways[:, None]).all(axis=-1)
    return jnp.tril(same, -1).any(axis=-1)
