"""The command `oracle`: measure how much a finished model could gain from other choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from dynskip_jax.errors import UserError
from dynskip_jax.experiments.command_line import Subcommand, unknown
from dynskip_jax.experiments.commands.flags import ModelFlags
from dynskip_jax.experiments.experiment import Data
from dynskip_jax.lazy import LazyModule
from dynskip_jax.settings import path_setting, setting

if TYPE_CHECKING:
    from dynskip_jax.analysis.oracle import OracleLosses
    from dynskip_jax.experiments.experiment import Experiment
    from dynskip_jax.experiments.loaded import FinishedModel, LoadedModel
    from dynskip_jax.tasks import Learner
    from dynskip_jax.tasks.copied_words import CopiedWords
    from dynskip_jax.tasks.counterfactuals import PolicyInterventions, SingleInterventions

compilation_cache = LazyModule("dynskip_jax.devices.compilation_cache")
consoles = LazyModule("dynskip_jax.experiments.console")
copied_words = LazyModule("dynskip_jax.tasks.copied_words")
counterfactuals = LazyModule("dynskip_jax.tasks.counterfactuals")
host_memory = LazyModule("dynskip_jax.devices.host_memory")
jax = LazyModule("jax")
jnp = LazyModule("jax.numpy")
loading = LazyModule("dynskip_jax.experiments.loaded")
oracle_analysis = LazyModule("dynskip_jax.analysis.oracle")
run_progress = LazyModule("dynskip_jax.training.progress")
rich_table = LazyModule("rich.table")
statistics = LazyModule("dynskip_jax.analysis.statistics")
tasks_lib = LazyModule("dynskip_jax.tasks")

# Agents are comparable only if these settings of theirs are equal, in addition to all settings of the model.
_OF_THE_MODEL = ("mix", "max_skip", "agent", "agent_input", "empty_slots", "stride", "first_step", "control")
_SHOWN = 10  # maximum number of constants that are printed, and of states that a probe observes


@dataclasses.dataclass(frozen=True, kw_only=True)
class OracleFlags(ModelFlags):
    """Flags of `oracle`."""

    data: str | None = path_setting(None, "Folder of the run's data; by default where the run found it.")
    beside: tuple[str, ...] | None = path_setting(
        None,
        "Run folders of the same model with other seeds, separated by commas, whose choices are compared.",
    )
    split: Literal["train", "dev", "test"] = setting("dev", "Split to read.")
    steps: int = setting(60_000, "Number of choices to examine, from the start of the split.", at_least=1)
    layer: int | None = setting(
        None, "Layer whose choices are examined, counted from 1; by default the last.", at_least=1
    )
    rows: int = setting(
        100,
        "Number of sequences, or streams of a text, to read side by side.",
        at_least=1,
    )
    window: int = setting(
        1,
        "Language models: score a choice by the loss of a window of this many words.",
        at_least=1,
    )
    beam: int = setting(
        0,
        "Search for the best choices of whole windows or sequences with this many paths; 0: do not.",
        at_least=0,
    )
    probe_features: int = setting(50, "Number of hidden units of the probes.", at_least=1)


class Examined(NamedTuple):
    """Losses of single interventions at all examined steps.

    Attributes:
        losses: Loss of each choice, in nats, (steps, choices).
        taken: k chosen by the agent, (steps,).
        seen: Features that probes observe, by name, each (steps, features).
        paths: Loss of each window or sequence with the agent's choices and with the best choices found,
            (windows, 2).
    """

    losses: Float[np.ndarray, "steps choices"]
    taken: Int[np.ndarray, " steps"]
    seen: dict[str, Float[np.ndarray, "steps features"]]
    paths: Float[np.ndarray, "windows 2"]


def oracle(experiment: type[Experiment], flags: OracleFlags) -> None:
    """Print the losses of different ways to choose, and whether there is anything for an agent to learn.

    Nothing is written into the run folder.

    Args:
        experiment: The experiment of the run.
        flags: Flags of the command.

    Raises:
        UserError: The model makes no choices, or the data is not that of the run.
    """
    host_memory.keep_freed_memory()
    compilation_cache.keep_compiled_programs()
    models = loading.finished_models(flags.run_dir, experiment.name)
    name = flags.model or list(models)[-1]
    if name not in models:
        raise unknown(name, list(models))
    found = models[name]
    data = loading.data_of(found, flags.data)
    learner = found.learner_with(data)
    trained = loading.one_of(found, flags.of_seed)
    others = _others(found, trained, data, flags.beside or ())
    several = [trained.params, *(other.params for other in others.values())]
    of_words = isinstance(learner.task, tasks_lib.LanguageModelling)
    if flags.window > 1 and not of_words:
        raise UserError("--window is for language models, whose loss is that of the next word: leave it out")
    if found.spec.copies_in_expectation:
        how = dict(rows=max(2, flags.rows), others=several[1:])
        pieces = copied_words.copied_words(learner, trained.params, trained.policy, flags.split, **how)
        about = f"{found.experiment.name}, {name}, {flags.split}"
        _print_copied(
            about, pieces, counterfactuals.choices_of(learner.skips[-1], trained.policy), flags.steps, others
        )
        if not any(skip.is_stochastic for skip in learner.skips):
            return
    layer = _layer(learner, flags.layer)
    choices = counterfactuals.choices_of(learner.skips[layer], trained.policy)
    if others or of_words:
        pieces = counterfactuals.chosen(
            learner, several, trained.policy, flags.split, layer=layer, rows=max(2, flags.rows)
        )
        pieces = list(_until(pieces, flags.steps, "reading choices"))
        if others:
            actions = np.concatenate([piece.actions[piece.counts] for piece in pieces])[: flags.steps]
            same = statistics.seed_agreement(actions)
            consoles.say(
                f"{len(several)} agents, two by two, agree on {same.share:.1%} of choices, "
                f"by their rates alone {same.by_chance:.1%} (κ = {same.kappa:.2f})"
            )
        if of_words:  # consecutive windows form one text per row
            counts, actions, words = (np.concatenate(each, axis=1) for each in zip(*pieces, strict=True))
            back = statistics.same_word(words, actions[..., 0], counts, choices=choices)
            reach = f"; {back.share / back.possible:.1%} of those within its reach" if back.possible else ""
            consoles.say(
                f"the agent goes back to the same word at {back.share:.1%} of words, by its rates alone "
                f"{back.by_chance:.1%}{reach}"
            )
    if not found.spec.choices_matter(found.selected):
        consoles.say(
            f"No choice to exchange: whatever {name} chooses, it says the same. No state enters by choice "
            "(λ = 0), and no word is copied by it alone."
        )
        return
    pieces = counterfactuals.single_interventions(
        learner,
        trained.params,
        trained.policy,
        flags.split,
        layer=layer,
        rows=flags.rows,
        window=flags.window,
        beam=flags.beam,
        states=min(learner.skips[layer].max_skip, _SHOWN),
    )
    examined = _gather(pieces, flags.steps)
    taken = np.searchsorted(choices, examined.taken) + 1  # index, from 1, into `choices`
    result = oracle_analysis.oracle_losses(examined.losses, taken, examined.seen, units=flags.probe_features)
    about = f"{found.experiment.name}, {name}, layer {layer + 1}, {flags.split}"
    title = f"{about}: nats, mean of the last {result.count:,} steps"
    _print(title, _rows(result, choices), "beside random", result.random)
    if flags.beam:
        taken, best = examined.paths.mean(axis=0)
        consoles.say(
            f"all choices of a window at once: {taken:.4f} as taken, {best:.4f} at best (beam {flags.beam})"
        )
    print(result.verdict())
    constants = choices if len(choices) <= _SHOWN else np.unique(choices[[0, result.fixed - 1]])
    how = dict(
        layer=layer,
        rows=max(2, flags.rows),
        constants=constants.tolist(),
        others=[other.params for other in others.values()],
    )
    pieces = counterfactuals.policy_interventions(learner, trained.params, trained.policy, flags.split, **how)
    losses, count = _whole(pieces, flags.steps)
    names = [
        *("by the agent", "at random", "by the agent in another text"),
        *(f"by {other}, reading the same text" for other in others),
        *(f"always {k}" for k in constants),
    ]
    title = f"every choice made so, each with the states that follow: nats, mean of {count:,.0f}"
    _print(title, list(zip(names, losses.tolist(), strict=True)), "beside the agent", losses[0])


def _print_copied(
    about: str,
    pieces: Iterator[CopiedWords],
    choices: Int[np.ndarray, " choices"],
    limit: int,
    others: Iterable[str],
) -> None:
    """Print a language model's loss if words are copied with other probabilities than its own.

    Args:
        about: Experiment, model and split, for the title of the table.
        pieces: Losses of each batch.
        choices: Values of k that may be chosen.
        limit: Maximum number of words.
        others: Names of the other models, in the order of their losses in `pieces`.
    """
    parts = [
        [part[piece.counts] for part in piece[1:]] for piece in _until(pieces, limit, "copying otherwise")
    ]
    losses, of_each, likeliest = (np.concatenate(each)[:limit] for each in zip(*parts, strict=True))
    own, even, another, *theirs = losses.mean(axis=0)
    constants = of_each.mean(axis=0)
    best = int(constants.argmin())
    rows = [
        ("by the model's own probabilities", own),
        ("by the likeliest k alone", likeliest.mean()),
        ("by all of them alike", even),
        ("by those in another text", another),
        *(
            (f"by those of {other}, reading the same text", loss)
            for other, loss in zip(others, theirs, strict=True)
        ),
        *((f"always {choices[i]}", constants[i]) for i in sorted({0, best})),
        ("in hindsight", of_each.min(axis=1).mean()),
    ]
    title = (
        f"{about}, words copied by other probabilities, the gate held: nats, mean of {len(losses):,} words"
    )
    _print(title, rows, "beside its own", own, first="words are copied")
    gain = statistics.paired_gain(losses[:, 2], losses[:, 0])
    consoles.say(
        f"Its own probabilities gain {gain} nats (95 %) over those that it had in another text"
        + (", which may be chance." if gain.is_chance else ".")
    )


def _layer(learner: Learner, number: int | None) -> int:
    choosing = [i for i, skip in enumerate(learner.skips) if skip.is_stochastic]
    if not choosing:
        raise UserError("this model samples no choices: train one such as dynamic:5")
    if number is None:
        return choosing[-1]
    if number - 1 not in choosing:
        raise UserError(
            f"layer {number} samples no choices: choose {' or '.join(str(i + 1) for i in choosing)}"
        )
    return number - 1


def _others(
    found: FinishedModel, own: LoadedModel, data: Data, beside: Sequence[str]
) -> dict[str, loading.LoadedModel]:
    """Return the models of other seeds, by a name for each: those trained together and those of other runs.

    Args:
        found: All seeds of the model.
        own: The seed that is examined; it is left out.
        data: Data of the run.
        beside: Other run folders.

    Raises:
        UserError: A folder does not contain the model, or contains one of another size, settings or data.
    """
    others = {f"seed {seed}": loading.one_of(found, seed) for seed in found.seeds if seed != own.seed}
    shapes = jax.tree.map(jnp.shape, own.params)
    for folder in beside:
        models = loading.finished_models(folder, found.experiment.name)
        if found.name not in models:
            raise UserError(f"{folder} has {', '.join(models)}: there is no {found.name} to set beside")
        _check_alike(found, models[found.name], folder)
        loading.check_data(models[found.name], data)
        for seed in models[found.name].seeds:
            other = loading.one_of(models[found.name], seed)
            if jax.tree.map(jnp.shape, other.params) != shapes:
                raise UserError(f"{folder} holds a {found.name} of another size, not to be compared")
            others[f"seed {seed} of {folder}"] = other
    return others


def _check_alike(found: FinishedModel, other: FinishedModel, folder: str) -> None:
    """Raise a `UserError` if the other run has other settings of the model, even if shapes are equal."""

    def said(finished: FinishedModel) -> dict[str, Any]:
        settings = finished.experiment.settings
        of_agent = vars(settings.agent) | finished.selected
        return vars(settings.model) | {name: of_agent[name] for name in _OF_THE_MODEL}

    theirs = said(other)
    for name, value in said(found).items():
        if theirs.get(name) != value:
            raise UserError(
                f"{folder} holds a {found.name} with {name} {theirs.get(name)}, here it is {value}: only "
                "other seeds of the same model can be set beside it"
            )


def _until(pieces: Iterator[Any], limit: int, label: str) -> Iterator[Any]:
    """Yield pieces as NumPy arrays until they contain `limit` losses or choices that count, or to the end.

    Args:
        pieces: Results of each batch.
        limit: Number of losses or choices.
        label: Description for the progress bar.
    """
    count = 0
    with run_progress.Progress(limit, label) as progress:
        for piece in pieces:
            piece = jax.tree.map(np.asarray, piece)
            new = int(
                (
                    piece.count if isinstance(piece, counterfactuals.PolicyInterventions) else piece.counts
                ).sum()
            )
            progress.advance(min(new, limit - count))
            count += new
            yield piece
            if count >= limit:
                break
        progress.advance(max(0, limit - count))  # the split may contain fewer


def _gather(pieces: Iterator[SingleInterventions], limit: int) -> Examined:
    """Concatenate the results of batches until they contain `limit` examined choices, and cut the rest."""
    parts, paths = [], []
    for piece in _until(pieces, limit, "examining"):
        where = piece.counts
        parts.append([part[where] for part in (piece.losses, piece.taken, piece.x, piece.before)])
        paths.append(np.stack([piece.path, piece.best], axis=-1)[where.any(axis=1)])
    losses, taken, x, before = (np.concatenate(each)[:limit] for each in zip(*parts, strict=True))
    states = before.shape[1]
    seen = {
        "s(t)": np.concatenate([x, before[:, 0]], axis=-1),
        f"x(t) and the last {states} states": np.concatenate([x, before.reshape(len(before), -1)], axis=-1),
    }
    return Examined(losses, taken, seen, np.concatenate(paths))


def _whole(pieces: Iterator[PolicyInterventions], limit: int) -> tuple[Float[np.ndarray, " ways"], float]:
    """Return the mean loss of each way to choose, over whole batches, and the number of losses."""
    total, count = 0.0, 0
    for piece in _until(pieces, limit, "reading in other ways"):
        total, count = total + piece.losses.astype(np.float64).sum(axis=0), count + float(piece.count.sum())
    return total / count, count


def _rows(result: OracleLosses, choices: Int[np.ndarray, " choices"]) -> list[tuple[str, float]]:
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


def _print(
    title: str, rows: Sequence[tuple[str, float]], beside: str, reference: float, first: str = "k is chosen"
) -> None:
    """Print a table of losses and their differences from a reference.

    Args:
        title: Title of the table.
        rows: Name and loss of each row.
        beside: Heading of the differences.
        reference: Loss that is subtracted.
        first: Heading of the names.
    """
    table = rich_table.Table(title=title, title_justify="left")
    for heading in (first, "loss", beside):
        table.add_column(heading, justify="left" if heading == first else "right")
    for name, loss in rows:
        table.add_row(name, f"{loss:.4f}", f"{loss - reference:+.4f}")
    consoles.wide_console().print(table)


ORACLE = Subcommand(
    "Measure how much there is to win by choosing: the loss of every choice, and of a probe's choices.",
    OracleFlags,
    oracle,
)
