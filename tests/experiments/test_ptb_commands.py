"""`explain`, `generate`, `evaluate` print what the models in a run folder say; errors of one line."""

import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dynskip_jax.analysis import reading
from dynskip_jax.functional import Dynamic
from experiments import ptb, ptb_runs, ptb_text

SMALL = (
    *("--preset", "small", "--features", 8, "--agent-features", 4),
    *("--num-steps", 5, "--batch-size", 4, "--epochs", 1),
)
TEXT = "a b b c h"


@pytest.fixture(scope="module")
def compared(command, corpus_folder, tmp_path_factory):
    """A finished comparison of two models, two seeds each."""
    folder = tmp_path_factory.mktemp("ptb") / "run"
    arguments = ("--data", corpus_folder, "--compare", "lstm,dynamic:3", "--seeds", 2, *SMALL)
    outcome = command(ptb.main, *arguments, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    return folder


def test_explain_prints_what_the_models_say(command, compared):
    outcome = command(ptb.main, "explain", "--run-dir", compared, "--text", TEXT, "--seed", 1)
    assert outcome.status == 0, outcome.err
    models = ptb_runs.load(compared, 1)
    tokens, words = ptb_text.encode(models["lstm"].vocabulary, TEXT)
    assert words == ["<eos>", *TEXT.split()]
    for name, trained in models.items():
        # The oracle: one call of the model on the text, and a softmax in float64.
        output = trained.model(jnp.asarray(tokens)[None], deterministic=True)
        logits = np.asarray(output.logits[0], float)
        probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        best = probabilities[-1].argmax()
        listed = f"next word by {name}: {trained.vocabulary.tokens[best]} {probabilities[-1, best]:.3f}"
        assert listed in outcome.out
        for position, token in enumerate(tokens[1:]):
            assert f"{probabilities[position, token]:.4f}" in outcome.out
    assert any(trained.shows_choices for trained in models.values())
    (picture,) = re.findall(r"picture: (\S+)", outcome.out)
    with open(picture, "rb") as file:
        assert file.read(8) == b"\x89PNG\r\n\x1a\n"


def test_seeds_are_different_models(compared):
    first, second, default = (ptb_runs.load(compared, seed)["dynamic:3"].model for seed in (0, 1, None))
    tables = [np.asarray(model.embedding.embedding[...]) for model in (first, second, default)]
    assert not np.array_equal(tables[0], tables[1])
    np.testing.assert_array_equal(tables[0], tables[2])


def test_unknown_words_are_named(command, compared, tmp_path):
    outcome = command(ptb.main, "explain", "--run-dir", compared, "--text", "a zebra")
    assert outcome.status == 2 and "zebra" in outcome.err
    # In a vocabulary that has <unk>, they are read as that.
    folder = tmp_path / "unk"
    shutil.copytree(compared / "lstm", folder)
    file = folder / ptb_runs.VOCABULARY
    file.write_text(file.read_text().replace('"h"', '"<unk>"'))
    outcome = command(ptb.main, "explain", "--run-dir", folder, "--text", "a zebra")
    assert outcome.status == 0, outcome.err
    assert "zebra: read as <unk>" in outcome.out


def test_generate_writes_words_of_the_vocabulary(command, compared):
    arguments = ("generate", "--run-dir", compared, "--words", 30, "--text", "a b")
    outcomes = [command(ptb.main, *arguments, "--key", key) for key in (1, 1, 2)]
    assert all(outcome.status == 0 for outcome in outcomes)
    assert outcomes[0].out == outcomes[1].out != outcomes[2].out
    assert outcomes[0].out.startswith("a b")
    assert set(outcomes[0].out.split()) <= set("abcdefgh")


def test_generated_text_does_not_begin_with_the_end_of_a_line(command, compared, monkeypatch):
    eos = ptb_runs.load(compared, None)["lstm"].vocabulary.index["<eos>"]
    written = iter([[eos, 0 if eos else 1], [eos]])
    monkeypatch.setattr(ptb_text, "generate", lambda *_, **__: (np.array(next(written)), None))
    first = command(ptb.main, "generate", "--run-dir", compared, "--model", "lstm")
    assert first.status == 0 and first.out.strip() in set("abcdefgh")
    assert command(ptb.main, "generate", "--run-dir", compared).out == "\n"


def test_generated_words_are_drawn_from_the_models_distribution(compared):
    # The chance of each second word is a sum over the first; 4,000 texts of two words come close to it.
    trained = ptb_runs.load(compared, None)["lstm"]
    prompt = jnp.array([0])

    def probabilities(tokens):
        found = reading.read_tokens(trained.model, jnp.asarray(tokens), jax.random.key(0))
        return np.exp(np.asarray(found.log_probs[-1], float))

    first = probabilities([0])
    second = sum(p * probabilities([0, word]) for word, p in enumerate(first))
    draw = jax.jit(jax.vmap(lambda key: reading.generate(trained.model, prompt, 2, key)[0]))
    texts = np.asarray(draw(jax.random.split(jax.random.key(3), 4000)))
    for column, expected in ((0, first), (1, second)):
        counts = np.bincount(texts[:, column], minlength=len(expected)) / len(texts)
        np.testing.assert_allclose(counts, expected, atol=4 * np.sqrt(0.25 / 4000))


@pytest.mark.slow
def test_a_sweep_is_read_with_the_value_that_was_selected(command, corpus_folder, tmp_path):
    folder = tmp_path / "sweep"
    arguments = ("--data", corpus_folder, "--model", "dynamic:3", "--mix", "0.2,0.9", "--max-skip", "1,3")
    outcome = command(ptb.main, *arguments, *SMALL, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    result = json.loads((folder / "result.json").read_text())
    trained = ptb_runs.load(folder, None)["dynamic:3"]
    selected = result["selected"]
    assert trained.model.stack.layers[-1].cell.skip == Dynamic(3, selected["mix"])
    assert int(trained.policy_mask.sum()) == selected["max_skip"]
    assert command(ptb.main, "explain", "--run-dir", folder, "--text", "a b c").status == 0


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("explain", "--run-dir", "nowhere"), ("nowhere", "--run-dir")),
        (("explain", "--text", " "), ("--text",)),
        (("explain", "--seed", 7), ("--seed 7", "0, 1")),
        (("generate", "--words", 0), ("--words",)),
        (("generate", "--temperature", 0), ("--temperature",)),
        (("generate", "--model", "fixed:2"), ("fixed:2", "lstm")),
        (("evaluate", "--cache", 0), ("--cache",)),
        (("evaluate", "--weight", 1), ("--weight", "below 1")),
        (("evaluate", "--flatness", "0.1,x"), ("--flatness", "0.1,x")),
        (("evaluate", "--flatness=-1"), ("--flatness", "at least 0")),
        (("evaluate", "--learning-rate=-1"), ("--learning-rate", "at least 0")),
        (("evaluate", "--method", "dynamic", "--steps", 0), ("--steps",)),
    ],
)
def test_what_the_user_can_put_right_is_one_line(command, compared, arguments, parts):
    if "--run-dir" not in arguments:
        arguments = (*arguments, "--run-dir", compared)
    outcome = command(ptb.main, *arguments)
    assert outcome.status == 2
    assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1
    for part in parts:
        assert part in outcome.err


def evaluated(command, folder, data, method, *flags):
    """What `evaluate` prints: for each model (dev, test) without and with, and the pair chosen."""
    outcome = command(ptb.main, "evaluate", "--run-dir", folder, "--data", data, "--method", method, *flags)
    assert outcome.status == 0, outcome.err
    lines = [line.split("│")[1:-1] for line in outcome.out.splitlines() if "±" in line]
    rows = [[cell.strip() for cell in cells] for cells in lines]
    assert [name for name, *_ in rows[1::2]] == [f"+ {method}"] * len(rows[::2])
    return {
        without[0]: (without[1:3], with_it[1:3], re.findall(r"= (\S+?)(?:,|$)", with_it[3]))
        for without, with_it in zip(rows[::2], rows[1::2], strict=True)
    }


def in_training(folder, model):
    """Dev and test perplexity as `result.json` has them."""
    metrics = json.loads((folder / model.replace(":", "-") / "result.json").read_text())["metrics"]
    found = [metrics[f"{split}_perplexity"] for split in ("dev", "test")]
    return [f"{metric['mean']:.2f} ± {metric['std']:.2f}" for metric in found]


@pytest.mark.slow
def test_evaluate_prints_what_training_found_and_what_a_cache_adds(command, compared, corpus_folder):
    def rows(flatness, weight):
        flags = ("--cache", 6, "--flatness", flatness, "--weight", weight)
        return evaluated(command, compared, corpus_folder, "cache", *flags)

    found = rows("0,1.5", "0.2,0.7")
    assert list(found) == ["lstm", "dynamic:3"]
    for model, (without, with_cache, (flatness, weight)) in found.items():
        assert without == in_training(compared, model)
        # θ and λ are the best pair on dev: alone it gives the same row, and another pair is no better.
        assert rows(flatness, weight)[model] == found[model]
        other = rows(1.5 - float(flatness), weight)[model][1]
        assert float(other[0].split()[0]) >= float(with_cache[0].split()[0])


@pytest.mark.slow
def test_dynamic_evaluation_keeps_the_rate_that_is_best_on_dev(command, compared, corpus_folder):
    def rows(rates):
        flags = ("--steps", 10, "--decay", 0.1, "--learning-rate", rates)
        return evaluated(command, compared, corpus_folder, "dynamic", *flags)

    both, moved = rows("0.003,0"), rows(0.003)
    for model, (without, with_it, chosen) in both.items():
        # Parameters that stay are the trained ones, as in training; on these few words they are the better.
        assert without == with_it == in_training(compared, model)
        assert chosen == ["0", "0.1"]
        assert float(moved[model][1][0].split()[0]) > float(without[0].split()[0])
        assert moved[model][2] == ["0.003", "0.1"]


def test_evaluate_wants_the_data_of_the_run(command, compared, corpus_folder, tmp_path):
    shutil.copytree(corpus_folder, tmp_path / "other")
    (tmp_path / "other" / "test.txt").write_text("a b\n")
    outcome = command(ptb.main, "evaluate", "--run-dir", compared, "--data", tmp_path / "other")
    assert outcome.status == 2 and "other data (letters)" in outcome.err and "--data" in outcome.err


def test_an_unfinished_run_is_refused(command, compared, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(compared / "lstm", folder)
    (folder / "result.json").unlink()
    outcome = command(ptb.main, "explain", "--run-dir", folder)
    assert outcome.status == 2 and "not finished" in outcome.err


def test_training_goes_on_from_a_finished_run(command, compared, corpus_folder, tmp_path):
    arguments = ("--data", corpus_folder, "--model", "lstm", "--seeds", 2, *SMALL, "--average", "always")
    folder = tmp_path / "fine-tuned"
    outcome = command(ptb.main, *arguments, "--start-from", compared, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    before, after = (
        json.loads((path / "result.json").read_text())["metrics"]["dev_perplexity"]["mean"]
        for path in (compared / "lstm", folder)
    )
    assert after < before  # a second epoch, on a text that one epoch does not exhaust
    refused = command(
        ptb.main,
        *arguments[:3],
        "fixed:2",
        *arguments[4:],
        "--start-from",
        compared,
        "--run-dir",
        tmp_path / "no",
    )
    assert refused.status == 2 and "fixed:2" in refused.err
