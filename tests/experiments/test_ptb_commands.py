"""Check that `explain`, `generate` and `evaluate` print what a run's models compute."""

import re
import shutil
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from commands import (
    PTB,
    SMALL_PTB,
    assert_picture,
    assert_user_error,
    execute,
    finished_run,
    forge,
    load,
    row_of,
    succeed,
    unfinish,
)
from compiled import compiled

from benchmarks.choice import choice
from dynskip_jax.analysis import reading
from dynskip_jax.runs.learner import VOCABULARY
from dynskip_jax.runs.load import load_models, load_run

TEXT = "a b b c h"  # other texts have the same length, which is compiled once


@pytest.fixture
def compared(compared_ptb, tmp_path):
    """Return a copy of a finished comparison of two models with two seeds each; a test may write to
    it.
    """
    shutil.copytree(compared_ptb.folder, tmp_path / "compared")
    return tmp_path / "compared"


def test_explain_prints_and_shows_what_the_models_say(compared):
    arguments = ("explain", "--run-dir", compared, "--text", TEXT, "--of-seed", 1)
    outcome = succeed(PTB, *arguments)
    printed = np.array([float(number) for number in re.findall(r"0\.\d+", outcome.out)])
    for name, found in load_models(compared, seed=1).items():
        tokens, words = found.encode(TEXT)
        assert words == ["<eos>", *TEXT.split()]
        # Reference: one call of the model on the text, and a softmax in float64.
        output = compiled(found.model)(
            jnp.asarray(tokens)[None], policy=found.policy, deterministic=True
        )
        logits = np.asarray(output.logits[0], float)
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        best = probabilities[-1].argmax()
        listed = (
            f"{name}: next word {found.vocabulary.tokens[best]!r} {probabilities[-1, best]:.3f}"
        )
        assert listed in outcome.out
        for position, token in enumerate(tokens[1:]):
            # Of three digits.
            assert np.abs(printed / probabilities[position, token] - 1).min() < 0.006
    (picture,) = (compared / "plots").glob("explain-dynamic-3-seed-1-a-b-b-c-h-*.png")
    assert f"picture: {picture}" in outcome.out
    assert_picture(picture)


def test_unknown_words_and_models_that_are_not_finished_are_named(compared):
    explain = (PTB, "explain", "--run-dir", compared)
    outcome = execute(*explain, "--text", "a b b c zebra")
    assert outcome.status == 2 and "zebra" in outcome.err
    # They are read as <unk> by a model that was trained with it.
    for folder in (compared / "lstm", compared / "dynamic-3"):
        file = folder / VOCABULARY
        file.write_text(file.read_text().replace('"h"', '"<unk>"'))
        forge(folder)
    forge(compared)
    outcome = succeed(*explain, "--text", "a zebra b zebra c")
    assert outcome.out.count("not known") == 1
    assert "not known, and read as <unk>: zebra\n" in outcome.out
    unfinish(compared / "dynamic-3")
    unfinish(compared)
    outcome = succeed(*explain, "--text", "a b")
    assert "dynamic:3: not finished, after 2 epochs, left out" in outcome.err
    unfinish(compared / "lstm")
    forge(compared)
    assert_user_error(execute(*explain), "not finished")


def test_generate_writes_words_of_the_vocabulary(compared_ptb):
    folder = compared_ptb.folder
    how = ("generate", "--run-dir", folder, "--model", "lstm", "--words", 30, "--text", "a b")
    one, same, other = (succeed(PTB, *how, "--key", key).out for key in (1, 1, 2))
    assert one == same != other and one.startswith("a b") and set(one.split()) <= set("abcdefgh")


@pytest.mark.parametrize("without", [[], [2, 5]])
def test_generated_words_are_drawn_from_the_models_distribution(without, compared_ptb):
    # The probability of each second word is a sum over the first words. The frequencies in 4,000
    # texts of two words come close to it.
    found = load_run(compared_ptb.folder, "lstm")
    prompt = jnp.array([0])

    @jax.jit
    def log_probs(texts):
        return jax.vmap(lambda t: jax.nn.log_softmax(found.model(t[None]).logits[0, -1]))(texts)

    def allowed(texts):
        probs = np.exp(np.asarray(log_probs(texts), float))
        probs[:, without] = 0
        return probs / probs.sum(axis=1, keepdims=True)

    (first,) = allowed(np.array([[0]]))
    second = first @ allowed(np.array([[0, word] for word in range(len(first))]))
    sample = partial(reading.generate, found.model, prompt, 2, without=without)
    texts = np.asarray(jax.jit(jax.vmap(sample))(jax.random.split(jax.random.key(3), 4000)))
    for column, expected in ((0, first), (1, second)):
        counts = np.bincount(texts[:, column], minlength=len(expected)) / len(texts)
        np.testing.assert_allclose(counts, expected, atol=4 * np.sqrt(0.25 / 4000))


def test_a_text_has_no_unknown_words(compared_ptb, monkeypatch):
    """Regression: nine words in ten of a text were `<unk>`."""
    how = ("generate", "--run-dir", compared_ptb.folder, "--model", "lstm", "--words", 200)
    assert "a" in succeed(PTB, *how).out.split()
    # The corpus has no `<unk>`: another word stands for it.
    monkeypatch.setattr("dynskip_jax.commands.generate.UNK", "a")
    written = succeed(PTB, *how).out.split()
    assert len(written) > 100 and "a" not in written


def evaluated(folder, data, *flags):
    """Run `evaluate`, and return the numbers of each model, which it writes and prints."""
    command = ("evaluate", "--run-dir", folder, "--data", data, *flags)
    outcome = succeed(PTB, *command)
    models = load(folder / "evaluate-cache.json")["models"]
    for model, found in models.items():
        for name in ("dev", "test", "dev_with", "test_with"):
            assert f"{found[name]['mean']:.2f} ± {found[name]['std']:.2f}" in outcome.out
        metrics = row_of(folder / model.replace(":", "-"))["metrics"]
        for split in ("dev", "test"):
            in_training = metrics[f"{split}_perplexity"]["per_seed"]
            np.testing.assert_allclose(found[split]["per_seed"], in_training, rtol=1e-4)
    return models


def test_values_are_chosen_on_dev_whatever_test_says(
    compared_ptb, corpus_folder, monkeypatch, tmp_path
):
    """The perplexities of each pair of values are made up: the best one on dev is the worst on
    test.
    """
    of_pairs = {(1.5, 0.2): 3.0, (1.5, 0.7): 9.0, (0.5, 0.2): 5.0, (0.5, 0.7): 4.0}
    read = []

    def perplexities(model, learner, split, size, *grid):
        read.append((split, *grid))
        found = [[of_pairs[one, two] for two in grid[1]] for one in grid[0]]
        found = np.array([found, found])
        return np.array([6.0, 6.0]), found if split == "dev" else 10 - found

    monkeypatch.setattr("dynskip_jax.commands.evaluate.perplexities", perplexities)
    folder = shutil.copytree(compared_ptb.folder, tmp_path / "run")
    flags = ("--flatness", "0.5,1.5", "--weight", "0.2,0.7", "--model", "lstm")
    succeed(PTB, "evaluate", "--run-dir", folder, "--data", corpus_folder, *flags)
    found = load(folder / "evaluate-cache.json")["models"]["lstm"]
    assert found["chosen"] == [1.5, 0.2] and read[1:] == [("test", (1.5,), (0.2,))]
    assert (found["dev_with"]["mean"], found["test_with"]["mean"]) == (3.0, 7.0)


@pytest.mark.slow
def test_evaluation_keeps_the_values_that_are_best_on_dev(compared, corpus_folder):
    def cached(flatness, weight):
        flags = ("--cache", 6, "--flatness", flatness, "--weight", weight)
        return evaluated(compared, corpus_folder, *flags)

    for model, numbers in cached("0,1.5", "0.2,0.7").items():
        # Given alone, the best pair on dev gives the same numbers, and another θ is not better.
        flatness, weight = numbers["chosen"]
        alone, other = cached(flatness, weight)[model], cached(1.5 - flatness, weight)[model]
        np.testing.assert_allclose(
            alone["test_with"]["per_seed"], numbers["test_with"]["per_seed"], rtol=1e-4
        )
        assert other["dev_with"]["mean"] >= numbers["dev_with"]["mean"]


def test_training_goes_on_from_a_finished_run(compared, corpus_folder, tmp_path):
    folder, data = tmp_path / "fine-tuned", ("--data", corpus_folder, "--seeds", 2)
    how = (*data, *SMALL_PTB, "--epochs", 1, "--average", "always", "--start-from", compared)
    succeed(PTB, *how, "--model", "lstm", "--run-dir", folder)
    dev = lambda path: row_of(path)["metrics"]["dev_perplexity"]["mean"]
    assert dev(folder) < dev(compared / "lstm")  # one epoch does not suffice for this text
    swept, again = (
        (*how, "--model", "lstm", "--learning-rate", rate) for rate in ("0.001,1", "0.000001")
    )
    succeed(PTB, *swept, "--run-dir", tmp_path / "swept")
    succeed(PTB, *again, "--start-from", tmp_path / "swept", "--run-dir", tmp_path / "again")
    np.testing.assert_allclose(dev(tmp_path / "again"), dev(tmp_path / "swept"), rtol=1e-3)
    written = (folder / "result.json").read_bytes()
    for start, number in (((), 2), (("--start-from", folder), 1)):
        other = [*how[: how.index("--start-from")], *start, "--epochs", number]
        refused = execute(PTB, *other, "--model", "lstm", "--run-dir", folder)
        assert_user_error(
            refused, f'settings.training.start_from was "{str(compared)[:40]}', "--run-dir"
        )
    assert (folder / "result.json").read_bytes() == written
    refused = execute(PTB, *how, "--model", "fixed:2", "--run-dir", tmp_path / "no")
    assert_user_error(refused, "--start-from", "fixed:2")
    refused = execute(PTB, *how, "--model", "lstm", "--features", 5, "--run-dir", tmp_path / "no")
    assert_user_error(refused, "--start-from: ", "holds other arrays than the model")
    refused = execute(PTB, *how, "--model", "lstm", "--seeds", 3, "--run-dir", tmp_path / "no")
    assert_user_error(refused, "has 2 seeds: train as many, not 3")
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
@pytest.mark.parametrize("copy", ["none", "expected"])
def test_losses_of_other_choices_are_printed(copy, corpus_folder, tmp_path, capsys):
    flags = ("--model", "dynamic:6", "--stride", 2, "--mix", 0.5, "--copy", copy, *SMALL_PTB)
    finished_run(PTB, tmp_path, "--data", corpus_folder, *flags)
    choice(tmp_path, split="train", rows=4, steps=100)
    said = capsys.readouterr().out
    for k in range(1, 7):
        assert (f"always {k} " in said) == bool(k % 2), said
    for part in ("in hindsight", "a probe that sees s(t)", "in another text"):
        assert part in said
    assert ("the likeliest k" in said) == (copy == "expected")
