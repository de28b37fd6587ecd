"""Check controls of a learned choice and words copied by it: what is trained, and what the table shows."""

import json
import re
import shutil

import jax
import numpy as np
import pytest
from commands import SMALL_PTB, assert_user_error, load, row_of, settings_of, write_result

from dynskip_jax.experiment import find_experiment
from dynskip_jax.run import learnt_rates
from dynskip_jax.settings import fill
from dynskip_jax.spec import make_spec
from dynskip_jax.trained import load_models
from dynskip_jax.training.step import seed_keys

PTB = find_experiment("ptb")
FAR = ("--model", "dynamic:4", "--agent", "content", "--copy", "expected")


@pytest.fixture(scope="module")
def copying(command, corpus_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("controls") / "copying"
    outcome = command(PTB, "--data", corpus_folder, *FAR, *SMALL_PTB, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    return folder, outcome


@pytest.mark.slow
def test_a_model_that_copies_is_trained_explained_and_writes(command, copying):
    folder, outcome = copying
    assert "dynamic:4" in outcome.out and row_of(folder)["copy"] == "expected"
    shares = row_of(folder)["metrics"]["dev_agent_share_1"]["mean"]
    np.testing.assert_allclose(sum(shares), 1, rtol=1e-5)
    explained = command(PTB, "explain", "--run-dir", folder, "--text", "a b c a b")
    assert explained.status == 0, explained.err
    written = command(PTB, "generate", "--run-dir", folder, "--words", 5)
    assert written.status == 0 and written.out.split(), written.err


@pytest.mark.slow
def test_the_agent_of_a_model_that_copies_learns_from_what_is_copied(
    command, corpus_folder, tmp_path, copying
):
    """Training changes the agent that copies.

    The untrained control stays at its initial parameters, although it has a gradient.
    """
    arguments = ("--data", corpus_folder, *FAR, *SMALL_PTB, "--control", "untrained")
    outcome = command(PTB, *arguments, "--run-dir", tmp_path / "untrained")
    assert outcome.status == 0, outcome.err
    assert "control: untrained" in " ".join(outcome.out.split())
    for folder, learns in ((copying[0], True), (tmp_path / "untrained", False)):
        (found,) = load_models(folder).values()
        drawn = found.learner.init(seed_keys((0,)).init[0])
        agents = [params["stack"]["cells"][0]["agent"] for params in (found.params, drawn)]
        moved = jax.tree.map(lambda a, b: float(np.abs(a - b).max()), *agents)
        assert (max(jax.tree.leaves(moved)) > 1e-4) == learns


@pytest.mark.slow
def test_there_is_nothing_to_exchange_where_no_choice_enters(command, corpus_folder, tmp_path, copying):
    folder, _ = copying
    shutil.copytree(folder, tmp_path / "run")
    config = load(folder / "config.json")
    config["settings"]["agent"]["mix"] = 0.0
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    write_result(tmp_path / "run", load(folder / "result.json"))
    outcome = command(PTB, "oracle", "--run-dir", tmp_path / "run", "--data", corpus_folder)
    assert outcome.status == 0, outcome.err
    text = " ".join(outcome.out.split())
    assert "the agent goes back to the same word at " in text and "by a probe" not in text
    assert "No choice to exchange: whatever dynamic:4 chooses, it says the same." in text


@pytest.mark.slow
def test_probabilities_by_which_words_are_copied_are_exchanged(command, corpus_folder, copying):
    folder, _ = copying
    flags = ("--run-dir", folder, "--data", corpus_folder, "--rows", 4, "--steps", 60, "--split", "train")
    outcome = command(PTB, "oracle", *flags, "--beside", folder)
    assert outcome.status == 0, outcome.err
    text = " ".join(outcome.out.split())
    for line in (
        "by the model's own probabilities",
        "by the likeliest k alone",
        "by all of them alike",
        "always 1",
    ):
        assert line in text
    assert "mean of 60 words" in text
    number = r"[+-]\d\.\d{4}"
    gain = (
        rf"Its own probabilities gain {number} ± \d\.\d{{4}} nats \(95 %\) over those that it had in another"
    )
    assert re.search(gain, text)
    # The agent that --beside names is the same one here.
    table = "".join(outcome.out.split())
    loss = table.split("bythemodel'sownprobabilities│")[1].split("│")[0]
    assert re.search(rf"bythoseofseed0of[^│]*│{re.escape(loss)}│\+0\.0000│", table)


@pytest.mark.slow
def test_hard_choices_go_on_from_expected_ones(command, corpus_folder, tmp_path, copying):
    hard = (*FAR[:-1], "chosen", "--mix", 0, "--rl-coef", 0, "--stride", 2, "--zoneout", "0.1,0.2")
    arguments = ("--data", corpus_folder, *hard, *SMALL_PTB, "--start-from", copying[0])
    outcome = command(PTB, *arguments, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    for part in ("dynamic:4, by content", "stride 2, copies: chosen"):  # a table cell can have several lines
        assert part in outcome.out
    row = row_of(tmp_path / "run")["metrics"]
    assert np.nonzero(row["dev_agent_share_1"]["mean"])[0].tolist() in ([0], [2], [0, 2])
    assert row["test_perplexity_sampled"]["mean"] > 1  # λ is 0, but the choice determines what is copied


@pytest.mark.slow
def test_a_histogram_has_the_rates_of_the_agent_it_is_named_for(command, corpus_folder, tmp_path, copying):
    folder = tmp_path / "histogram"
    arguments = ("--data", corpus_folder, *FAR, *SMALL_PTB, "--control", "histogram")
    outcome = command(PTB, *arguments, "--control-of", copying[0], "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    shares = row_of(copying[0])["metrics"]["dev_agent_share_1"]["mean"]
    np.testing.assert_allclose(load(folder / "config.json")["settings"]["rates"], shares, atol=1e-6)
    assert "control_of" not in settings_of(folder)
    # Another run with the same settings may take its rates from another agent.
    again = ("--config", folder / "config.json", "--control-of", copying[0], "--print-config")
    assert command(PTB, *again).status == 0
    # Reading the control needs no flag for the other run.
    explained = command(PTB, "explain", "--run-dir", folder, "--text", "a b c")
    assert explained.status == 0, explained.err


def test_the_rates_of_a_histogram_are_the_shares_of_an_agent_on_dev(compared_ptb):
    folder = compared_ptb.folder / "dynamic-3"
    rates = learnt_rates(folder, "ptb")
    shares = row_of(folder)["metrics"]["dev_agent_share_1"]["mean"]
    assert len(set(shares)) > 1
    np.testing.assert_allclose(rates, shares, atol=1e-6)
    found = fill(PTB.settings, {"control": "histogram", "rates": rates})
    np.testing.assert_allclose(make_spec("dynamic:3", found).skip.rates, shares, atol=1e-6)


@pytest.mark.slow
def test_the_mean_and_random_choices_are_models_too(command, corpus_folder, tmp_path):
    arguments = ("--data", corpus_folder, "--compare", "mean:3,random:3,dynamic:3", "--control", "mean")
    outcome = command(PTB, *arguments, *SMALL_PTB, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    assert "dynamic:3, control: mean" in " ".join(outcome.out.split())


@pytest.mark.parametrize(
    ("given", "model", "matter"),
    [
        ({}, "dynamic:3", True),
        ({}, "lstm", False),
        ({"mix": 0.0}, "dynamic:3", False),
        ({"mix": (0.0, 0.5)}, "dynamic:3", True),
        ({"mix": 0.0, "copy": "expected", "agent": "content"}, "dynamic:3", False),
        ({"mix": 0.0, "copy": "chosen", "agent": "content"}, "dynamic:3", True),
        ({"mix": 0.0, "copy": "chosen"}, "lstm", False),
        ({"control": "mean"}, "dynamic:3", False),
        ({"control": "histogram", "rates": (1.0, 1.0, 1.0)}, "dynamic:3", True),
    ],
)
def test_what_is_sampled_is_evaluated_where_it_changes_something(given, model, matter):
    found = fill(PTB.settings, {**PTB.presets["sketch"], **given})
    assert make_spec(model, found).choices_matter() == matter


def test_a_row_says_of_a_model_only_what_is_its_own():
    given = {"copy": "expected", "agent": "content", "control": "untrained"}
    found = fill(PTB.settings, {**PTB.presets["sketch"], **given})
    assert dict(make_spec("dynamic:3", found).variant) == given
    assert (
        dict(make_spec("attention:3", found).variant)
        == dict(make_spec("mean:3", found).variant)
        == {"copy": "expected"}
    )
    assert dict(make_spec("fixed:3", found).variant) == dict(make_spec("lstm", found).variant) == {}


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--model", "lstm", "--control", "untrained"), "--control has no effect"),
        (("--model", "lstm", "--copy", "expected"), "--copy has no effect"),
        (("--model", "dynamic:3", "--control", "histogram"), "--control-of"),
        (("--model", "dynamic:3", "--stride", "3"), "leaves dynamic:3 nothing but k = 1"),
        (("--model", "dynamic:3", "--control-of", "nowhere"), "--control-of"),
    ],
    ids=[
        "no choice",
        "nothing to copy by",
        "no rates",
        "one choice",
        "no such run",
    ],
)
def test_a_control_that_makes_no_sense_is_refused(command, corpus_folder, here, arguments, named):
    outcome = command(PTB, "--data", corpus_folder, *arguments, *SMALL_PTB)
    assert_user_error(outcome, named)
    assert not list(here.iterdir())
