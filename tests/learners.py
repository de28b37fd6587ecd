"""Build the small models and learners that tests of training share."""

import zlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from dynskip_jax import functional as F
from dynskip_jax.data import Examples, LanguageCorpus, make_corpus
from dynskip_jax.data.batches import Batch
from dynskip_jax.models import LanguageModel, SequenceClassifier
from dynskip_jax.nn.initializers import uniform
from dynskip_jax.tasks import Classification, ExampleTask, Forward
from dynskip_jax.tasks.language import LanguageModelling
from dynskip_jax.tasks.learner import Learner

SYMBOLS, CLASSES = 6, 3


class StepTask(ExampleTask):
    """Task with a class for each step of a sequence; its models are `SequenceClassifier`s."""

    is_of_steps = True

    def forward(self, model, batch, carry, *, shared_key, **how):
        x = jax.nn.one_hot(batch.inputs, SYMBOLS)
        outputs = model.stack(x, seq_lengths=batch.seq_lengths, **how)
        log_probs = jax.nn.log_softmax(model.softmax(outputs.h))
        return Forward(log_probs, outputs.decisions, observations=outputs.observations)


def symbols(train: int, dev: int = 0, time: int = 7, seed: int = 0) -> dict[str, Examples]:
    """Return splits of `train` and `dev` sequences of `time` random symbols.

    The class of a sequence is its last but one symbol modulo CLASSES. Empty splits are left out.
    """
    x = np.random.default_rng(seed).integers(SYMBOLS, size=(train + dev, time)).astype(np.int32)
    y = x[:, -2] % CLASSES
    splits = {"train": Examples(x[:train], y[:train]), "dev": Examples(x[train:], y[train:])}
    return {name: split for name, split in splits.items() if len(split)}


def letters(train: int, dev: int = 7, test: int = 7, seed: int = 1) -> LanguageCorpus:
    """Return a corpus whose splits have the given numbers of lines, each four random letters and <eos>."""
    words = np.random.default_rng(seed).choice(list("abcdefg"), size=(train + dev + test, 4))
    lines = iter([" ".join(row) for row in words])
    sizes = {"train": train, "dev": dev, "test": test}
    return make_corpus(
        "letters", {name: [next(lines) for _ in range(n)] for name, n in sizes.items()}, "here"
    )


def skip_of(skip: str | F.TimeSkip, mix: float | None = None) -> F.TimeSkip:
    """Return the time skip named `skip`, with λ = `mix` if given; return a `TimeSkip` unchanged."""
    if isinstance(skip, F.TimeSkip):
        return skip
    return F.parse_time_skip(skip, **{} if mix is None else {"mix": mix})


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
    """Return a learner of one-layer classifiers with a layer of `features` units.

    `mix` is λ of a skip that is given by name. `model`, `cell` and `options` are further options of
    `SequenceClassifier`, of the layer's cell and of the learner.
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
    """Return a learner of language models with the skips of these layers, bottom first.

    `mix` is λ of the last skip if it is given by name, and `init_scale` bounds the uniform initial weights
    outside the cells. `model`, `cell`, `task` and `options` are further options of `LanguageModel`, of the
    last layer's cell, of `LanguageModelling` and of the learner.
    """
    made = (*(skip_of(skip) for skip in skips[:-1]), skip_of(skips[-1], mix))
    cells = ({},) * (len(made) - 1) + ({"agent_features": 4} | (cell or {}),)

    def make_model(rngs: nnx.Rngs) -> LanguageModel:
        own = {"weight_init": uniform(init_scale), "cell": cells} | (model or {})
        return LanguageModel(len(corpus.vocabulary), features, made, rngs=rngs, **own)

    sizes = dict(batch_size=batch_size, num_steps=num_steps)
    return learner(LanguageModelling(corpus, make_model, **sizes | (task or {})), seeds, **options)


def drawn_params(learner: Learner, seed: int = 0, scale: float = 0.8) -> Any:
    """Return one model's parameters, drawn from [-scale, scale] by NumPy, which compiles nothing."""

    def draw(path: Any, leaf: Any) -> jax.Array:
        """Draw a leaf by its name, so that parts with equal names have equal weights in all models."""
        rng = np.random.default_rng([seed, zlib.crc32(jax.tree_util.keystr(path).encode())])
        return jnp.asarray(rng.uniform(-scale, scale, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, learner.abstract_params())


def together(*models: Any) -> Any:
    """Stack the parameters of several models, as those of models trained together."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *models)


def one_seed(params: Any) -> Any:
    """Add a seed axis of length 1 to one model's parameters, as for models trained together."""
    return jax.tree.map(lambda leaf: leaf[None], params)


def scheduled_of(learner: Learner, epoch: int = 0, number: int = 0) -> Any:
    """Return the scheduled values of model `number` in `epoch`."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[number], learner.scheduled(epoch))


def first_batch(learner: Learner, number: int = 0) -> Batch:
    """Return the first training batch of model `number`."""
    batch = next(iter(learner.train_batches(0)))
    return batch if learner.batch_axis is None else jax.tree.map(lambda leaf: leaf[number], batch)
