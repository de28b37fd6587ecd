"""Whole training steps of `experiments.ptb`: forward, backward, clipping, update, on synthetic words."""

from collections.abc import Mapping
from itertools import cycle

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.contestant import Contestant, Ready
from dynskip_jax.data import LanguageCorpus
from dynskip_jax.data.vocabulary import EOS, Vocabulary
from dynskip_jax.devices.host_memory import keep_freed_memory
from dynskip_jax.devices.parallel import OneDevice
from dynskip_jax.training.step import TrainState, make_step, seed_keys, start_state
from experiments import ptb
from experiments.settings import resolve

MODELS = ("lstm", "dynamic:5")
_SEGMENTS = 4  # as many different batches are read in turn


def settings(preset: str, flags: Mapping[str, int]) -> ptb.Settings:
    """Returns a preset of `experiments.ptb`, with flags given beside it."""
    return resolve(ptb.Flags(preset=preset, **flags), ptb.Settings, ptb.PRESETS, preset)


def tokens_per_step(chosen: ptb.Settings) -> int:
    """Returns how many words a step reads."""
    return chosen.batch_size * chosen.num_steps


def work(chosen: ptb.Settings, vocabulary: int) -> float:
    """About how many milliseconds a step takes on two cores, for the progress bar's estimate."""
    weights = chosen.num_layers * 8 * chosen.features**2 + vocabulary * chosen.features
    return 3 * 2 * tokens_per_step(chosen) * weights / 1e8


def contestants(chosen: ptb.Settings, vocabulary: int) -> list[Contestant]:
    """Returns a training step of each model; a step continues where the one before it stopped.

    From here on the process keeps the memory it frees, as experiments do.
    """
    keep_freed_memory()
    return [_contestant(model, chosen, vocabulary) for model in MODELS]


def synthetic_corpus(num_tokens: int, vocabulary: int) -> LanguageCorpus:
    """Returns words drawn evenly from a vocabulary: speed needs no text."""
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


def _contestant(model: str, chosen: ptb.Settings, vocabulary: int) -> Contestant:
    corpus = synthetic_corpus(tokens_per_step(chosen) * _SEGMENTS + 1, vocabulary)
    task, fit = ptb.PTB(corpus, (model,), chosen).build(model)
    keys = seed_keys(fit.seeds)
    rates = jnp.asarray(fit.learning_rate(0, np.zeros((0, len(fit.seeds)))), jnp.float32)

    def prepare() -> Ready:
        state = start_state(task, fit.optimizer, keys)
        stage, average = task.stage(0), np.zeros(len(fit.seeds), bool)
        update = make_step(task, fit.optimizer, OneDevice())
        batches = cycle(enumerate(task.train_batches(0)))

        def step() -> TrainState:
            nonlocal state
            index, batch = next(batches)
            state = update(state, batch, keys.train, index, rates, stage, average)
            state = jax.block_until_ready(state)
            return state

        return Ready(step)

    return Contestant(model, prepare)
