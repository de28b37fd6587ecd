"""The command `oracle`: measure how much a finished model could gain from other choices."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float

from dynskip_jax.analysis.oracle import oracle_losses
from dynskip_jax.analysis.statistics import paired_gain, same_word, seed_agreement
from dynskip_jax.config import Bounds, Count
from dynskip_jax.console import print_table, say
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.errors import UserError
from dynskip_jax.finished import FinishedRun
from dynskip_jax.tasks import interventions
from dynskip_jax.tasks.language import LanguageModelling
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.trained import Trained
from dynskip_jax.training.progress import Progress

_SHOWN = 10  # maximum number of constants that are printed, and of states that a probe observes


def oracle(
    run: FinishedRun,
    data: Path | None = None,
    split: Literal["train", "dev", "test"] = "dev",
    steps: Annotated[int, Bounds(1, 100_000_000)] = 60_000,
    layer: Count | None = None,
    rows: Annotated[int, Bounds(2, 1_000_000)] = 100,
) -> None:
    """Measure what choosing can win: the loss of every choice, and of a probe's choices.

    Seeds that were trained together are compared. Nothing is written into the run folder.

    Args:
        data: Folder of the run's data; by default where the run found it.
        split: Split to read.
        steps: Number of choices to examine.
        layer: Layer whose choices are examined, counted from 1; by default the last.
        rows: Number of sequences, or streams of a text, to read side by side.
    """
    keep_freed_memory()
    own = run.last("oracle")
    examined = _Examined(own, own.learner_with(own.data(data)), split, rows, steps)
    if own.spec.copy == "expected":
        _examine_copies(examined)
        if not examined.choosing:
            return
    chosen = examined.layer(layer)

    # With λ = 0 nothing that is chosen enters, so that there is nothing to replace.
    matters = own.spec.choices_matter(own.member)
    constants: list[int] = []
    if matters:
        constants = _examine_single_choices(examined, chosen)
    pieces = examined.read_in_other_ways(chosen, constants)
    _print_agreement(pieces, examined.possible[chosen], is_text=examined.is_text)
    if matters:
        _print_ways(examined, pieces, constants)
    else:
        say(
            f"λ = 0: whatever {own.name} chooses, it says the same, so that no choice can be "
            "replaced."
        )


@dataclasses.dataclass(frozen=True)
class _Examined:
    """A model whose choices are examined, and what it reads."""

    own: Trained
    learner: Learner  # with the data
    split: str
    rows: int  # read side by side
    steps: int  # number of choices to examine

    @property
    def title(self) -> str:
        """Experiment and model."""
        return f"{self.own.experiment.name}, {self.own.name}"

    @property
    def is_text(self) -> bool:
        """Whether the batches of a row are one text."""
        return isinstance(self.learner.task, LanguageModelling)

    @functools.cached_property
    def others(self) -> dict[str, Trained]:
        """The models that were trained with other seeds, by name."""
        own = self.own
        return {f"seed {seed}": own.of_seed(seed) for seed in own.spec.seeds if seed != own.seed}

    @property
    def params(self) -> list[nnx.State]:
        """Parameters of this model, and of the others."""
        return [self.own.params, *(other.params for other in self.others.values())]

    @functools.cached_property
    def possible(self) -> list[np.ndarray]:
        """Every k that each layer may choose."""
        return [interventions.choices_of(skip, self.own.policy) for skip in self.learner.skips]

    @property
    def choosing(self) -> list[int]:
        """Indices of the layers that sample one of several choices."""
        skips = enumerate(self.learner.skips)
        return [i for i, skip in skips if skip.is_stochastic and len(self.possible[i]) > 1]

    def layer(self, number: int | None) -> int:
        """Return the index of a layer by its number, from 1; of the last that chooses for None."""
        if not self.choosing:
            raise UserError(
                f"{self.own.name} samples no choices: read another by --model, or train dynamic:5"
            )
        if number is None:
            return self.choosing[-1]
        if number - 1 not in self.choosing:
            numbers = " or ".join(str(i + 1) for i in self.choosing)
            raise UserError(f"layer {number} samples no choices: choose {numbers}")
        return number - 1

    def read_in_other_ways(self, layer: int, constants: Sequence[int]) -> list[Any]:
        """Return the losses if all choices of a layer are made in another way."""
        pieces = interventions.policy_interventions(
            self.learner,
            self.params,
            self.own.policy,
            self.split,
            constants=constants,
            layer=layer,
            rows=self.rows,
        )
        return list(_until(pieces, self.steps, "reading in other ways"))


def _examine_copies(examined: _Examined) -> None:
    """Print the losses of a language model if words are copied in other ways."""
    pieces = interventions.copied_words(
        examined.learner, examined.params, examined.own.policy, examined.split, rows=examined.rows
    )
    _print_copied(
        f"{examined.title}, {examined.split}",
        _until(pieces, examined.steps, "copying"),
        examined.possible[-1],
        examined.steps,
        examined.others,
    )


def _examine_single_choices(examined: _Examined, layer: int) -> list[int]:
    """Print the losses if single choices are replaced; return the constants to compare with."""
    learner = examined.learner
    choices = examined.possible[layer]
    pieces = interventions.single_interventions(
        learner,
        examined.own.params,
        examined.own.policy,
        examined.split,
        layer=layer,
        rows=examined.rows,
    )
    pieces = with_last_states(
        pieces,
        min(learner.skips[layer].max_skip, _SHOWN),
        reverse=learner.reverse[layer],
        is_text=examined.is_text,
    )
    title = f"{examined.title}, layer {layer + 1}, {examined.split}"
    examining = _until(pieces, examined.steps, "examining")
    fixed = _print_single(title, examining, choices, examined.steps, is_text=examined.is_text)
    # Reading a split once for each of many constants takes long: the shortest k, and the best.
    if len(choices) > _SHOWN:
        choices = choices[sorted({0, fixed - 1})]
    return choices.tolist()


def _print_ways(examined: _Examined, pieces: Sequence[Any], constants: Sequence[int]) -> None:
    """Print the losses if all choices are made in another way."""
    total = sum(piece.losses.astype(np.float64).sum(axis=0) for piece in pieces)
    count = float(sum(piece.counts.sum() for piece in pieces))
    names = [
        *("by the agent", "at random", "by the agent in another text"),
        *(f"by {other}, reading the same text" for other in examined.others),
        *(f"always {k}" for k in constants),
    ]
    title = f"every choice made so, each with the states that follow: nats, mean of {count:,.0f}"
    _print(
        title, list(zip(names, total / count, strict=True)), "beside the agent", total[0] / count
    )


def with_last_states(
    pieces: Iterable[interventions.SingleInterventions],
    count: int,
    *,
    reverse: bool,
    is_text: bool,
) -> Iterator[interventions.SingleInterventions]:
    """Yield pieces whose `before` has the last `count` states, newest first, and not only h(t-1).

    It is (rows, time, states, hidden). The states of a text go on from one piece to the next.
    """
    tail = None
    for piece in pieces:
        before, following = _last_states(np.asarray(piece.before), tail, count, reverse)
        tail = following if is_text else None
        yield piece._replace(before=before)


def _last_states(
    before: Float[np.ndarray, "rows time hidden"],
    tail: Float[np.ndarray, "rows tail hidden"] | None,
    count: int,
    reverse: bool,
) -> tuple[Float[np.ndarray, "rows time states hidden"], Float[np.ndarray, "rows tail hidden"]]:
    """Return the last `count` states before each step, newest first, and the next `tail`.

    `before` is h(t-1) of each step, and `tail` the last `count` - 1 states before those; None for
    zeros.
    """
    # A layer that reads from the end has its newest state at the later step.
    if reverse:
        before = before[:, ::-1]
    rows, time, hidden = before.shape
    if tail is None:
        tail = np.zeros((rows, count - 1, hidden), before.dtype)
    whole = np.concatenate([tail, before], axis=1)
    states = np.stack([whole[:, count - k : count - k + time] for k in range(1, count + 1)], axis=2)
    if reverse:
        states = states[:, ::-1]
    return states, whole[:, time:]


def _until(pieces: Iterator[Any], limit: int, label: str) -> Iterator[Any]:
    """Yield pieces as NumPy arrays until `limit` losses or choices count, or to the end."""
    count = 0
    with Progress(limit, label) as progress:
        for piece in pieces:
            piece = jax.tree.map(np.asarray, piece)
            new = int(piece.counts.sum())
            progress.advance(min(new, limit - count))
            count += new
            yield piece
            if count >= limit:
                break
        progress.advance(max(0, limit - count))  # the split may contain fewer


def _print_agreement(pieces: Sequence[Any], choices: np.ndarray, *, is_text: bool) -> None:
    """Print how often agents choose alike and, of a text, go back to the same word."""
    actions = np.concatenate([piece.actions[piece.in_steps] for piece in pieces])
    if actions.shape[1] > 1:
        same = seed_agreement(actions)
        say(
            f"{actions.shape[1]} agents, two by two, agree on {same.share:.1%} of choices, by "
            f"their rates alone {same.by_chance:.1%} (κ = {same.kappa:.2f})"
        )
    if is_text:  # consecutive batches form one text per row
        parts = ((piece.inputs, piece.actions[..., 0], piece.in_steps) for piece in pieces)
        text = (np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
        back = same_word(*text, choices=choices)
        reach = ""
        if back.possible:
            reach = f"; {back.share / back.possible:.1%} of those within its reach"
        say(
            f"the agent goes back to the same word at {back.share:.1%} of words, by its "
            f"rates alone {back.by_chance:.1%}{reach}"
        )


def _counted(pieces: Iterator[Any], limit: int, *, is_text: bool) -> Iterator[np.ndarray]:
    """Return the pieces' arrays at the first `limit` steps that count, stream by stream."""
    if is_text:  # consecutive batches form one text per row
        counts, *parts = (np.concatenate(part, axis=1) for part in zip(*pieces, strict=True))
        return (part[counts][:limit] for part in parts)
    parts = [[part[piece.counts] for part in piece[1:]] for piece in pieces]
    return (np.concatenate(each)[:limit] for each in zip(*parts, strict=True))


def _print_single(
    title: str, pieces: Iterator[Any], choices: np.ndarray, limit: int, *, is_text: bool
) -> int:
    """Print the losses if single choices are replaced; return the best constant's number."""
    taken, losses, x, before = _counted(pieces, limit, is_text=is_text)
    latest = {
        "s(t)": before[:, 0],
        f"x(t) and the last {before.shape[1]} states": before.reshape(len(x), -1),
    }
    seen = {name: np.concatenate([x, states], axis=-1) for name, states in latest.items()}
    # Losses are in order of the choices, so a k becomes its place, from 1.
    result = oracle_losses(losses, np.searchsorted(choices, taken) + 1, seen)
    rows = [
        ("by the agent", result.taken),
        ("at random", result.random),
        *(
            (f"always {choices[i]}", result.constant[i])
            for i in sorted(np.argsort(result.constant)[:_SHOWN])
        ),
        *((f"by a probe that sees {name}", loss) for name, loss in result.probes.items()),
        ("in hindsight", result.hindsight),
        ("all of them, probabilities averaged", result.averaged),
    ]
    _print(
        f"{title}: nats, mean of the last {result.count:,} steps",
        rows,
        "beside random",
        result.random,
    )
    say(result.verdict())
    return result.fixed


def _print_copied(
    about: str, pieces: Iterator[Any], choices: np.ndarray, limit: int, others: Iterable[str]
) -> None:
    """Print a language model's loss if words are copied with other probabilities than its own."""
    losses, of_each, likeliest = _counted(pieces, limit, is_text=True)
    own, even, another, *theirs = losses.mean(axis=0)
    constants = of_each.mean(axis=0)
    names = [f"by those of {other}, reading the same text" for other in others]
    rows = [
        ("by the model's own probabilities", own),
        ("by the likeliest k alone", likeliest.mean()),
        ("by all of them alike", even),
        ("by those in another text", another),
        *zip(names, theirs, strict=True),
        *((f"always {choices[i]}", constants[i]) for i in sorted({0, int(constants.argmin())})),
        ("in hindsight", of_each.min(axis=1).mean()),
    ]
    title = f"{about}, words copied otherwise, the gate held: nats, mean of {len(losses):,} words"
    _print(title, rows, "beside its own", own, first="words are copied")
    # Paired word by word: both losses are of the same words.
    gain = paired_gain(losses[:, 2], losses[:, 0])
    chance = ", which may be chance." if gain.is_chance else "."
    say(
        f"Its own probabilities gain {gain} nats (95 %) over those that it had in another text"
        f"{chance}"
    )


def _print(
    title: str,
    rows: Sequence[tuple[str, float]],
    beside: str,
    reference: float,
    first: str = "k is chosen",
) -> None:
    """Print losses and their differences from a reference, which the heading `beside` names."""
    cells = [[name, f"{loss:.4f}", f"{loss - reference:+.4f}"] for name, loss in rows]
    print_table(title, [first, "loss", beside], cells)
