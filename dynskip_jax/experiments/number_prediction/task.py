"""The examples, the model, and what is measured of its choices."""

from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Int

from dynskip_jax import functional as F
from dynskip_jax import hooks
from dynskip_jax.analysis import plots, statistics
from dynskip_jax.data import Examples, load_number_prediction, number_prediction
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Dataset
from dynskip_jax.experiments.number_prediction.config import TWO_HOPS
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.tasks import Classification, Learner


def load(settings: Any) -> Dataset:
    """Load or generate the examples."""
    data = settings.data
    found = load_number_prediction(data.length, data=data.data, num_train=data.train_examples)
    return Dataset(found.name, found.sizes, found.fingerprint, found.source, content=found.splits)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: None) -> Classification:
    """Return the task of a model."""
    length, options = settings.data.length, dict(spec.cell_options)
    has_positions = settings.model.recipe == "two_hops"
    if has_positions:  # two ones in the input: of the symbol, and of its position
        options["agent_init"] = F.Initializers(agent_input=nnx.initializers.normal(2**-0.5))

    def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
        return SequenceClassifier(
            number_prediction.num_symbols(length),
            settings.model.features,
            10,
            (spec.skip,),
            **spec.recurrent_options,
            num_positions=length if has_positions else 0,
            dropout=settings.model.dropout,
            dtype=spec.dtype,
            cell=options,
            rngs=rngs,
        )

    splits = {} if data is None else {name: Examples(x, y) for name, (x, y) in data.content.items()}
    return Classification(splits, make_model, batch_size=settings.training.batch_size)


def warnings(spec: Any, settings: Any, learner: Learner) -> list[str]:
    """Return the usual warnings; with one hop, also warn of an agent that cannot reach every answer."""
    lines, K, back = hooks.warnings(spec, settings, learner), spec.reach, settings.data.length - 1
    if spec.skip.has_agent and settings.data.length != TWO_HOPS and back > K:
        lines.append(
            f"the answer may stand {back} steps back, and K = {K} reaches only those up to "
            f"{K} in one choice: {spec.name.partition(':')[0]}:{back} reaches all"
        )
    return lines


def metrics(spec: Any, settings: Any, learner: Learner, params: Any, keys: Any) -> dict[str, np.ndarray]:
    """Return how often the agent's choices are correct."""
    if not _truth_is_known(spec, settings):
        return {}
    chosen = _choices(learner, params, "test", keys)
    exact = _exact(chosen, learner.task.splits["test"].inputs)
    return {"test_exact_decisions": exact.mean(axis=1)}


def _truth_is_known(spec: Any, settings: Any) -> bool:
    """Return whether the agent's choices can be compared with the correct ones.

    One hop takes one choice at the last step, which must be able to reach every answer. Two hops take a
    chain of choices.
    """
    length = settings.data.length
    return spec.skip.is_stochastic and (length == TWO_HOPS or spec.reach >= length - 1)


def _exact(chosen: np.ndarray, digits: np.ndarray) -> np.ndarray:
    """Return whether the choices of each example are correct, (seeds, examples).

    With one hop, the last choice must reach the answer. With two hops, the chain of choices that leads to
    the last state must visit both positions that the digits point to.

    Args:
        chosen: k at each step, (seeds, examples, time).
        digits: Inputs, (examples, time).
    """
    hops = number_prediction.hops_of(digits)
    if hops.shape[1] == 1:
        return digits.shape[1] - 1 - chosen[:, :, -1] == hops[:, 0]
    rows = np.arange(len(hops))[:, None]
    return np.stack([statistics.visited(of_seed)[rows, hops].all(axis=1) for of_seed in chosen])


def draw(
    spec: Any, settings: Any, learner: Learner, params: Any, keys: Any, folder: Path, member: int
) -> None:
    """Draw the usual, and the last choice or the chain of choices against the correct ones."""
    hooks.draw(spec, settings, learner, params, keys, folder, member)
    if not _truth_is_known(spec, settings):
        return
    chosen = _choices(learner, params, "dev", keys)[member]
    hops = number_prediction.hops_of(learner.task.splits["dev"].inputs)
    if hops.shape[1] == 1:
        plots.action_against_truth(
            chosen[:, -1] - 1,
            settings.data.length - 1 - hops[:, 0] - 1,
            spec.skip.max_skip,
            folder / "last_skip_against_truth.png",
            f"{spec.name}: the last choice against the right one",
            f"dev, greedy, seed {learner.seeds[member]}",
        )
        return
    visited = statistics.visited(chosen)
    for number, position in enumerate(hops.T, 1):
        plots.visited_positions(
            visited,
            position,
            folder / f"chain_visits_hop_{number}.png",
            f"{spec.name}: chain to the last state",
            note=f"hop {number} of {hops.shape[1]}; dev, greedy, seed {learner.seeds[member]}",
        )


def encode(settings: Any, vocabulary: None, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
    """Return the symbols of a text: numbers separated by spaces, as many as a training example has."""
    length = settings.data.length
    symbols, words = number_prediction.num_symbols(length), text.split()
    if len(words) != length or not all(w.isdecimal() and int(w) < symbols for w in words):
        raise UserError(f"a text has {length} numbers below {symbols}, separated by spaces; got {text!r}")
    return np.array([int(word) for word in words], np.int32), words


def _choices(learner: Learner, params: Any, split: str, keys: Any) -> Int[np.ndarray, "seeds examples time"]:
    """Return the k chosen greedily at each step of each example of a split."""
    read = learner.choices(params, split, keys, layer=0)
    return np.concatenate([chosen[:, batch.mask] for batch, chosen in read], axis=1)
