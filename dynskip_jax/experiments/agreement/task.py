"""The texts of the grammar, the model, and what is measured of its choices."""

from typing import Any

import numpy as np
from typing_extensions import override

from dynskip_jax.config.experiment import Dataset
from dynskip_jax.data import agreement
from dynskip_jax.data.batches import Examples, with_buckets
from dynskip_jax.data.vocabularies import Vocabulary
from dynskip_jax.experiments.number_prediction.task import SymbolClassification
from dynskip_jax.runs.load import Trained
from dynskip_jax.runs.pictures import draw_last_choice


class Agreement(SymbolClassification):
    """Predict the form in which a clause was opened that the last word closes."""

    @override
    @staticmethod
    def load(settings: Any) -> Dataset:
        """Generate the texts."""
        return agreement.load_agreement(settings.data.length, settings.data.train_examples)

    def __init__(self, spec: Any, settings: Any, data: Dataset | None, vocabulary: Vocabulary):
        splits = {}
        if data is not None:
            rows = {name: Examples(*texts) for name, texts in data.content.items()}
            splits = with_buckets(rows, settings.training.batch_size)
        sizes = agreement.NUM_SYMBOLS, agreement.NUM_FORMS
        super().__init__(spec, settings, splits, *sizes, cell=spec.cell_options)
        self.vocabulary = vocabulary


def measure_choices(trained: Trained) -> dict[str, np.ndarray]:
    """Return how often the agent's last choice is the state right after the opening word."""
    if not trained.spec.skip.is_stochastic:
        return {}
    chosen, right = _last_choices(trained, "test")
    return {"test_exact_decisions": (chosen == right).mean(axis=1)}


def draw_choices(trained: Trained) -> None:
    """Draw the agent's last choice against the correct one."""
    if trained.spec.skip.is_stochastic:
        chosen, right = _last_choices(trained, "dev")
        draw_last_choice(trained, chosen[trained.member], right)


def _last_choices(trained: Trained, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the last k chosen greedily, (seeds, examples), and the correct k, (examples,)."""
    found = []
    right = []
    for batch, chosen in trained.learner.choices(trained.all_params, split, trained.keys, layer=-1):
        lengths = batch.seq_lengths[batch.mask]
        # Rows are padded, so each has its last word at another step.
        last = np.take_along_axis(chosen[:, batch.mask], lengths[None, :, None] - 1, axis=2)
        found.append(last[..., 0])
        # The answer is found again from the words, because the data hold only its form.
        texts = [
            row[:length] for row, length in zip(batch.inputs[batch.mask], lengths, strict=True)
        ]
        right += [len(text) - 1 - agreement.answer(text)[1] for text in texts]
    return np.concatenate(found, axis=1), np.array(right)
