"""What a task does unless its module has a function of the same name: warnings, pictures, texts."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from dynskip_jax.analysis import plots
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.settings import Settings
from dynskip_jax.spec import ModelSpec
from dynskip_jax.tasks import Learner
from dynskip_jax.tasks.label_score import Tags, score_labels, word_labels
from dynskip_jax.tasks.task import where_counted

logger = logging.getLogger(__name__)


def warnings(spec: ModelSpec, settings: Settings, learner: Learner) -> list[str]:
    """Return a line for each setting that is valid but probably unintended."""
    skip, epochs, lines = spec.skip, settings.training.epochs, []
    if skip.is_stochastic and spec.objective.relaxed_epochs >= epochs:
        lines.append(
            f"all {epochs} epochs use relaxed choices, but evaluation uses sampled or hard ones: raise "
            "--epochs or lower --relaxed-epochs"
        )
    if skip.is_stochastic and not spec.choices_matter() and spec.copy != "expected":
        lines.append(
            f"λ = 0: no state enters by a choice of {spec.name}, which changes nothing; give --mix, or, in "
            "language models, --copy"
        )
    longest = learner.task.max_length
    if longest is not None and skip.max_skip > longest:
        lines.append(
            f"K = {skip.max_skip} is beyond every sequence of train, the longest of which has {longest} "
            "steps: what lies before a sequence is the initial state"
        )
    return lines


def metrics(trained: Any) -> dict[str, np.ndarray]:
    """Return metrics of all seeds' selected parameters besides those of the task, each (seeds,)."""
    return {}


def draw(trained: Any) -> None:
    """Draw how often one model's agent chooses each k at each position."""
    draw_skips(trained, "position")


def draw_skips(trained: Any, by: str, of: str = "", names: Sequence[str] = ()) -> None:
    """Draw how often one model's agent chooses each k in each group of steps, once for each
    direction.

    `by` is the name of a group, such as `word`. The field `of` of a batch numbers the groups,
    (rows, time); by default they are positions. With the `names` of all groups, the 20 most
    frequent ones are drawn.
    """
    top = trained.learner.top_layers if trained.spec.skip.has_agent else {}
    for direction, layer in top.items():
        counts = np.zeros((1, trained.learner.skips[layer].max_skip), int)
        for batch, chosen in trained.learner.choices(
            trained.all_params, "dev", trained.keys, layer=layer
        ):
            own = chosen[trained.member]
            rows, steps = np.nonzero(where_counted(batch, own.shape[1])[1])
            groups = np.asarray(getattr(batch, of))[rows, steps] if of else steps
            counts = np.pad(counts, ((0, max(0, groups.max(initial=0) + 1 - len(counts))), (0, 0)))
            np.add.at(counts, (groups, own[rows, steps] - 1), 1)
        frequent = np.argsort(-counts.sum(axis=1), kind="stable")[:20]
        frequent = frequent[counts[frequent].any(axis=1)]
        suffix, who = (
            (f"_{direction}", f"the {direction} layer") if len(top) > 1 else ("", "the agent")
        )
        plots.action_distribution(
            counts[frequent] if names else counts,
            trained.run.plots / f"skips_by_{by}{suffix}.png",
            f"{trained.name}: how far back {who} reaches at each {by}",
            note=trained.note,
            rows=[names[group] for group in frequent] if names else None,
        )


def draw_last_choice(
    trained: Any, chosen: Int[np.ndarray, " examples"], right: Int[np.ndarray, " examples"]
) -> None:
    """Draw the k chosen at the last step of each example against the right one."""
    path, title = "last_skip_against_truth.png", "the last choice against the right one"
    K, where = trained.spec.skip.max_skip, trained.run.plots / path
    plots.action_against_truth(
        chosen - 1, right - 1, K, where, f"{trained.name}: {title}", trained.note
    )


def draw_confusion(
    trained: Any, split: str, what: str, *labels: Sequence[Tags], has_entities: bool = False
) -> None:
    """Log the score of each label, and draw which are confused; `what` is the name of a label.

    `labels` are the true and the predicted ones, as `score_labels` takes them.
    """
    logger.info("%s: scores on %s, seed %d", trained.name, split, trained.seed)
    for line in score_labels(*labels, has_entities=has_entities).lines(
        what
    ):  # a record is one line
        logger.info("%s", line)
    title = f"{trained.name}: true and predicted {what} on {split}, seed {trained.seed}"
    words = (word_labels(of, has_entities=has_entities) for of in labels)
    plots.confusion(*words, trained.run.plots / "confusion.png", title)


# --- Texts ---


def split(text: str) -> list[str]:
    """Return the words of a line of text, as they were found in train."""
    return text.split()


def tokenize(trained: Any, text: str) -> str:
    """Convert text as people type it into a line that `encode` can read."""
    return " ".join(trained.split(text))


def encode(trained: Any, text: str) -> tuple[Any, list[str]]:
    """Return the ids of a line of text, as arrays of shape (time, ...), and the word of each id.

    A text is cropped as in training, and unknown words become `<unk>`.
    """
    words = trained.split(text)[: getattr(trained.settings.data, "max_length", None)]
    tokens = trained.vocabulary.encode(words)
    return tokens, trained.vocabulary.decode(tokens)


def format_prediction(trained: Any, predicted: Any, probability: float) -> str:
    """Return a prediction, and the probability of the class that is the least certain of them."""
    names = getattr(trained.learner.task, "class_names", ())
    shown = names[int(predicted)] if names else " ".join(map(str, np.atleast_1d(predicted)))
    return f"{shown}  ({probability:.3f})"


def read(trained: Any, text: str) -> Reading:
    """Read a text with a trained model, and return its prediction and its choices."""
    inputs, words = trained.encode(text)
    found, predicted = trained.learner.read(trained.params, inputs, len(words), trained.policy)
    certain = np.exp(np.atleast_1d(np.asarray(found.log_probs).max(axis=-1)))
    # A text may be longer than the model reads, so `words` may be shorter.
    typed = zip(trained.split(text), words, strict=False)
    return Reading(
        words,
        unknown=[word for word, known in typed if word != known],
        probabilities=[math.nan] * (len(words) - len(certain)) + certain.tolist(),
        prediction=trained.experiment.hook("format_prediction")(
            trained, predicted, float(certain.min())
        ),
        is_of_predictions=True,
        **trained.choices(found.decisions, found.observations, len(words)),
    )
