"""The texts of the grammar, the model, and what is measured of its choices."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Int

from dynskip_jax.analysis import plots
from dynskip_jax.data import Examples, agreement
from dynskip_jax.errors import UserError
from dynskip_jax.experiment import Dataset
from dynskip_jax.models import SequenceClassifier
from dynskip_jax.tasks import Classification, Learner

_SEED = 0  # of the texts


def load(settings: Any) -> Dataset:
    """Generate the texts."""
    sizes = {**agreement.DEFAULT_SIZES, "train": settings.data.train_examples}
    found = agreement.generate(settings.data.length, sizes, _SEED)
    return Dataset(found.name, found.sizes, found.fingerprint, found.source, content=found.splits)


def make_task(spec: Any, settings: Any, data: Dataset | None, vocabulary: None) -> Classification:
    """Return the task of a model."""

    def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
        return SequenceClassifier(
            agreement.NUM_SYMBOLS,
            settings.model.features,
            agreement.NUM_FORMS,
            (spec.skip,),
            **spec.recurrent_options,
            dropout=settings.model.dropout,
            dtype=spec.dtype,
            cell=spec.cell_options,
            rngs=rngs,
        )

    # Batches are padded to a few lengths only, because each one compiles a program.
    buckets = tuple(sorted({math.ceil(settings.data.length * share) for share in (0.4, 0.7, 1.0)}))
    splits = {
        name: Examples(texts.symbols, texts.forms, texts.lengths, buckets=buckets)
        for name, texts in ({} if data is None else data.content).items()
    }
    return Classification(splits, make_model, batch_size=settings.training.batch_size)


def metrics(spec: Any, settings: Any, learner: Learner, params: Any, keys: Any) -> dict[str, np.ndarray]:
    """Return how often the agent's last choice is the state right after the opening word."""
    if not spec.skip.is_stochastic:
        return {}
    chosen, right = _last_choices(learner, params, "test", keys)
    return {"test_exact_decisions": (chosen == right).mean(axis=1)}


def draw(
    spec: Any, settings: Any, learner: Learner, params: Any, keys: Any, folder: Path, member: int
) -> None:
    """Draw the agent's last choice against the correct one."""
    if not spec.skip.is_stochastic:
        return
    chosen, right = _last_choices(learner, params, "dev", keys)
    reached = right <= spec.skip.max_skip
    plots.action_against_truth(
        chosen[member][reached] - 1,
        right[reached] - 1,
        spec.skip.max_skip,
        folder / "last_skip_against_truth.png",
        f"{spec.name}: the last choice against the right one",
        f"dev, greedy, seed {learner.seeds[member]}",
    )


def encode(settings: Any, vocabulary: None, text: str) -> tuple[Int[np.ndarray, " time"], list[str]]:
    """Return the symbols of a text, whose words are the names that `symbol_names` returns."""
    index = {name: symbol for symbol, name in enumerate(agreement.symbol_names())}
    words = text.split()
    unknown = [word for word in words if word not in index]
    if unknown:
        raise UserError(f"{unknown[0]!r} is no word of this task: words are a0 to h9, )a to )h, w0 to w9")
    symbols = np.array([index[word] for word in words], np.int32)
    agreement.answer(symbols)
    return symbols, words


def _last_choices(
    learner: Learner, params: Any, split: str, keys: Any
) -> tuple[Int[np.ndarray, "seeds examples"], Int[np.ndarray, " examples"]]:
    """Return the k chosen greedily at the last step of each example, and the correct k."""
    found, right = [], []
    for batch, chosen in learner.choices(params, split, keys, layer=0):
        lengths = batch.seq_lengths[batch.mask]
        last = np.take_along_axis(chosen[:, batch.mask], lengths[None, :, None] - 1, axis=2)
        found.append(last[..., 0])
        texts = [row[:length] for row, length in zip(batch.inputs[batch.mask], lengths, strict=True)]
        right += [len(text) - 1 - agreement.answer(text)[1] for text in texts]
    return np.concatenate(found, axis=1), np.array(right)
