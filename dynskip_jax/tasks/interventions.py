"""Measure a trained model's loss if choices are replaced: one, all of a layer, or the copies.

The functions yield a result for each batch of a split of a learner's data. `several` has the
parameters of the model in question, then those of others of the same architecture. `policy` says
how they choose, as in evaluation. `layer` is an index among the stack's layers and directions. A
batch has `rows` streams or sequences; a language model carries its state to the next batch. Losses
are in nats.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped

from dynskip_jax import functional as F
from dynskip_jax.data.batches import Batch, epoch_order
from dynskip_jax.tasks.language import LanguageModelling
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.rows import num_rows, repeat_rows, where_counted
from dynskip_jax.tasks.task import evaluated

Several = Sequence[nnx.State]


def _read_split(
    learner: Learner,
    several: Several,
    split: str,
    rows: int,
    read: Callable,
    ways: int = 0,
    window: int = 35,
) -> Iterator[Any]:
    """Yield the result of `read`, a function `(models, carries, batch, key) -> (carries, result)`.

    There is a carry of each model, and then of the first model for each of the `ways`. A language
    model reads `window` steps at once.
    """
    task = learner.task
    carries = None
    compiled = jax.jit(
        lambda several, *rest: read([learner.model(params) for params in several], *rest)
    )
    is_text = isinstance(task, LanguageModelling)
    if is_text:
        batches = task.windows(split, rows, window)
    else:  # in the order of an epoch: by themselves, short sequences come first
        batches = list(task.evaluation_batches(split, rows, 1))
        batches = [batches[number] for number in epoch_order(len(batches), 0, 0)]
    for number, batch in enumerate(batches):
        if carries is None:
            # A carry may contain the key that choices are drawn with: each model gets a different
            # one.
            carries = [
                task.initial_carry(learner.model(params), num_rows(batch), jax.random.key(own))
                for own, params in enumerate(several)
            ]
            carries += carries[:1] * ways
        carries, found = compiled(several, carries, batch, jax.random.key(number))
        yield found


def choices_of(skip: F.TimeSkip, policy: F.Policy) -> Int[np.ndarray, " choices"]:
    """Return each k that may be chosen once K states exist; a stride or a mask excludes some."""
    steps = jnp.full((1,), skip.max_skip)
    k = np.asarray(skip.candidates(steps))[0] + 1
    allowed = skip.allowed(steps, policy.mask)
    if allowed is not None:
        k = k[np.asarray(allowed)[0]]
    return k


def _row_sums(
    values: Float[Array, "rows *time"], counted: tuple[Array, Array]
) -> Float[Array, " rows"]:
    """Return the sum of each row's values, of those that count according to `where_counted`."""
    where = counted[values.ndim - 1]
    return jnp.where(where, values, 0).reshape(len(values), -1).sum(axis=1)


def _of_another_row(
    values: Shaped[Array, "rows time *rest"], batch: Batch, counted: Bool[Array, " rows"]
) -> Shaped[Array, "rows time *rest"]:
    """Return for each row the values of the next counted row, repeated if that is shorter."""
    order = jnp.argsort(~counted, stable=True)  # counted rows first
    place = (jnp.argsort(order) + 1) % jnp.maximum(counted.sum(), 1)
    other = order[place]
    steps = jnp.arange(values.shape[1])[None]
    if batch.seq_lengths is not None:
        steps = steps % jnp.maximum(jnp.asarray(batch.seq_lengths)[other], 1)[:, None]
    return values[other[:, None], steps]


class PolicyInterventions(NamedTuple):
    """Losses of a batch when all choices of a layer are replaced, and the choices of each model."""

    # Number of losses in each row: its steps, or 1 if a sequence has one loss.
    counts: Float[Array, " rows"]
    # Sum over each row with the choices of each way: the agent's; sampled uniformly from the
    # allowed ones; those that the agent took at the same step of another row (a shorter row
    # repeats); those of each other model on the same row; and each k of `constants` at every step.
    losses: Float[Array, "rows ways"]
    actions: Int[Array, "rows time models"]  # k of the agent and of each other model
    in_steps: Bool[Array, "rows time"]  # whether each step counts
    inputs: Any  # of the batch; for a language model the words, (rows, time)


def policy_interventions(
    learner: Learner,
    several: Several,
    policy: F.Policy,
    split: str,
    *,
    layer: int,
    rows: int,
    constants: Sequence[int] = (),
) -> Iterator[PolicyInterventions]:
    """Yield the losses with every choice of a layer replaced in several ways.

    Each way reads the text separately, from the states that its choices lead to. Other layers
    choose anew. If only one row of the last batch counts, that row gets its own choices as those of
    another row.
    """
    task = learner.task
    choices = choices_of(learner.skips[layer], policy)
    count = len(several)

    def read(models, carries, batch, key):
        keys = jax.random.split(key, count + 1)
        paths = [
            task.forward(model, batch, carry, **evaluated(policy, key))
            for model, carry, key in zip(models, carries, keys, strict=False)
        ]
        actions = jnp.stack([path.decisions[layer].action for path in paths], axis=-1)
        taken = actions[..., 0]
        counted = where_counted(batch, taken.shape[1])
        ways = [
            jax.random.choice(keys[-1], choices, taken.shape),
            _of_another_row(taken, batch, counted[0]),
            *jnp.moveaxis(actions[..., 1:], -1, 0),
            *(jnp.full_like(taken, k) for k in constants),
        ]
        found = []
        for carry, way in zip(carries[count:], ways, strict=True):
            replaced = [way if i == layer else None for i in range(len(learner.skips))]
            how = evaluated(policy, keys[0])
            found.append(task.forward(models[0], batch, carry, **how, actions=replaced))
        nlls = [task.compute_loss(each.log_probs, batch).nll for each in (paths[0], *found)]
        result = PolicyInterventions(
            counts=_row_sums(jnp.ones_like(nlls[0]), counted),
            losses=jnp.stack([_row_sums(nll, counted) for nll in nlls], axis=-1),
            actions=actions,
            in_steps=counted[1],
            inputs=batch.inputs,
        )
        return [each.carry for each in (*paths, *found)], result

    return _read_split(learner, several, split, rows, read, ways=1 + count + len(constants))


class CopiedWords(NamedTuple):
    """Losses of a batch with different copy probabilities."""

    counts: Bool[Array, "rows time"]  # whether each step counts
    # With each distribution over k: the model's π; a uniform distribution over the allowed choices;
    # the π at the same step of another row; then the π of each other model.
    losses: Float[Array, "rows time ways"]
    of_each: Float[Array, "rows time choices"]  # with each single k of `choices_of`
    likeliest: Float[Array, "rows time"]  # with only the k that is most probable under π


def copied_words(
    learner: Learner, several: Several, policy: F.Policy, split: str, *, rows: int
) -> Iterator[CopiedWords]:
    """Yield the losses of a model that copies in expectation, with other probabilities.

    The copy gate and all states of the model stay the same.
    """
    choices = choices_of(learner.skips[-1], policy)

    def read(models, carries, batch, key):
        behind = []
        outputs = []
        for number, (model, carry) in enumerate(zip(models, carries, strict=True)):
            # The key samples the choices, which affect states if λ > 0.
            how = evaluated(policy, jax.random.fold_in(key, number))
            forward, output = learner.task.read(model, batch, carry, **how)
            behind.append(forward.carry)
            outputs.append(output)
        own = outputs[0]
        targets = batch.targets
        in_rows, in_steps = where_counted(batch, targets.shape[1])
        weights = own.copies.weights
        ways = [
            weights,
            jnp.zeros_like(weights).at[..., choices - 1].set(1 / len(choices)),
            _of_another_row(weights, batch, in_rows),
            *(output.copies.weights for output in outputs[1:]),
        ]
        of_softmax = own.log_likelihood_of_softmax(targets)
        copied = [own.copies._replace(weights=way) for way in ways]
        losses = [-F.copied_log_likelihood(copies, of_softmax, targets) for copies in copied]
        of_each = -own.log_likelihood_of_each(targets)
        likeliest = jnp.take_along_axis(of_each, weights.argmax(axis=-1)[..., None], axis=-1)[
            ..., 0
        ]
        losses = jnp.stack(losses, axis=-1)
        return behind, CopiedWords(in_steps, losses, of_each[..., choices - 1], likeliest)

    return _read_split(learner, several, split, rows, read)


class SingleInterventions(NamedTuple):
    """Losses under every choice at each step of a batch."""

    counts: Bool[Array, "rows time"]  # whether the step was examined
    taken: Int[Array, "rows time"]  # k that the model chose
    losses: Float[Array, "rows time choices"]  # of the row with each k of `choices_of` at this step
    x: Float[Array, "rows time in"]  # input of the layer
    before: Float[Array, "rows time hidden"]  # h(t-1); zeros before the first step


def single_interventions(
    learner: Learner,
    params: nnx.State,
    policy: F.Policy,
    split: str,
    *,
    layer: int,
    rows: int,
) -> Iterator[SingleInterventions]:
    """Yield the loss with each choice of a layer replaced by every k, one at a time.

    The loss of a language model is that of the next word, from the state that the model's own
    choices left. Of other tasks every step is examined if agents are rewarded at each step
    (`Task.is_of_steps`), and otherwise only the last step that the layer reads.
    """
    task = learner.task
    skip = learner.skips[layer]
    reverse = learner.reverse[layer]
    choices = choices_of(skip, policy)
    is_top = layer == len(learner.skips) - 1
    enters_state = float(skip.mix if policy.mix is None else policy.mix) > 0

    def replaced(model, carry, batch, key, actions, where):
        """Return the loss of each row with each choice at the steps `where`, (rows, choices)."""
        again, carry, chosen = repeat_rows((batch, carry, actions), len(choices))
        each = jnp.tile(choices, len(where))[:, None]
        chosen[layer] = jnp.where(repeat_rows(where, len(choices)), each, chosen[layer])
        read = task.forward(model, again, carry, **evaluated(policy, key), actions=chosen)
        nll = task.compute_loss(read.log_probs, again).nll
        return _row_sums(nll, where_counted(again, where.shape[1])).reshape(len(where), -1)

    def read(models, carries, batch, key):
        (model,) = models
        (carry,) = carries
        path = task.forward(model, batch, carry, **evaluated(policy, key))
        actions = [decision.action for decision in path.decisions]
        taken = actions[layer]
        _, examined = where_counted(batch, taken.shape[1])
        steps = jnp.arange(taken.shape[1])
        losses_at = partial(replaced, model, carry, batch, key, actions)
        copier = getattr(model, "copier", None)
        if copier is not None and copier.is_hard(policy) and is_top and not enters_state:
            # A choice only says which word is copied: one forward pass has the loss of each.
            _, output = task.read(model, batch, carry, **evaluated(policy, key))
            losses = -output.log_likelihood_of_each(batch.targets)[..., choices - 1]
        elif task.is_of_steps:
            at_each = jnp.eye(len(steps), dtype=bool)[:, None]
            losses = jax.lax.map(lambda at: losses_at(jnp.broadcast_to(at, taken.shape)), at_each)
            losses = jnp.moveaxis(losses, 0, 1)
        else:
            ends = batch.seq_lengths
            if ends is None:
                ends = jnp.full(len(taken), len(steps))
            at_last = steps[None] == (0 * ends if reverse else ends - 1)[:, None]
            examined = examined & at_last
            losses = jnp.broadcast_to(losses_at(at_last)[:, None], (*taken.shape, len(choices)))
        x, before = path.observations[layer]
        return [path.carry], SingleInterventions(examined, taken, losses, x, before)

    return _read_split(learner, [params], split, rows, read, window=1)
