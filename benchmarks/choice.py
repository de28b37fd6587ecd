"""Print the losses of a finished run if its choices are replaced (docs/results/choice.md).

    python -m benchmarks.choice --run-dir DIR --steps 60000

Losses are in nats. A first table replaces one choice at a time, with all others held. A second one
replaces every choice, each with the states that follow. Of a model that copies words in
expectation, a table replaces the probabilities. Seeds that were trained together are compared.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, Shaped

from benchmarks import run_command
from dynskip_jax import functional as F
from dynskip_jax.config.flags import Bounds, Count
from dynskip_jax.data.batches import Batch, epoch_order
from dynskip_jax.errors import UserError
from dynskip_jax.runs.load import load_run
from dynskip_jax.tasks.language import LanguageModelling
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.tasks.rows import num_rows, repeat_rows, where_counted
from dynskip_jax.tasks.task import evaluated
from dynskip_jax.terminal.console import print_table, say

FITTED = 0.7  # fraction of the steps that fit constants and probes; losses are of the rest
HELD_OUT = 0.15  # fraction of these, on which the probe's epoch is selected
SHOWN = 10  # constants that are printed, and states that a probe observes
UNITS = 50  # of a probe
UPDATES = 2000
BATCH = 256
RATE = 1e-3
BLOCK = 50  # steps of the bootstrap
RESAMPLES = 1000


# --- Reading a split with other choices ---


class Reader(NamedTuple):
    """Models, a split of their data, and how it is read."""

    learner: Learner
    several: Sequence[nnx.State]  # parameters of the model in question, then of the other seeds
    policy: F.Policy  # how they choose, as in evaluation
    split: str
    rows: int  # sequences or streams side by side

    @property
    def is_text(self) -> bool:
        """Whether the batches of a row are one text."""
        return isinstance(self.learner.task, LanguageModelling)

    def choices(self, layer: int) -> Int[np.ndarray, " choices"]:
        """Return each k that a layer may choose once K states exist."""
        skip = self.learner.skips[layer]
        steps = jnp.full((1,), skip.max_skip)
        k = np.asarray(skip.candidates(steps))[0] + 1
        allowed = skip.allowed(steps, self.policy.mask)
        return k if allowed is None else k[np.asarray(allowed)[0]]

    def batches(self, read: Callable, ways: int = 0, window: int = 35) -> Iterator[Any]:
        """Yield the result of `read`, `(models, carries, batch, key) -> (carries, result)`.

        There is a carry of each model, and then of the first model for each of the `ways`. A text
        is read `window` steps at once.
        """
        task = self.learner.task
        carries = None
        compiled = jax.jit(
            lambda several, *rest: read([self.learner.model(one) for one in several], *rest)
        )
        if self.is_text:
            found = task.windows(self.split, self.rows, window)
        else:  # in the order of an epoch: by themselves, short sequences come first
            found = list(task.evaluation_batches(self.split, self.rows, 1))
            found = [found[number] for number in epoch_order(len(found), 0, 0)]
        for number, batch in enumerate(found):
            if carries is None:
                # A carry may hold the key of the choices: each model has another.
                carries = [
                    task.initial_carry(
                        self.learner.model(params), num_rows(batch), jax.random.key(own)
                    )
                    for own, params in enumerate(self.several)
                ]
                carries += carries[:1] * ways
            carries, result = compiled(self.several, carries, batch, jax.random.key(number))
            yield jax.tree.map(np.asarray, result)


class Single(NamedTuple):
    """Losses of a batch under every choice at each step, all other choices held."""

    counts: Bool[Array, "rows time"]  # whether the step was examined
    taken: Int[Array, "rows time"]  # k that the model chose
    losses: Float[Array, "rows time choices"]
    x: Float[Array, "rows time in"]  # input of the layer
    before: Float[Array, "rows time hidden"]  # h(t-1)


def single_choices(reader: Reader, layer: int) -> Iterator[Single]:
    """Yield the losses with each choice of a layer replaced by every k.

    The loss of a language model is that of the next word. Of other tasks every step is examined if
    agents are rewarded at each step, and otherwise only the last step that the layer reads.
    """
    task = reader.learner.task
    policy = reader.policy
    skip = reader.learner.skips[layer]
    choices = reader.choices(layer)
    is_top = layer == len(reader.learner.skips) - 1
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
            last = 0 * ends if reader.learner.reverse[layer] else ends - 1
            at_last = steps[None] == last[:, None]
            examined = examined & at_last
            losses = jnp.broadcast_to(losses_at(at_last)[:, None], (*taken.shape, len(choices)))
        x, before = path.observations[layer]
        return [path.carry], Single(examined, taken, losses, x, before)

    return reader._replace(several=reader.several[:1]).batches(read, window=1)


class Every(NamedTuple):
    """Losses of a batch when all choices of a layer are replaced."""

    counts: Float[Array, " rows"]  # number of losses: of steps, or 1 if a sequence has one loss
    # Sums over each row with the choices of each way: the agent's; drawn uniformly; those of the
    # agent at the same step of another row; those of each other model; each constant k.
    losses: Float[Array, "rows ways"]
    actions: Int[Array, "rows time models"]  # k of each model


def every_choice(reader: Reader, layer: int, constants: Sequence[int]) -> Iterator[Every]:
    """Yield the losses with every choice of a layer replaced in several ways.

    Each way reads the text from the states that its choices lead to. Other layers choose anew.
    """
    task = reader.learner.task
    policy = reader.policy
    choices = reader.choices(layer)
    count = len(reader.several)

    def read(models, carries, batch, key):
        keys = jax.random.split(key, count + 1)
        paths = [
            task.forward(model, batch, carry, **evaluated(policy, key))
            for model, carry, key in zip(models, carries, keys, strict=False)
        ]
        # The k of each model, and the ways to replace those of the first.
        actions = jnp.stack([path.decisions[layer].action for path in paths], axis=-1)
        taken = actions[..., 0]
        counted = where_counted(batch, taken.shape[1])
        ways = [
            jax.random.choice(keys[-1], choices, taken.shape),
            _next_row(taken, batch, counted[0]),
            *jnp.moveaxis(actions[..., 1:], -1, 0),
            *(jnp.full_like(taken, k) for k in constants),
        ]

        # Read the batch again in each way; other layers draw with the same key.
        found = []
        for carry, way in zip(carries[count:], ways, strict=True):
            replaced = [way if i == layer else None for i in range(len(reader.learner.skips))]
            how = evaluated(policy, keys[0])
            found.append(task.forward(models[0], batch, carry, **how, actions=replaced))
        nlls = [task.compute_loss(each.log_probs, batch).nll for each in (paths[0], *found)]
        result = Every(
            counts=_row_sums(jnp.ones_like(nlls[0]), counted),
            losses=jnp.stack([_row_sums(nll, counted) for nll in nlls], axis=-1),
            actions=actions,
        )
        return [each.carry for each in (*paths, *found)], result

    return reader.batches(read, ways=1 + count + len(constants))


class Copied(NamedTuple):
    """Losses of a batch with other copy probabilities; the gate and all states are held."""

    counts: Bool[Array, "rows time"]
    # With π of the model; a uniform one; π at the same step of another row; π of each other model.
    losses: Float[Array, "rows time ways"]
    of_each: Float[Array, "rows time choices"]  # with each single k
    likeliest: Float[Array, "rows time"]  # with the most probable k only


def copied_words(reader: Reader) -> Iterator[Copied]:
    """Yield the losses of a model that copies in expectation, with other probabilities."""
    choices = reader.choices(-1)

    def read(models, carries, batch, key):
        behind = []
        outputs = []
        for number, (model, carry) in enumerate(zip(models, carries, strict=True)):
            # The key samples the choices, which affect states if λ > 0.
            how = evaluated(reader.policy, jax.random.fold_in(key, number))
            forward, output = reader.learner.task.read(model, batch, carry, **how)
            behind.append(forward.carry)
            outputs.append(output)
        own = outputs[0]
        targets = batch.targets
        in_rows, in_steps = where_counted(batch, targets.shape[1])

        # Other probabilities with the words and gates of the first model.
        weights = own.copies.weights
        ways = [
            weights,
            jnp.zeros_like(weights).at[..., choices - 1].set(1 / len(choices)),
            _next_row(weights, batch, in_rows),
            *(output.copies.weights for output in outputs[1:]),
        ]
        of_softmax = own.log_likelihood_of_softmax(targets)
        copied = [own.copies._replace(weights=way) for way in ways]
        losses = [-F.copied_log_likelihood(copies, of_softmax, targets) for copies in copied]

        # One word alone: each, and the one that is most probable.
        of_each = -own.log_likelihood_of_each(targets)
        best = weights.argmax(axis=-1)[..., None]
        likeliest = jnp.take_along_axis(of_each, best, axis=-1)[..., 0]
        losses = jnp.stack(losses, axis=-1)
        return behind, Copied(in_steps, losses, of_each[..., choices - 1], likeliest)

    return reader.batches(read)


def _row_sums(
    values: Float[Array, "rows *time"], counted: tuple[Array, Array]
) -> Float[Array, " rows"]:
    """Return the sum of each row's values, of those that count according to `where_counted`."""
    where = counted[values.ndim - 1]
    return jnp.where(where, values, 0).reshape(len(values), -1).sum(axis=1)


def _next_row(
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


# --- What is computed from the losses ---


def paired_gain(
    of_one: Float[np.ndarray, " steps"], of_other: Float[np.ndarray, " steps"]
) -> tuple[float, float]:
    """Return the mean of `of_one - of_other`, losses at the same steps, and 1.96 standard errors.

    The standard error is that of a circular block bootstrap (Politis and Romano 1992): neighbouring
    steps of a text are alike. Blocks have 50 steps, or a tenth of the steps if that is less.
    """
    less = np.asarray(of_one - of_other, np.float64)
    steps = len(less)
    size = max(1, min(BLOCK, steps // 10))
    # Blocks that begin near the end go on at the beginning of the text.
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([less, less[: size - 1]]))])
    of_blocks = sums[size:] - sums[:-size]  # the sum of the block that begins at each step
    starts = np.random.default_rng(0).integers(steps, size=(RESAMPLES, -(-steps // size)))
    means = of_blocks[starts].mean(axis=1) / size
    return float(less.mean()), float(1.96 * means.std(ddof=1))


def probe(
    features: Float[np.ndarray, "steps features"],
    losses: Float[np.ndarray, "fitted K"],
    others: Float[np.ndarray, "rest features"],
) -> Int[np.ndarray, " rest"]:
    """Train an MLP π(k | features), and return its most probable choices, from 0, at other steps.

    It minimizes the exact expected loss Σ_k π(k) loss(k). The last 15 % of the fitting steps are
    held out, and the epoch with the lowest loss on them is used.
    """
    features = np.asarray(features[: len(losses)], np.float32)
    middle = features.mean(axis=0)
    scale = features.std(axis=0) + 1e-6
    # The probe sees standardized features. Its costs have mean 0 at each step.
    x, rest = ((values - middle) / scale for values in (features, others))
    costs = np.asarray(losses - losses.mean(axis=1, keepdims=True), np.float32)
    train = len(x) - max(1, int(HELD_OUT * len(x)))
    one, two = jax.random.split(jax.random.key(0))
    size = x.shape[1]
    K = losses.shape[1]
    # An MLP with one tanh layer, which begins with almost even choices.
    w_in = jax.random.normal(one, (size, UNITS)) / np.sqrt(size)
    w_out = jax.random.normal(two, (UNITS, K)) * 0.01
    params = (w_in, jnp.zeros((1, UNITS)), w_out, jnp.zeros((1, K)))
    optimizer = optax.adam(RATE)

    def logits(params, x):
        w_in, b_in, w_out, b_out = params
        return jnp.tanh(x @ w_in + b_in) @ w_out + b_out

    def expected(params, x, costs):
        return (jax.nn.softmax(logits(params, x)) * costs).sum(axis=-1).mean()

    @jax.jit
    def epoch(params, state, x, costs):
        def step(carried, batch):
            params, state = carried
            updates, state = optimizer.update(jax.grad(expected)(params, *batch), state)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, state), (x, costs))[0]

    # About `UPDATES` updates; the best epoch on the steps that are held out is kept.
    best_of = jax.jit(lambda params, x: logits(params, x).argmax(axis=-1))
    batch = min(BATCH, train)
    state = optimizer.init(params)
    kept = (np.inf, params)
    order = np.random.default_rng(0)
    for _ in range(-(-UPDATES * batch // (train // batch * batch))):
        rows = order.permutation(train)[: train // batch * batch].reshape(-1, batch)
        params, state = epoch(params, state, x[rows], costs[rows])
        chosen = np.asarray(best_of(params, x[train:]))
        cost = float(np.take_along_axis(costs[train:], chosen[:, None], axis=1).mean())
        kept = min(kept, (cost, params), key=lambda pair: pair[0])
    return np.asarray(best_of(kept[1], rest))


# --- Tables ---


def choice(
    run_dir: Path,
    split: Literal["train", "dev", "test"] = "dev",
    steps: Annotated[int, Bounds(1, 100_000_000)] = 60_000,
    layer: Count | None = None,
    rows: Annotated[int, Bounds(2, 1_000_000)] = 100,
) -> None:
    """Print the losses of a finished run if its choices are replaced.

    Args:
        run_dir: A finished run folder.
        split: Split to read.
        steps: Number of choices to examine.
        layer: Layer whose choices are examined, counted from 1; by default the last.
        rows: Number of sequences, or streams of a text, to read side by side.
    """
    own = load_run(run_dir)
    seeds = [seed for seed in own.spec.seeds if seed != own.seed]
    several = [own.params, *(own.of_seed(seed).params for seed in seeds)]
    reader = Reader(own.learner_with(own.data()), several, own.policy, split, rows)
    say(f"{own.experiment.name}, {own.name}, {split}; losses are in nats")
    if own.spec.copy == "expected":
        print_copied(reader, seeds, steps)
    choosing = [
        place
        for place, skip in enumerate(reader.learner.skips)
        if skip.is_stochastic and len(reader.choices(place)) > 1
    ]
    if not choosing:
        return
    chosen = choosing[-1] if layer is None else layer - 1
    if chosen not in choosing:
        numbers = " or ".join(str(place + 1) for place in choosing)
        raise UserError(f"layer {layer} samples no choices: choose {numbers}")

    # With λ = 0 nothing that is chosen enters, so that there is nothing to replace.
    if own.spec.choices_matter(own.member):
        constants = print_single(reader, chosen, steps)
        print_every(reader, chosen, constants, seeds, steps)


def print_single(reader: Reader, layer: int, limit: int) -> list[int]:
    """Print the losses if single choices are replaced; return the constants to compare with."""
    choices = reader.choices(layer)
    count = min(reader.learner.skips[layer].max_skip, SHOWN)
    pieces = with_last_states(reader, layer, count, single_choices(reader, layer))
    taken, losses, x, before = counted(pieces, limit, is_text=reader.is_text)
    # Constants and probes are fitted on the first steps. The bar is a choice that looks at nothing:
    # the best constant, or random choices, whichever is better there.
    fitted = int(FITTED * len(losses))
    rest = losses[fitted:]
    best = int(losses[:fitted].mean(axis=0).argmin())
    bar = rest.mean(axis=1)
    if losses[:fitted, best].mean() <= losses[:fitted].mean():
        bar = rest[:, best]
    # Losses are in the order of the choices.
    places = np.searchsorted(choices, taken)
    of_agent = np.take_along_axis(rest, places[fitted:, None], axis=1)[:, 0]
    ways = {"by the agent": of_agent, "at random": rest.mean(axis=1)}
    for i in sorted(np.argsort(rest.mean(axis=0))[:SHOWN]):
        ways[f"always {choices[i]}"] = rest[:, i]
    for name, states in (
        ("s(t)", before[:, 0]),
        (f"x(t) and the last {before.shape[1]} states", before.reshape(len(x), -1)),
    ):
        seen = np.concatenate([x, states], axis=-1)
        found = probe(seen, losses[:fitted], seen[fitted:])
        ways[f"by a probe that sees {name}"] = np.take_along_axis(rest, found[:, None], 1)[:, 0]
    ways["in hindsight"] = rest.min(axis=1)
    averaged = np.log(rest.shape[1]) - np.logaddexp.reduce(-rest, axis=1)
    ways["all of them, probabilities averaged"] = averaged
    lines = []
    for name, of_way in ways.items():
        gain, margin = paired_gain(bar, of_way)
        lines.append([name, f"{of_way.mean():.4f}", f"{gain:+.4f} ± {margin:.4f}"])
    title = f"layer {layer + 1}, one choice replaced: mean of the last {len(rest):,} steps"
    print_table(title, ["k is chosen", "loss", "gain over choices that look at nothing"], lines)
    # Reading a split once for each of many constants takes long: the shortest k, and the best.
    if len(choices) > SHOWN:
        choices = choices[sorted({0, best})]
    return choices.tolist()


def print_every(
    reader: Reader, layer: int, constants: Sequence[int], seeds: Sequence[int], limit: int
) -> None:
    """Print the losses if all choices are made in another way."""
    pieces = list(until(every_choice(reader, layer, constants), limit))
    losses = sum(piece.losses.astype(np.float64).sum(axis=0) for piece in pieces)
    count = float(sum(piece.counts.sum() for piece in pieces))
    names = ["by the agent", "at random", "by the agent in another text"]
    names += [f"by seed {seed}, reading the same text" for seed in seeds]
    names += [f"always {k}" for k in constants]
    found = dict(zip(names, losses / count, strict=True))
    _print(f"every choice replaced: mean of {count:,.0f}", found)


def print_copied(reader: Reader, seeds: Sequence[int], limit: int) -> None:
    """Print a language model's loss if words are copied with other probabilities than its own."""
    losses, of_each, likeliest = counted(copied_words(reader), limit, is_text=True)
    own, even, another, *theirs = losses.mean(axis=0)
    constants = of_each.mean(axis=0)
    found = {
        "by the model's own probabilities": own,
        "by the likeliest k alone": likeliest.mean(),
        "by all of them alike": even,
        "by those in another text": another,
    }
    found |= {f"by those of seed {s}": loss for s, loss in zip(seeds, theirs, strict=True)}
    for i in sorted({0, int(constants.argmin())}):
        found[f"always {reader.choices(-1)[i]}"] = constants[i]
    found["in hindsight"] = of_each.min(axis=1).mean()
    title = f"words copied otherwise, the gate held: mean of {len(losses):,} words"
    _print(title, found)
    gain, margin = paired_gain(losses[:, 2], losses[:, 0])
    say(f"own probabilities gain {gain:+.4f} ± {margin:.4f} over those in another text (95 %)")


def _print(title: str, losses: dict[str, float]) -> None:
    """Print losses by how k is chosen, and their differences from the first."""
    first = next(iter(losses.values()))
    cells = [[name, f"{loss:.4f}", f"{loss - first:+.4f}"] for name, loss in losses.items()]
    print_table(title, ["k is chosen", "loss", "beside its own"], cells)


def with_last_states(
    reader: Reader, layer: int, count: int, pieces: Iterator[Single]
) -> Iterator[Single]:
    """Yield pieces whose `before` has the last `count` states, newest first, and not only h(t-1).

    It is (rows, time, states, hidden). The states of a text go on from one piece to the next.
    """
    # A layer that reads from the end has its newest state at the later step.
    direction = -1 if reader.learner.reverse[layer] else 1
    tail = None
    for piece in pieces:
        before = piece.before[:, ::direction]
        rows, time, hidden = before.shape
        if tail is None:
            tail = np.zeros((rows, count - 1, hidden), before.dtype)
        whole = np.concatenate([tail, before], axis=1)
        states = [whole[:, count - k : count - k + time] for k in range(1, count + 1)]
        yield piece._replace(before=np.stack(states, axis=2)[:, ::direction])
        tail = whole[:, time:] if reader.is_text else None


def until(pieces: Iterator[Any], limit: int) -> Iterator[Any]:
    """Yield pieces until `limit` losses or choices count, or to the end."""
    count = 0
    for piece in pieces:
        yield piece
        count += int(piece.counts.sum())
        if count >= limit:
            return


def counted(pieces: Iterator[Any], limit: int, *, is_text: bool) -> Iterator[np.ndarray]:
    """Return the pieces' arrays at the first `limit` steps that count, stream by stream."""
    pieces = until(pieces, limit)
    if is_text:  # consecutive batches are one text per row
        counts, *parts = (np.concatenate(part, axis=1) for part in zip(*pieces, strict=True))
        return (part[counts][:limit] for part in parts)
    parts = [[part[piece.counts] for part in piece[1:]] for piece in pieces]
    return (np.concatenate(each)[:limit] for each in zip(*parts, strict=True))


if __name__ == "__main__":
    run_command(choice)
