"""Build the small models and learners that tests of training share."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax import functional as F
from dynskip_jax.data import Examples, make_corpus
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


def symbols(train, dev=0, time=7):
    """Return splits of random symbols, without empty ones; a class is the last but one symbol mod
    CLASSES.
    """
    x = np.random.default_rng(0).integers(SYMBOLS, size=(train + dev, time)).astype(np.int32)
    y = x[:, -2] % CLASSES
    splits = {"train": Examples(x[:train], y[:train]), "dev": Examples(x[train:], y[train:])}
    return {name: split for name, split in splits.items() if len(split)}


def letters(train, dev=7, test=7):
    """Return a corpus whose splits have the given numbers of lines, each four random letters and
    <eos>.
    """
    words = np.random.default_rng(1).choice(list("abcdefg"), size=(train + dev + test, 4))
    lines = iter([" ".join(row) for row in words])
    sizes = {"train": train, "dev": dev, "test": test}
    splits = {name: [next(lines) for _ in range(n)] for name, n in sizes.items()}
    return make_corpus("letters", splits, "here")


def skip_of(skip, mix=None):
    return (
        F.parse_time_skip(skip, **{} if mix is None else {"mix": mix})
        if isinstance(skip, str)
        else skip
    )


def classification(
    splits,
    seeds=(0,),
    *,
    skip="dynamic:3",
    mix=None,
    model=None,
    cell=None,
    task=Classification,
    batch_size=8,
    evaluation_rows=20,
    learner=Learner,
    **options,
):
    """Return a learner of classifiers with one layer of 6 units; `mix` is λ of a skip given by
    name.
    """
    own = {"skip": (skip_of(skip, mix),), "num_classes": CLASSES, "agent_features": 4}
    own |= (cell or {}) | (model or {})
    make_model = lambda rngs: SequenceClassifier(SYMBOLS, 6, rngs=rngs, **own)
    made = task(splits, make_model, batch_size=batch_size, evaluation_rows=evaluation_rows)
    return learner(made, seeds, **options)


def language_modelling(
    corpus,
    seeds=(0,),
    *,
    skips=("lstm", "dynamic:3"),
    mix=None,
    features=6,
    batch_size=4,
    num_steps=6,
    init_scale=0.3,
    model=None,
    cell=None,
    task=None,
    learner=Learner,
    **options,
):
    """Return a learner of language models with the skips of these layers; `mix` is λ of the last
    one.
    """
    made = (*(skip_of(skip) for skip in skips[:-1]), skip_of(skips[-1], mix))
    cells = ({},) * (len(made) - 1) + ({"agent_features": 4} | (cell or {}),)
    own = {"weight_init": uniform(init_scale), "cell": cells} | (model or {})
    make_model = lambda rngs: LanguageModel(
        len(corpus.vocabulary), features, made, rngs=rngs, **own
    )
    sizes = dict(batch_size=batch_size, num_steps=num_steps)
    return learner(LanguageModelling(corpus, make_model, **sizes | (task or {})), seeds, **options)


def plain(kind, base, *arguments, **options):
    """Return a task of an experiment that is made with the arguments of its base class."""
    task = kind.__new__(kind)
    base.__init__(task, *arguments, **options)
    return task


def drawn_params(learner, seed=0, scale=0.8):
    """Return one model's parameters, drawn from [-scale, scale] by NumPy, which compiles
    nothing.
    """

    def draw(path, leaf):
        # By its name, so that parts with equal names have equal weights in all models.
        rng = np.random.default_rng([seed, zlib.crc32(jax.tree_util.keystr(path).encode())])
        return jnp.asarray(rng.uniform(-scale, scale, leaf.shape), leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, learner.abstract_params())


def together(*models):
    """Stack the parameters of several models, as those of models trained together."""
    return jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *models)


def scheduled_of(learner):
    """Return the scheduled values of the first model."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], learner.scheduled(0))


def first_batch(learner):
    """Return the first training batch of the first model."""
    batch = next(iter(learner.train_batches(0)))
    return batch if learner.batch_axis is None else jax.tree.map(lambda leaf: leaf[0], batch)
