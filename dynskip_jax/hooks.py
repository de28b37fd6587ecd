"""What a task does unless its module has a function of the same name: warnings, pictures, texts."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from dynskip_jax.analysis import plots
from dynskip_jax.analysis.reading import Reading
from dynskip_jax.settings import Settings
from dynskip_jax.spec import ModelSpec
from dynskip_jax.tasks import Learner


def warnings(spec: ModelSpec, settings: Settings, learner: Learner) -> list[str]:
    """Return a line for each setting that is valid but probably unintended."""
    skip, epochs, lines = spec.skip, settings.training.epochs, []
    if skip.is_stochastic and spec.objective.relaxed_epochs >= epochs:
        lines.append(
            f"all {epochs} epochs use relaxed choices, but evaluation uses sampled or hard ones: raise "
            "--epochs or lower --relaxed-epochs"
        )
    if skip.is_stochastic and not spec.choices_matter() and not spec.copies_in_expectation:
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


def metrics(
    spec: ModelSpec, settings: Settings, learner: Learner, params: Any, keys: Any
) -> dict[str, np.ndarray]:
    """Return metrics of the selected parameters besides those of the task, each (seeds,)."""
    return {}


def draw(
    spec: ModelSpec, settings: Settings, learner: Learner, params: Any, keys: Any, folder: Path, member: int
) -> None:
    """Draw how often one model's agent chooses each k at each position, once for each direction.

    `params` (seeds, ...) and `keys` (seeds,) are of all models that are trained together; `member` is drawn.
    """
    if not spec.skip.has_agent:
        return
    top = learner.top_layers
    for direction, layer in top.items():
        counts = _skips_by_position(learner, params, keys, layer, member)
        name, who = "skips_by_position", "back the agent reaches"
        if len(top) > 1:
            name, who = f"{name}_{direction}", f"the {direction} layer reaches"
        plots.action_distribution(
            counts,
            folder / f"{name}.png",
            f"{spec.name}: how far {who} at each position",
            note=f"dev, greedy, seed {spec.all_seeds[member]}",
        )


def _skips_by_position(
    learner: Learner, params: Any, keys: Any, layer: int, member: int
) -> Int[np.ndarray, "positions K"]:
    counts = np.zeros((1, learner.skips[layer].max_skip), int)
    for batch, chosen in learner.choices(params, "dev", keys, layer=layer):
        own, ends = chosen[member], batch.seq_lengths
        counts = np.pad(counts, ((0, max(0, own.shape[1] - len(counts))), (0, 0)))
        valid = np.ones(own.shape, bool) if ends is None else np.arange(own.shape[1]) < ends[:, None]
        mask = batch.mask if batch.mask.ndim == 2 else batch.mask[:, None]  # of steps, or of rows
        rows, steps = np.nonzero(valid & mask)
        np.add.at(counts, (steps, own[rows, steps] - 1), 1)
    return counts


# --- Texts ---


def split(text: str) -> list[str]:
    """Return the words of a line of text, or an empty list."""
    return text.split()


def tokenize(vocabulary: Any, text: str) -> str:
    """Convert text as people type it into a line that `encode` can read."""
    return text


def encode(settings: Settings, vocabulary: Any, text: str) -> tuple[Any, list[str]]:
    """Return the ids of a line of text, as arrays of shape (time, ...), and the word of each id."""
    tokens = vocabulary.encode(split(text))
    return tokens, vocabulary.decode(tokens)


def format_prediction(vocabulary: Any, predicted: Any, probability: float) -> str:
    """Return a prediction, and the probability of the class that is the least certain of them."""
    return f"{' '.join(map(str, np.atleast_1d(predicted)))}  ({probability:.3f})"


def read(trained: Any, text: str) -> Reading:
    """Read a text with a trained model, and return its prediction and its choices."""
    hook, vocabulary = trained.experiment.hook, trained.vocabulary
    inputs, words = hook("encode")(trained.settings, vocabulary, text)
    found, predicted = trained.learner.read(trained.params, inputs, len(words), trained.policy)
    certain = np.exp(np.atleast_1d(np.asarray(found.log_probs).max(axis=-1)))
    # A text may be longer than the model reads, so `words` may be shorter.
    typed = zip(hook("split")(text), words, strict=False)
    return Reading(
        words,
        unknown=[word for word, known in typed if word != known],
        probabilities=[math.nan] * (len(words) - len(certain)) + certain.tolist(),
        prediction=hook("format_prediction")(vocabulary, predicted, float(certain.min())),
        is_of_predictions=True,
        **trained.choices(found.decisions, found.observations, len(words)),
    )
