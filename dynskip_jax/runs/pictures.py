"""Draw what trained models of a task choose, into the run folder."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from dynskip_jax.analysis import plots
from dynskip_jax.runs.load import Trained
from dynskip_jax.tasks.rows import where_counted

_MOST_GROUPS = 20  # rows of a picture, the most frequent ones


def draw_positions(trained: Trained) -> None:
    """Draw how often one model's agent chooses each k at each position."""
    draw_skips(trained, "position")


def draw_skips(trained: Trained, by: str, of: str = "", names: Sequence[str] = ()) -> None:
    """Draw how often one model's agent chooses each k in each group of steps.

    `by` is the name of a group, such as `word`. The field `of` of a batch numbers the groups,
    (rows, time); by default they are positions. With the `names` of all groups, the 20 most
    frequent ones are drawn.
    """
    top = trained.learner.top_layers if trained.spec.skip.has_agent else {}
    for direction, layer in top.items():
        counts = _times_chosen(trained, layer, of)
        suffix = ""
        who = "the agent"
        if len(top) > 1:
            suffix = f"_{direction}"
            who = f"the {direction} layer"
        rows = None
        if names:
            frequent = np.argsort(-counts.sum(axis=1), kind="stable")[:_MOST_GROUPS]
            frequent = frequent[counts[frequent].any(axis=1)]
            counts = counts[frequent]
            rows = [names[group] for group in frequent]
        plots.action_distribution(
            counts,
            trained.run.plots / f"skips_by_{by}{suffix}.png",
            f"{trained.name}: how far back {who} reaches at each {by}",
            note=trained.note,
            rows=rows,
        )


def _times_chosen(trained: Trained, layer: int, of: str) -> Int[np.ndarray, "groups K"]:
    """Return how often one model's agent chooses each k in each group of steps."""
    counts = np.zeros((1, trained.learner.skips[layer].max_skip), int)
    read = trained.learner.choices(trained.all_params, "dev", trained.keys, layer=layer)
    for batch, of_all in read:
        chosen = of_all[trained.member]
        rows, steps = np.nonzero(where_counted(batch, chosen.shape[1])[1])
        groups = np.asarray(getattr(batch, of))[rows, steps] if of else steps
        # Longer batches and larger numbers of groups add rows.
        missing = max(0, groups.max(initial=0) + 1 - len(counts))
        counts = np.pad(counts, ((0, missing), (0, 0)))
        np.add.at(counts, (groups, chosen[rows, steps] - 1), 1)
    return counts


def draw_last_choice(
    trained: Trained, chosen: Int[np.ndarray, " examples"], right: Int[np.ndarray, " examples"]
) -> None:
    """Draw the k chosen at the last step of each example against the right one."""
    plots.action_against_truth(
        chosen - 1,
        right - 1,
        trained.spec.skip.max_skip,
        trained.run.plots / "last_skip_against_truth.png",
        f"{trained.name}: the last choice against the right one",
        trained.note,
    )
