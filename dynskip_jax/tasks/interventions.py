"""Measure a trained model's loss under other choices: one choice replaced, all of a layer, or what is copied.

The functions read a split of a learner's data batch by batch, with one compiled program. `params` are those
of one model, `others` those of further models of the same architecture, and `policy` says how they choose, as
in evaluation. `layer` is an index among the stack's layers and directions. A batch has `rows` streams or
sequences; a language model reads `window` steps of each, and carries its state to the next batch. Losses are
in nats.
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
from dynskip_jax.tasks.task import (
    Forward,
    Task,
    evaluated,
    num_rows,
    of_another_row,
    repeat_rows,
    row_sums,
    where_counted,
)


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
        split: Name of the split.
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
            # A carry may contain the key that choices are drawn with: each model gets a different one.
            starts = [
                task.initial_carry(model, num_rows(batch), jax.random.key(own))
                for own, model in enumerate(merged(states))
            ]
            carries = [starts[owner] for owner in owners]
        carries, found = compiled(states, carries, batch, jax.random.key(number))
        yield carries, found


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


def _forward(
    task: Task,
    model: nnx.Module,
    batch: Batch,
    carry: Any,
    policy: F.Policy,
    key: Key[Array, ""],
    actions: Sequence[Array | None] | None = None,
) -> Forward:
    """Run a forward pass as in evaluation; `actions` of a layer, if given, replace its choices."""
    how = evaluated(policy, key)
    return task.forward(model, batch, carry, **how, **({} if actions is None else {"actions": actions}))


# --- The choices of several models ---


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
    """Yield the choices of several models' agents, which read and sample independently.

    Raises:
        UserError: If the layer does not sample a choice among several states.
    """
    _checked_choices(learner, layer, policy)

    def read(models, carries, batch, key):
        found = [
            _forward(learner.task, model, batch, carry, policy, jax.random.fold_in(key, number))
            for number, (model, carry) in enumerate(zip(models, carries, strict=True))
        ]
        actions = jnp.stack([forward.decisions[layer].action for forward in found], axis=-1)
        _, in_steps = where_counted(batch, actions.shape[1])
        return [forward.carry for forward in found], Chosen(in_steps, actions, batch.inputs)

    for _, found in read_split(learner, several, split, rows, window, read, range(len(several))):
        yield found


# --- All choices of a layer ---


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

    Each way reads the text separately, from the states that its choices lead to. Other layers choose anew. If
    only one row of the last batch counts, that row gets its own choices as those of another row.

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
        losses = jnp.stack([row_sums(nll, counted) for nll in nlls], axis=-1)
        carries = [forward.carry for forward in (path, *theirs, *found)]
        return carries, PolicyInterventions(row_sums(jnp.ones(counted.shape), counted), losses)

    owners = [0, *range(1, 1 + len(others)), *[0] * (2 + len(others) + len(constants))]
    for _, found in read_split(learner, [params, *others], split, rows, window, read, owners):
        yield found


# --- The words that a language model copies ---


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
    """Yield the losses of a language model that copies in expectation, with other probabilities than π.

    The copy gate and all states of the model stay the same.

    Raises:
        UserError: If `rows` is 1.
    """
    choices = choices_of(learner.skips[-1], policy)

    def read(models, carries, batch, key):
        behind, outputs = [], []
        for number, (model, carry) in enumerate(zip(models, carries, strict=True)):
            # The key samples the choices, which affect states if λ > 0.
            how = evaluated(policy, jax.random.fold_in(key, number))
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


# --- One choice ---


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
    """Yield the loss with each choice of a layer replaced by every k, and the others as the model took them.

    If agents are rewarded at each step (`Task.is_of_steps`), every step is examined. Otherwise only the last
    step that the layer reads is examined. The loss of a language model is that of the window, which starts
    from the state that the model's own choices left.

    Args:
        learner: Learner of the model, with its data.
        params: Parameters of one model.
        policy: How the model chooses.
        split: Name of the split.
        layer: Index of the layer.
        rows: Number of streams, or of sequences, in a batch.
        window: Number of steps in a language model's window.
        beam: Number of paths that the beam search keeps. 0 for no search; `best` then equals `path`.
        states: Number of earlier states to return, starting with h(t-1).

    Raises:
        UserError: If the layer does not sample a choice among several states.
    """
    choices, skip = _checked_choices(learner, layer, policy), learner.skips[layer]
    enters = float(skip.mix if policy.mix is None else policy.mix) > 0
    at_once = not enters and layer == len(learner.skips) - 1
    examine = partial(_examine, learner, policy, choices, layer=layer, beam=beam, at_once=at_once)
    tail = None
    for carry, found in read_split(learner, [params], split, rows, window, examine):
        if not jax.tree.leaves(carry):  # each row is a whole sequence
            tail = None
        before, tail = _last_states(np.asarray(found.before), tail, states, reverse=learner.reverse[layer])
        yield found._replace(before=before)


def _examine(
    learner: Learner,
    policy: F.Policy,
    choices: Int[np.ndarray, " choices"],
    models: Sequence[nnx.Module],
    carries: Sequence[Any],
    batch: Batch,
    key: Key[Array, ""],
    *,
    layer: int,
    beam: int,
    at_once: bool,
) -> tuple[list, SingleInterventions]:
    """Return the carry after a batch, and its `SingleInterventions` with only h(t-1) in `before`.

    With `at_once` a choice affects only its own step, and one forward pass may be enough.
    """
    task, model, carry = learner.task, models[0], carries[0]
    both = task.forward_of_each_choice(model, batch, carry, **evaluated(policy, key)) if at_once else None
    path, of_each = both or (_forward(task, model, batch, carry, policy, key), None)
    taken = path.decisions[layer].action
    in_rows, in_steps = where_counted(batch, taken.shape[1])
    nll = task.compute_loss(path.log_probs, batch).nll
    as_taken = best = row_sums(nll, in_rows if nll.ndim == 1 else in_steps)
    examined = in_steps
    if of_each is not None:
        of_each = jnp.where(in_steps[..., None], of_each[..., choices - 1], 0)
        losses = as_taken[:, None, None] - jnp.where(in_steps, nll, 0)[..., None] + of_each
        best = of_each.min(axis=-1).sum(axis=1) if beam else as_taken
    else:
        replayed = _Replay(task, policy, choices, model, batch, carry, key, path, layer)
        if task.is_of_steps:
            losses = replayed.at_each_step()
        else:
            losses, at_last = replayed.at_last_step(reverse=learner.reverse[layer])
            examined = in_steps & at_last
        if beam:
            best = jnp.minimum(as_taken, replayed.beam_search(beam))
    x, before = path.observations[layer]
    return [path.carry], SingleInterventions(examined, taken, losses, x, before, as_taken, best)


class _Replay(NamedTuple):
    """A batch that is read again with other choices of a layer.

    Attributes:
        task: Task of the model.
        policy: How the model chooses.
        choices: Each k that may be chosen.
        model: The model.
        batch: The batch.
        carry: Carry before the batch.
        key: Key for what is sampled.
        path: Forward pass with the model's own choices.
        layer: Index of the layer.
    """

    task: Task
    policy: F.Policy
    choices: Int[np.ndarray, " choices"]
    model: nnx.Module
    batch: Batch
    carry: Any
    key: Key[Array, ""]
    path: Forward
    layer: int

    @property
    def taken(self) -> Int[Array, "rows 1 time"]:
        """Choices that the model took in the layer."""
        return self.path.decisions[self.layer].action[:, None]

    def losses(self, chosen: Int[Array, "rows ways time"]) -> Float[Array, "rows ways"]:
        """Return the loss of each row with each of the given choices of this layer."""
        rows, ways, time = chosen.shape
        actions = [repeat_rows(decision.action, ways) for decision in self.path.decisions]
        actions[self.layer] = chosen.reshape(-1, time)
        again, carry = repeat_rows((self.batch, self.carry), ways)
        read = _forward(self.task, self.model, again, carry, self.policy, self.key, actions)
        nll = self.task.compute_loss(read.log_probs, again).nll
        in_rows, in_steps = where_counted(self.batch, time)
        counted = repeat_rows(in_rows if nll.ndim == 1 else in_steps, ways)
        return row_sums(nll, counted).reshape(rows, ways)

    def change(
        self, chosen: Int[Array, "rows ways time"], t: Int[Array, ""]
    ) -> Int[Array, "rows changed time"]:
        """Return copies of each sequence of choices, one with each allowed choice at step t."""
        each = jnp.repeat(chosen, len(self.choices), axis=1)
        return each.at[:, :, t].set(jnp.tile(self.choices, chosen.shape[1])[None])

    def at_each_step(self) -> Float[Array, "rows time choices"]:
        """Return the losses with each choice at each step."""
        steps = jnp.arange(self.taken.shape[-1])
        found = jax.lax.map(lambda t: self.losses(self.change(self.taken, t)), steps)
        return jnp.moveaxis(found, 0, 1)

    def at_last_step(
        self, *, reverse: bool
    ) -> tuple[Float[Array, "rows time choices"], Bool[Array, "rows time"]]:
        """Return the losses with each choice at the last step that the layer reads, and where it is."""
        rows, _, time = self.taken.shape
        last = jnp.full(rows, time - 1) if self.batch.seq_lengths is None else self.batch.seq_lengths - 1
        at_last = jnp.arange(time)[None] == (0 * last if reverse else last)[:, None]
        each = jnp.repeat(self.taken, len(self.choices), axis=1)
        each = jnp.where(at_last[:, None], jnp.asarray(self.choices)[None, :, None], each)
        return jnp.broadcast_to(self.losses(each)[:, None], (rows, time, len(self.choices))), at_last

    def beam_search(self, beam: int) -> Float[Array, " rows"]:
        """Return the smallest loss found over all choices of the window, with `beam` paths kept."""

        def widen(kept, t):
            ways = self.change(kept, t)
            # Paths may be identical, since later steps do not differ yet: keep one of each.
            same = jnp.tril((ways[:, :, None] == ways[:, None]).all(axis=-1), -1).any(axis=-1)
            of_ways = jnp.where(same, jnp.inf, self.losses(ways))
            order = jnp.argsort(of_ways, axis=1)[:, :beam]
            found = jnp.take_along_axis(of_ways, order, axis=1)
            return jnp.take_along_axis(ways, order[:, :, None], axis=1), found[:, 0]

        start = jnp.repeat(self.taken, beam, axis=1)
        _, bests = jax.lax.scan(widen, start, jnp.arange(self.taken.shape[-1]))
        return bests.min(axis=0)


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
