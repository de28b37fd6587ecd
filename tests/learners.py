"""Small models, and learners of them, that tests of training share."""

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.data import Examples, LanguageCorpus, make_corpus
from dynskip_jax.data.batching import Batch
from dynskip_jax.models import LanguageModel, SequenceClassifier
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.tasks.classification import Classification
from dynskip_jax.tasks.language_modelling import LanguageModelling
from dynskip_jax.tasks.learner import Learner

SYMBOLS, CLASSES = 6, 3


def symbols(train: int, dev: int = 0, time: int = 7, seed: int = 0) -> dict[str, Examples]:
    """Sequences of symbols whose class is that of the last but one; splits of so many."""
    x = np.random.default_rng(seed).integers(SYMBOLS, size=(train + dev, time)).astype(np.int32)
    y = x[:, -2] % CLASSES
    splits = {"train": Examples(x[:train], y[:train]), "dev": Examples(x[train:], y[train:])}
    return {name: split for name, split in splits.items() if len(split)}


def letters(train: int, valid: int = 7, test: int = 7, seed: int = 1) -> LanguageCorpus:
    """Lines of four random letters and <eos>; splits of so many lines."""
    words = np.random.default_rng(seed).choice(list("abcdefg"), size=(train + valid + test, 4))
    lines = iter([" ".join(row) for row in words])
    sizes = {"train": train, "valid": valid, "test": test}
    return make_corpus(
        "letters", {name: [next(lines) for _ in range(n)] for name, n in sizes.items()}, "here"
    )


def skip_of(skip: str | F.TimeSkip, mix: float | None = None) -> F.TimeSkip:
    """A time skip by its name."""
    return (
        skip
        if isinstance(skip, F.TimeSkip)
        else F.parse_time_skip(skip, **{} if mix is None else {"mix": mix})
    )


def classification(
    splits: dict[str, Examples],
    seeds: Sequence[int] = (0,),
    *,
    skip: str | F.TimeSkip = "dynamic:3",
    mix: float | None = None,
    features: int = 6,
    num_symbols: int = SYMBOLS,
    num_classes: int = CLASSES,
    batch_size: int = 8,
    evaluation_rows: int = 20,
    model: dict[str, Any] | None = None,
    cell: dict[str, Any] | None = None,
    task: type[Classification] = Classification,
    learner: type[Learner] = Learner,
    **options: Any,
) -> Learner:
    """A learner of one-layer classifiers.

    Args:
        splits: what is classified.
        seeds: of the models.
        skip: the layer's.
        mix: its λ.
        features: size of its state.
        num_symbols: of the sequences.
        num_classes: of the truth.
        batch_size: of training.
        evaluation_rows: see `ExampleTask`.
        model: further options of `SequenceClassifier`.
        cell: further options of its cell.
        task: the class of the task.
        learner: the class of the learner.
        **options: of the learner.
    """
    skips = (skip_of(skip, mix),)

    def make_model(rngs: nnx.Rngs) -> SequenceClassifier:
        own = {"agent_features": 4} | (cell or {})
        sizes = (num_symbols, features, num_classes)
        return SequenceClassifier(*sizes, skips, rngs=rngs, **own, **model or {})

    made = task(splits, make_model, batch_size=batch_size, evaluation_rows=evaluation_rows)
    return learner(made, seeds, **options)


def language_modelling(
    corpus: LanguageCorpus,
    seeds: Sequence[int] = (0,),
    *,
    skips: Sequence[str | F.TimeSkip] = ("lstm", "dynamic:3"),
    mix: float | None = None,
    features: int = 6,
    batch_size: int = 4,
    num_steps: int = 6,
    init_scale: float = 0.3,
    model: dict[str, Any] | None = None,
    cell: dict[str, Any] | None = None,
    task: dict[str, Any] | None = None,
    learner: type[Learner] = Learner,
    **options: Any,
) -> Learner:
    """A learner of language models.

    Args:
        corpus: what is read.
        seeds: of the models.
        skips: of the layers, bottom first.
        mix: λ of the last.
        features: size of every layer's state.
        batch_size: streams of training.
        num_steps: of a segment.
        init_scale: of weights outside the cells.
        model: further options of `LanguageModel`.
        cell: options of the last layer's cell.
        task: further options of `LanguageModelling`.
        learner: the class of the learner.
        **options: of the learner.
    """
    made = (*(skip_of(skip) for skip in skips[:-1]), skip_of(skips[-1], mix))
    cells = ({},) * (len(made) - 1) + ({"agent_features": 4} | (cell or {}),)

    def make_model(rngs: nnx.Rngs) -> LanguageModel:
        own = {"weight_init": uniform(init_scale), "layer_options": cells} | (model or {})
        return LanguageModel(len(corpus.vocabulary), features, made, rngs=rngs, **own)

    sizes = dict(batch_size=batch_size, num_steps=num_steps)
    return learner(LanguageModelling(corpus, make_model, **sizes | (task or {})), seeds, **options)


def drawn_params(learner: Learner, seed: int = 0, scale: float = 0.8) -> Any:
    """One model's parameters, uniform in [-scale, scale]: drawn by NumPy, which compiles nothing."""

    def draw(path: Any, leaf: Any) -> jax.Array:
        """Draw a leaf by its name, so that models with equal parts have them with equal weights."""
        rng = np.random.default_rng([seed, zlib.crc32(jax.tree_util.keystr(path).encode())])
        return jnp.asarray(rng.uniform(-scale, scale, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, learner.abstract_params())


def together(*models: Any) -> Any:
    """Parameters of several models as those of models trained together."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *models)


def one_seed(params: Any) -> Any:
    """One model's parameters as those of models trained together."""
    return jax.tree.map(lambda leaf: leaf[None], params)


def scheduled_of(learner: Learner, epoch: int = 0, number: int = 0) -> Any:
    """Return the scheduled values of one of the models in an epoch."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[number], learner.scheduled(epoch))


def first_batch(learner: Learner, number: int = 0) -> Batch:
    """One model's first batch of training."""
    batch = next(iter(learner.train_batches(0)))
    return batch if learner.batch_axis is None else jax.tree.map(lambda leaf: leaf[number], batch)
