"""Check the command `oracle` on finished runs of language models and number prediction."""

import json
import shutil

import pytest
from commands import (
    COMMANDS,
    SMALL_AGENT,
    SMALL_PTB,
    assert_user_error,
    finished_run,
    load,
    snapshot,
    write_result,
)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ptb", "numbers"])
def test_it_says_what_each_choice_costs_and_writes_nothing(name, command, request, tmp_path_factory):
    """Agents of seeds that were trained together, and of another run, are compared, too."""
    task, run = {"numbers": ("number_prediction", "finished_numbers"), "ptb": ("ptb", "compared_ptb")}[name]
    folder = request.getfixturevalue(run).folder
    before = snapshot(folder)
    beside = ()
    if name == "ptb":
        data, other = request.getfixturevalue("corpus_folder"), tmp_path_factory.mktemp("ptb") / "run"
        given = ("--data", data, "--model", "dynamic:3", *SMALL_PTB, *SMALL_AGENT, "--epochs", 2)
        beside = ("--beside", finished_run(COMMANDS["ptb"], other, *given).folder)
    # Without --data, the command uses the data folder of the run.
    flags = ("--run-dir", folder, "--split", "train", "--rows", 4, "--steps", 100)
    outcome = command(COMMANDS[task], "oracle", *flags, "--of-seed", 1, *beside)
    assert outcome.status == 0, outcome.err
    for line in ("by the agent", "at random", "always 1", "in hindsight", "a probe that sees s(t)"):
        assert line in outcome.out
    assert "nats (95 %) over choices that look at nothing" in " ".join(outcome.out.split())
    assert "by the agent in another text" in outcome.out
    assert f"{2 + len(beside) // 2} agents, two by two, agree on " in outcome.out
    assert "by their rates alone" in outcome.out
    assert ("the agent goes back to the same word at " in outcome.out) == (name == "ptb")
    text = "".join(outcome.out.split())
    for other in ("seed 0", *(f"seed 0 of {run}" for run in beside[1:])):
        assert "".join(f"by {other}, reading the same text".split()) in text
    assert snapshot(folder) == before


@pytest.mark.slow
def test_only_what_the_agent_may_choose_is_tried(command, corpus_folder, tmp_path):
    """A stride of 2 leaves k = 1, 3 and 5. A run with another λ is refused: it is not another seed."""
    data, run = ("--data", corpus_folder), tmp_path / "run"
    finished_run(COMMANDS["ptb"], run, *data, "--model", "dynamic:6", "--stride", 2, *SMALL_PTB)
    ceiling = (COMMANDS["ptb"], "oracle", "--run-dir", run, *data, "--rows", 4, "--split", "train")
    outcome = command(*ceiling, "--steps", 100)
    assert outcome.status == 0, outcome.err
    for k in range(1, 7):
        assert outcome.out.count(f"always {k} ") == (2 if k % 2 else 0), outcome.out
    other = shutil.copytree(run, tmp_path / "other")
    config = load(other / "config.json")
    config["settings"]["agent"]["mix"] = 1.0
    (other / "config.json").write_text(json.dumps(config))
    write_result(other, load(other / "result.json"))
    said = "holds a dynamic:6 with mix 1.0, here it is 0.5: only other seeds of the same model"
    assert_user_error(command(*ceiling, "--beside", other), said)


def test_what_is_wrong_is_said_in_one_line(command, compared_ptb, finished_numbers, corpus_folder, tmp_path):
    folder = compared_ptb.folder
    ptb = (COMMANDS["ptb"], "oracle", "--run-dir", folder, "--data", corpus_folder)
    assert_user_error(command(*ptb, "--model", "lstm"), "samples no choices: train one such as dynamic:5")
    assert_user_error(command(*ptb, "--model", "fixed:9"), "there is no --model fixed:9")
    assert_user_error(command(*ptb, "--layer", 2), "layer 2 samples no choices")
    assert_user_error(command(*ptb, "--split", "valid"), "'valid'")
    others = (
        (folder / "lstm", "has lstm: there is no dynamic:3 to set beside"),
        (finished_numbers.folder, "holds a run of number_prediction, not of ptb"),
    )
    for other, words in others:
        assert_user_error(command(*ptb, "--beside", other), words)


def test_a_probe_needs_more_than_a_few_choices(command, finished_numbers):
    numbers = (COMMANDS["number_prediction"], "oracle", "--run-dir", finished_numbers.folder)
    outcome = command(*numbers)
    assert outcome.status == 2 and outcome.err.splitlines()[-1].startswith("error: 20 choices are too few")
