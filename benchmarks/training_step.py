"""Make candidates that run whole training steps of `experiments.ptb` on synthetic words."""

from collections.abc import Callable, Mapping
from itertools import cycle

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.candidate import Candidate, Ready
from dynskip_jax.data import LanguageCorpus
from dynskip_jax.data.batches import Batch
from dynskip_jax.data.vocabulary import EOS, Vocabulary
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.devices.parallel import OneDevice
from dynskip_jax.experiments.build import make_fit_settings, make_learner
from dynskip_jax.experiments.model_spec import make_spec
from dynskip_jax.experiments.ptb import PTB, LanguageSettings
from dynskip_jax.experiments.settings import replace, resolve
from dynskip_jax.tasks.learner import Learner
from dynskip_jax.training.loop import FitSettings
from dynskip_jax.training.step import TrainState, make_step, seed_keys, start_state

# Models by name, and the settings in which they differ from the preset.
MODELS: Mapping[str, tuple[str, Mapping[str, str | float]]] = {
    "lstm": ("lstm", {}),
    "dynamic:5": ("dynamic:5", {}),
    "dynamic:200, by content, copying": ("dynamic:200", {"agent": "content", "copy": "expected"}),
    # As in the preset `far`, choices do not change states.
    "the same, λ = 0": (
        "dynamic:200",
        {"agent": "content", "copy": "expected", "mix": 0.0, "agent_features": 200, "rl_coef": 0.0},
    ),
}
_SEGMENTS = 4  # number of different batches, which are used in turn


def settings(preset: str, flags: Mapping[str, int]) -> LanguageSettings:
    """Return the settings of a preset of `experiments.ptb` with additional flags."""
    return resolve(PTB.settings_type, PTB.presets, preset, flags).settings


def tokens_per_step(chosen: LanguageSettings) -> int:
    """Return the number of words in a step."""
    return chosen.training.batch_size * chosen.training.num_steps


def work(chosen: LanguageSettings, vocabulary: int) -> float:
    """Return the estimated milliseconds of a step on two cores, for the progress bar."""
    model = chosen.model
    weights = model.num_layers * 8 * model.features**2 + vocabulary * model.features
    return 3 * 2 * tokens_per_step(chosen) * weights / 1e8


def candidates(chosen: LanguageSettings, vocabulary: int) -> list[Candidate]:
    """Return a training step of each model; each step continues from the previous state.

    This also calls `keep_freed_memory`, as experiments do.
    """
    keep_freed_memory()
    return [
        _candidate(name, model, replace(chosen, **flags), vocabulary)
        for name, (model, flags) in MODELS.items()
    ]


def synthetic_corpus(num_tokens: int, vocabulary: int) -> LanguageCorpus:
    """Return a corpus of words sampled uniformly from a vocabulary."""
    names = (EOS, *(f"word{i}" for i in range(1, vocabulary)))
    tokens = np.random.default_rng(0).integers(0, vocabulary, num_tokens, dtype=np.int32)
    return LanguageCorpus(
        name="synthetic",
        train=tokens,
        valid=tokens,
        test=tokens,
        vocabulary=Vocabulary(names),
        source="chance",
    )


def _candidate(name: str, model: str, chosen: LanguageSettings, vocabulary: int) -> Candidate:
    corpus = synthetic_corpus(tokens_per_step(chosen) * _SEGMENTS + 1, vocabulary)
    experiment = PTB(chosen)
    spec = make_spec(model, chosen)
    learner = make_learner(experiment, spec, corpus, corpus.vocabulary)

    def prepare() -> Ready:
        state, update = trainer(learner, make_fit_settings(experiment, spec, learner))
        batches = cycle(enumerate(learner.train_batches(0)))

        def step() -> TrainState:
            nonlocal state
            index, batch = next(batches)
            state = jax.block_until_ready(update(state, batch, index))
            return state

        return Ready(step)

    return Candidate(name, prepare)


def trainer(
    learner: Learner, fit: FitSettings
) -> tuple[TrainState, Callable[[TrainState, Batch, int], TrainState]]:
    """Return the initial state, and a function (state, batch, index) -> next state for the first epoch."""
    keys = seed_keys(fit.seeds)
    rates = jnp.asarray(fit.learning_rate(0, np.zeros((0, len(fit.seeds)))), jnp.float32)
    scheduled, average = learner.scheduled(0), np.zeros(len(fit.seeds), bool)
    update = make_step(learner, fit.optimizer, OneDevice())
    state = start_state(learner, fit.optimizer, keys)
    return state, lambda state, batch, index: update(
        state, batch, keys.train, index, rates, scheduled, average
    )
