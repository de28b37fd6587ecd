"""The command `oracle`: measure how much a finished model could gain from other choices."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax.analysis.oracle import OracleLosses, oracle_losses
from dynskip_jax.analysis.statistics import paired_gain, same_word, seed_agreement
from dynskip_jax.config import Bounds
from dynskip_jax.console import print_table, say
from dynskip_jax.devices.compilation_cache import keep_compiled_programs
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.errors import UserError
from dynskip_jax.tasks import LanguageModelling, interventions
from dynskip_jax.trained import Trained, load_models, load_run
from dynskip_jax.training.progress import Progress

Count = Annotated[int, Bounds(at_least=1, at_most=100_000_000)]
# Agents are comparable only if these settings of theirs are equal, in addition to all settings of the model.
_OF_THE_AGENT = ("mix", "max_skip", "agent", "agent_input", "empty_slots", "stride", "first_step", "control")
_SHOWN = 10  # maximum number of constants that are printed, and of states that a probe observes


def oracle(
    run_dir: Path,
    model: str | None = None,
    data: Path | None = None,
    beside: tuple[Path, ...] = (),
    split: Literal["train", "dev", "test"] = "dev",
    steps: Count = 60_000,
    layer: Count | None = None,
    rows: Count = 100,
    probe_features: Annotated[int, Bounds(at_least=1, at_most=100_000)] = 50,
    of_seed: int | None = None,
    code: str | None = None,
) -> None:
    """Measure how much there is to win by choosing: the loss of every choice, and of a probe's choices.

    Nothing is written into the run folder.

    Args:
        run_dir: A finished run folder, of one model or of several compared.
        model: Name of the model, if the run compares several; by default the last.
        data: Folder of the run's data; by default where the run found it.
        beside: Run folders of the same model with other seeds, separated by commas, to compare choices with.
        split: Split to read.
        steps: Number of choices to examine, from the start of the split.
        layer: Layer whose choices are examined, counted from 1; by default the last.
        rows: Number of sequences, or streams of a text, to read side by side.
        probe_features: Number of hidden units of the probes.
        of_seed: Seed of the model, if several were trained together; by default the first.
        code: Import this module first: the one with your own skip or transition.
    """
    keep_freed_memory()
    keep_compiled_programs()
    own = load_run(run_dir, model, of_seed, "oracle")
    found = own.data(data)
    learner = own.learner_with(found, together=True)
    others = _others(own, found, beside)
    is_text = isinstance(learner.task, LanguageModelling)
    choosing = [i for i, skip in enumerate(learner.skips) if skip.is_stochastic]
    about, read = f"{own.experiment.name}, {own.name}", dict(rows=max(2, rows))
    if own.spec.copies_in_expectation:
        more = [other.params for other in others.values()]
        pieces = interventions.copied_words(learner, own.params, own.policy, split, **read, others=more)
        choices = interventions.choices_of(learner.skips[-1], own.policy)
        _print_copied(f"{about}, {split}", pieces, choices, steps, list(others))
        if not choosing:
            return
    if not choosing:
        raise UserError("this model samples no choices: train one such as dynamic:5")
    examined = choosing[-1] if layer is None else layer - 1
    if examined not in choosing:
        numbers = " or ".join(str(i + 1) for i in choosing)
        raise UserError(f"layer {layer} samples no choices: choose {numbers}")
    choices = interventions.choices_of(learner.skips[examined], own.policy)
    matters, constants = own.together.choices_matter(own.selected), []
    if matters:
        how = dict(layer=examined, rows=rows, states=min(learner.skips[examined].max_skip, _SHOWN))
        pieces = interventions.single_interventions(learner, own.params, own.policy, split, **how)
        losses, taken, seen = _gather(pieces, steps)
        # The agent's choices as indices, from 1, into `choices`.
        result = oracle_losses(losses, np.searchsorted(choices, taken) + 1, seen, units=probe_features)
        title = f"{about}, layer {examined + 1}, {split}: nats, mean of the last {result.count:,} steps"
        _print(title, _rows(result, choices), "beside random", result.random)
        say(result.verdict())
        shown = choices if len(choices) <= _SHOWN else np.unique(choices[[0, result.fixed - 1]])
        constants = shown.tolist()
    how = dict(layer=examined, constants=constants, others=[other.params for other in others.values()])
    pieces = interventions.policy_interventions(learner, own.params, own.policy, split, **how, **read)
    pieces = list(_until(pieces, steps, "reading in other ways"))
    _print_choices(pieces, choices, has_others=bool(others), is_text=is_text)
    if not matters:
        say(
            f"No choice to exchange: whatever {own.name} chooses, it says the same. No state enters by "
            "choice (λ = 0), and no word is copied by it alone."
        )
        return
    total = sum(piece.losses.astype(np.float64).sum(axis=0) for piece in pieces)
    count = float(sum(piece.counts.sum() for piece in pieces))
    names = [
        *("by the agent", "at random", "by the agent in another text"),
        *(f"by {other}, reading the same text" for other in others),
        *(f"always {k}" for k in constants),
    ]
    title = f"every choice made so, each with the states that follow: nats, mean of {count:,.0f}"
    _print(title, list(zip(names, total / count, strict=True)), "beside the agent", total[0] / count)


def _print_choices(pieces: Sequence[Any], choices: np.ndarray, *, has_others: bool, is_text: bool) -> None:
    """Print how often agents agree, and how often that of a language model goes back to the same word."""
    if has_others:
        actions = np.concatenate([piece.actions[piece.in_steps] for piece in pieces])
        same = seed_agreement(actions)
        say(
            f"{actions.shape[1]} agents, two by two, agree on {same.share:.1%} of choices, by their rates "
            f"alone {same.by_chance:.1%} (κ = {same.kappa:.2f})"
        )
    if is_text:  # consecutive batches form one text per row
        names = ("inputs", "actions", "in_steps")
        parts = ([getattr(piece, name) for piece in pieces] for name in names)
        words, actions, counts = (np.concatenate(part, axis=1) for part in parts)
        back = same_word(words, actions[..., 0], counts, choices=choices)
        reach = f"; {back.share / back.possible:.1%} of those within its reach" if back.possible else ""
        say(
            f"the agent goes back to the same word at {back.share:.1%} of words, by its rates alone "
            f"{back.by_chance:.1%}{reach}"
        )


def _others(own: Trained, data: Any, beside: Sequence[Path]) -> dict[str, Trained]:
    """Return the models of other seeds, by a name: those trained together and those of other runs."""
    others = {f"seed {seed}": own.of_seed(seed) for seed in own.together.seeds if seed != own.seed}
    shapes = jax.tree.map(jnp.shape, own.params)
    for folder in beside:
        models = load_models(folder, "oracle")
        if (kind := next(iter(models.values())).experiment.name) != own.experiment.name:
            raise UserError(f"{folder} holds a run of {kind}, not of {own.experiment.name}")
        if own.name not in models:
            raise UserError(f"{folder} has {', '.join(models)}: there is no {own.name} to set beside")
        found = models[own.name]
        theirs = _settings(found)
        for name, value in _settings(own).items():
            if theirs.get(name) != value:
                raise UserError(
                    f"{folder} holds a {own.name} with {name} {theirs.get(name)}, here it is {value}: only "
                    "other seeds of the same model can be set beside it"
                )
        found.check_data(data)
        for seed in found.together.seeds:
            other = others[f"seed {seed} of {folder}"] = found.of_seed(seed)
            if jax.tree.map(jnp.shape, other.params) != shapes:
                raise UserError(f"{folder} holds a {own.name} of another size, not to be compared")
    return others


def _settings(trained: Trained) -> dict[str, Any]:
    of_agent = vars(trained.settings.agent) | trained.selected
    return vars(trained.settings.model) | {name: of_agent[name] for name in _OF_THE_AGENT if name in of_agent}


def _until(pieces: Iterator[Any], limit: int, label: str) -> Iterator[Any]:
    """Yield pieces as NumPy arrays until they contain `limit` losses or choices that count, or to the end."""
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


def _gather(pieces: Iterator[Any], limit: int) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return the losses of each choice at `limit` steps, the agent's choices, and what probes see there."""
    parts = []
    for piece in _until(pieces, limit, "examining"):
        parts.append([part[piece.counts] for part in (piece.losses, piece.taken, piece.x, piece.before)])
    losses, taken, x, before = (np.concatenate(each)[:limit] for each in zip(*parts, strict=True))
    seen = {
        "s(t)": np.concatenate([x, before[:, 0]], axis=-1),
        f"x(t) and the last {before.shape[1]} states": np.concatenate(
            [x, before.reshape(len(before), -1)], axis=-1
        ),
    }
    return losses, taken, seen


def _rows(result: OracleLosses, choices: np.ndarray) -> list[tuple[str, float]]:
    """Return names and losses for the table of single interventions; of the constants, only the best."""
    shown = sorted(np.argsort(result.constant)[:_SHOWN].tolist())
    return [
        ("by the agent", result.taken),
        ("at random", result.random),
        *((f"always {choices[i]}", result.constant[i]) for i in shown),
        *((f"by a probe that sees {name}", loss) for name, loss in result.probes.items()),
        ("in hindsight", result.hindsight),
        ("all of them, probabilities averaged", result.averaged),
    ]


def _print_copied(
    about: str, pieces: Iterator[Any], choices: np.ndarray, limit: int, others: Sequence[str]
) -> None:
    """Print a language model's loss if words are copied with other probabilities than its own."""
    read = _until(pieces, limit, "copying otherwise")
    parts = [[part[piece.counts] for part in piece[1:]] for piece in read]
    losses, of_each, likeliest = (np.concatenate(each)[:limit] for each in zip(*parts, strict=True))
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
    title = (
        f"{about}, words copied by other probabilities, the gate held: nats, mean of {len(losses):,} words"
    )
    _print(title, rows, "beside its own", own, first="words are copied")
    gain = paired_gain(losses[:, 2], losses[:, 0])
    chance = ", which may be chance." if gain.is_chance else "."
    say(f"Its own probabilities gain {gain} nats (95 %) over those that it had in another text{chance}")


def _print(
    title: str, rows: Sequence[tuple[str, float]], beside: str, reference: float, first: str = "k is chosen"
) -> None:
    """Print losses and their differences from a reference, which the heading `beside` names."""
    cells = [[name, f"{loss:.4f}", f"{loss - reference:+.4f}"] for name, loss in rows]
    print_table(title, [first, "loss", beside], cells)
