"""Check the command `oracle` on finished runs of language models and number prediction."""

import pytest
from commands import NUMBERS, PTB, SMALL_PTB, finished_run, snapshot, succeed


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "run"), [(PTB, "compared_ptb"), (NUMBERS, "finished_numbers")])
def test_it_says_what_each_choice_costs_and_writes_nothing(experiment, run, request):
    folder = request.getfixturevalue(run).folder
    before = snapshot(folder)
    # Without --data, the command uses the data folder of the run.
    flags = ("--run-dir", folder, "--split", "train", "--rows", 4, "--steps", 100, "--of-seed", 1)
    outcome = succeed(experiment, "oracle", *flags)
    said = " ".join(outcome.out.split())
    for part in ("by the agent", "at random", "always 1", "in hindsight", "a probe that sees s(t)"):
        assert part in said
    assert "nats (95 %) over choices that look at nothing" in said
    assert "2 agents, two by two, agree on " in said and "by seed 0, reading the same text" in said
    assert ("the agent goes back to the same word at " in said) == (experiment is PTB)
    assert snapshot(folder) == before


@pytest.mark.slow
def test_only_what_the_agent_may_choose_is_tried(corpus_folder, tmp_path):
    data, run = ("--data", corpus_folder), tmp_path / "run"
    finished_run(PTB, run, *data, "--model", "dynamic:6", "--stride", 2, *SMALL_PTB)
    flags = ("--run-dir", run, *data, "--rows", 4, "--split", "train", "--steps", 100)
    outcome = succeed(PTB, "oracle", *flags)
    for k in range(1, 7):
        assert outcome.out.count(f"always {k} ") == (2 if k % 2 else 0), outcome.out
