"""The examples, the model, and what is measured of its choices."""

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
    """Generate the examples."""
    found = load_number_prediction(settings.data.length, settings.data.train_examples)
    return Dataset(found.name, found.sizes, found.fingerprint, found.source, content=found.splits)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: None) -> Classification:
    """Return the task of a model."""
    length, cell, positions = settings.data.length, dict(spec.cell_options), 0
    if (
        settings.model.recipe == "two_hops"
    ):  # two ones in the input: of the symbol, and of its position
        positions, cell["agent_init"] = (
            length,
            F.Initializers(agent_input=nnx.initializers.normal(2**-0.5)),
        )
    splits = {} if data is None else {name: Examples(x, y) for name, (x, y) in data.content.items()}
    sizes = number_prediction.num_symbols(length), 10
    return classification(spec, settings, splits, *sizes, num_positions=positions, cell=cell)


def classification(
    spec: Any, settings: Any, splits: Any, num_symbols: int, num_classes: int, **options: Any
) -> Classification:
    """Return the task of a model that classifies sequences of symbols without an embedding."""
    m = settings.model
    layers = spec.layer_options() | dict(dropout=m.dropout_rates) | options

    def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
        return SequenceClassifier(num_symbols, m.features, num_classes, **layers, rngs=rngs)

    return Classification(splits, make_model, batch_size=settings.training.batch_size)


def warnings(spec: Any, settings: Any, learner: Learner) -> list[str]:
    """Return the usual warnings; with one hop, also warn of an agent that cannot reach every
    answer.
    """
    lines, back = hooks.warnings(spec, settings, learner), settings.data.length - 1
    if spec.skip.has_agent and settings.data.length != TWO_HOPS and back > spec.reach:
        reaching = f"{spec.name.partition(':')[0]}:{back} reaches all"
        lines.append(f"the answer may stand {back} steps back, beyond K = {spec.reach}: {reaching}")
    return lines


def metrics(trained: Any) -> dict[str, np.ndarray]:
    """Return how often the agent's choices are correct.

    With one hop, the last choice must reach the answer. With two hops, the chain of choices that
    leads to the last state must visit both positions that the digits point to.
    """
    if not _truth_is_known(trained):
        return {}
    chosen, hops = _choices(trained, "test")
    if hops.shape[1] == 1:
        exact = chosen.shape[2] - 1 - chosen[:, :, -1] == hops[:, 0]
    else:
        rows = np.arange(len(hops))[:, None]
        exact = np.stack(
            [statistics.visited(of_seed)[rows, hops].all(axis=1) for of_seed in chosen]
        )
    return {"test_exact_decisions": exact.mean(axis=1)}


def _truth_is_known(trained: Any) -> bool:
    """Return whether there is a choice that must reach every answer, or a chain of choices."""
    spec, length = trained.spec, trained.settings.data.length
    return spec.skip.is_stochastic and (length == TWO_HOPS or spec.reach >= length - 1)


def _choices(trained: Any, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return each k chosen greedily, (seeds, examples, time), and the places to reach, (examples,
    hops).
    """
    read = trained.learner.choices(trained.all_params, split, trained.keys, layer=-1)
    chosen = np.concatenate([chosen[:, batch.mask] for batch, chosen in read], axis=1)
    return chosen, number_prediction.hops_of(trained.learner.task.splits[split].inputs)


def draw(trained: Any) -> None:
    """Draw the usual, and the last choice or the chain of choices against the correct ones."""
    hooks.draw(trained)
    if not _truth_is_known(trained):
        return
    chosen, hops = _choices(trained, "dev")
    chosen = chosen[trained.member]
    if hops.shape[1] == 1:
        hooks.draw_last_choice(trained, chosen[:, -1], chosen.shape[1] - 1 - hops[:, 0])
        return
    visited = statistics.visited(chosen)
    for hop, position in enumerate(hops.T, 1):
        path, title = (
            trained.run.plots / f"chain_visits_hop_{hop}.png",
            f"chain to the last state, hop {hop}",
        )
        plots.visited_positions(
            visited, position, path, f"{trained.name}: {title}", note=trained.note
        )


def encode(trained: Any, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
    """Return the symbols of a text: numbers separated by spaces, as many as a training example
    has.
    """
    length, words = trained.settings.data.length, text.split()
    symbols = number_prediction.num_symbols(length)
    if len(words) != length or not all(
        w.isdecimal() and len(w) < 10 and int(w) < symbols for w in words
    ):
        raise UserError(
            f"a text has {length} numbers below {symbols}, separated by spaces; got {text!r}"
        )
    return np.array([int(word) for word in words], np.int32), words
