"""The examples, the model, and what is measured of its choices."""

from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Int
from typing_extensions import override

from dynskip_jax import functional as F
from dynskip_jax.analysis import plots, statistics
from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data import number_prediction
from dynskip_jax.data.batches import Examples
from dynskip_jax.errors import UserError
from dynskip_jax.experiments.number_prediction.config import TWO_HOPS
from dynskip_jax.models.classifier import SequenceClassifier
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.pictures import draw_last_choice, draw_positions
from dynskip_jax.tasks.classification import Classification


class SymbolClassification(Classification):
    """Classify sequences of symbols, which a model reads without an embedding.

    `options` are further options of the model's layers.
    """

    def __init__(
        self,
        spec: Any,
        settings: Any,
        splits: Any,
        num_symbols: int,
        num_classes: int,
        **options: Any,
    ):
        m = settings.model
        layers = spec.layer_options() | dict(dropout=m.dropout_rates) | options

        def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
            return SequenceClassifier(num_symbols, m.features, num_classes, **layers, rngs=rngs)

        super().__init__(splits, make_model, batch_size=settings.training.batch_size)


class NumberPrediction(SymbolClassification):
    """Predict the number to which the last symbols of a sequence point, by one hop or two."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Generate the examples."""
        data = settings.data
        return number_prediction.load_number_prediction(data.length, data.train_examples)

    def __init__(self, spec: Any, settings: Any, data: Dataset | None, vocabulary: None):
        self.length = settings.data.length
        self.num_symbols = number_prediction.num_symbols(self.length)
        cell = dict(spec.cell_options)
        positions = 0
        if settings.model.recipe == "two_hops":
            # Two ones in the input: of the symbol, and of its position.
            positions = self.length
            cell["agent_init"] = F.Initializers(agent_input=nnx.initializers.normal(2**-0.5))
        splits = {}
        if data is not None:
            splits = {name: Examples(x, y) for name, (x, y) in data.content.items()}
        options = dict(num_positions=positions, cell=cell)
        super().__init__(spec, settings, splits, self.num_symbols, 10, **options)

    @override
    def encode(self, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
        """Return the symbols of a text: numbers separated by spaces.

        There are as many as in a training example.
        """
        words = text.split()
        are_symbols = all(
            word.isdecimal() and len(word) < 10 and int(word) < self.num_symbols for word in words
        )
        if len(words) != self.length or not are_symbols:
            raise UserError(
                f"a text has {self.length} numbers below {self.num_symbols}, separated by spaces; "
                f"got {text!r}"
            )
        return np.array([int(word) for word in words], np.int32), words


def measure_choices(trained: Trained) -> dict[str, np.ndarray]:
    """Return how often the agent's choices are correct.

    With one hop, the last choice must reach the answer. With two hops, the chain of choices that
    leads to the last state must visit both positions that the digits point to.
    """
    if not _truth_is_known(trained):
        return {}
    chosen, hops = _choices(trained, "test")
    # State(t-k) at the last step t: the answer stands at t - k.
    if hops.shape[1] == 1:
        exact = chosen.shape[2] - 1 - chosen[:, :, -1] == hops[:, 0]
    else:
        # Any order and any detour is right, as long as both places are visited.
        rows = np.arange(len(hops))[:, None]
        exact = np.stack(
            [statistics.visited(of_seed)[rows, hops].all(axis=1) for of_seed in chosen]
        )
    return {"test_exact_decisions": exact.mean(axis=1)}


def draw_choices(trained: Trained) -> None:
    """Draw the usual, and the last choice or the chain of choices against the correct ones."""
    draw_positions(trained)
    if not _truth_is_known(trained):
        return
    chosen, hops = _choices(trained, "dev")
    chosen = chosen[trained.member]
    if hops.shape[1] == 1:
        draw_last_choice(trained, chosen[:, -1], chosen.shape[1] - 1 - hops[:, 0])
        return
    visited = statistics.visited(chosen)
    for hop, position in enumerate(hops.T, 1):
        plots.visited_positions(
            visited,
            position,
            trained.run.plots / f"chain_visits_hop_{hop}.png",
            f"{trained.name}: chain to the last state, hop {hop}",
            note=trained.note,
        )


def _truth_is_known(trained: Trained) -> bool:
    """Return whether there is a choice that must reach every answer, or a chain of choices."""
    length = trained.learner.task.length
    skip = trained.spec.skip
    return skip.is_stochastic and (length == TWO_HOPS or skip.max_skip >= length - 1)


def _choices(trained: Trained, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return each k chosen greedily, (seeds, examples, time), and the places to reach.

    The places are (examples, hops).
    """
    read = trained.learner.choices(trained.all_params, split, trained.keys, layer=-1)
    chosen = np.concatenate([chosen[:, batch.mask] for batch, chosen in read], axis=1)
    return chosen, number_prediction.hops_of(trained.learner.task.splits[split].inputs)
