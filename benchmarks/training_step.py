"""Run the training steps that the loop of `experiments.ptb` compiles, for any of its presets."""

from collections.abc import Callable, Mapping
from itertools import cycle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dynskip_jax.config.experiment import Dataset, find_experiment
from dynskip_jax.config.settings import resolve
from dynskip_jax.data import LanguageCorpus
from dynskip_jax.data.vocabularies import EOS, Vocabulary
from dynskip_jax.runs.learner import make_fit_settings, make_learner
from dynskip_jax.runs.spec import make_spec
from dynskip_jax.training.mesh import Parallel
from dynskip_jax.training.step import make_step, seed_keys, start_state

# Models of the language model's table, and the settings in which they differ from the preset.
_COPYING: Mapping[str, Any] = {"agent": "content", "copy": "expected"}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "lstm": ("lstm", {}),
    "dynamic:5": ("dynamic:5", {}),
    "dynamic:200, by content, copying": ("dynamic:200", _COPYING),
    "the same, λ = 0": (
        "dynamic:200",
        {**_COPYING, "mix": 0.0, "agent_features": 200, "rl_coef": 0.0},
    ),
}
_TOKENS = 5601  # eight different batches of the preset `paper`, which are used in turn


def running(preset: str, model: str) -> Callable[[], Any]:
    """Return a function that continues training one of `MODELS` by one step, and waits for it."""
    name, flags = MODELS[model]
    data = synthetic_words(_TOKENS, 10_000)
    # The learner and the optimizer that a command would make of these flags.
    experiment = find_experiment("ptb")
    settings = resolve(experiment.settings, experiment.presets, preset, flags).settings
    spec = make_spec(name, settings)
    learner = make_learner(experiment, settings, spec, data, data.vocabulary)
    fit = make_fit_settings(settings, spec, learner)

    # One compiled step, and all that it takes at the first update.
    update = make_step(learner, fit.optimizer, Parallel())
    seeds = seed_keys(fit.seeds)
    state = start_state(learner, fit.optimizer, seeds)
    rate = fit.learning_rate(0, np.zeros((0, 1)))
    rates = jnp.full(len(fit.seeds), rate, jnp.float32)
    averaged = np.zeros(len(fit.seeds), bool)
    constant = (rates, learner.scheduled(0), averaged)
    # Batches are made while steps are timed, as in training.
    batches = cycle(enumerate(learner.train_batches(0)))

    def step() -> None:
        nonlocal state
        index, batch = next(batches)
        state = jax.block_until_ready(update(state, batch, seeds.train, index, *constant))

    return step


def synthetic_words(num_tokens: int, vocabulary: int) -> Dataset:
    """Return data of words sampled uniformly from a vocabulary."""
    names = (EOS, *(f"word{i}" for i in range(1, vocabulary)))
    tokens = np.random.default_rng(0).integers(0, vocabulary, num_tokens, dtype=np.int32)
    splits = dict(train=tokens, dev=tokens, test=tokens)
    corpus = LanguageCorpus(
        name="synthetic", **splits, vocabulary=Vocabulary(names), source="chance"
    )
    about = (corpus.name, corpus.sizes, corpus.fingerprint, corpus.source)
    return Dataset(*about, content=corpus, vocabulary=corpus.vocabulary)
