"""Check that the benchmark's training step uses the experiment's presets and all words, and trains."""

import jax
import numpy as np
import pytest

from benchmarks import training_step

FLAGS = dict(features=5, num_layers=1, num_steps=3, batch_size=2)


def test_presets_are_those_of_the_experiment():
    small, paper = (training_step.settings(preset, {}) for preset in ("small", "paper"))
    for chosen, features, tokens in ((small, 200, 400), (paper, 650, 700)):
        assert (chosen.model.features, chosen.model.num_layers) == (features, 2)
        assert training_step.tokens_per_step(chosen) == tokens


def test_words_reach_over_the_whole_vocabulary():
    corpus = training_step.synthetic_corpus(5_000, 100)
    assert len(corpus.vocabulary) == 100
    assert np.unique(corpus.train).tolist() == list(range(100))


@pytest.mark.slow
@pytest.mark.parametrize("model", training_step.MODELS)
def test_steps_train(model):
    chosen = training_step.settings("small", FLAGS)
    by_name = {entry.name: entry for entry in training_step.candidates(chosen, 10)}
    ready = by_name[model].prepare()
    before = jax.tree.map(np.array, ready.step().params)
    after = ready.step()
    changed = jax.tree.map(lambda a, b: bool(np.any(a != np.asarray(b))), before, after.params)
    assert all(jax.tree.leaves(changed))
    assert float(after.sums["nll"].count[0]) == 2 * training_step.tokens_per_step(chosen)
