"""Check that the command `experiments.agreement` trains and reads texts at a tiny size."""

import pytest
from commands import assert_user_error, row_of

from dynskip_jax.errors import UserError
from dynskip_jax.experiments import agreement
from dynskip_jax.experiments.settings import resolve

SMALL = ("--features", 4, "--agent-features", 2, "--batch-size", 20, "--devices", 1, "--train-examples", 60)


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr("dynskip_jax.data.agreement.DEFAULT_SIZES", {"train": 60, "dev": 20, "test": 20})


@pytest.mark.slow
def test_it_trains_says_how_often_choices_are_right_and_reads_a_text(command, few, tmp_path):
    arguments = ("--length", 5, "--model", "dynamic:4", *SMALL, "--relaxed-epochs", 1, "--epochs", 2)
    outcome = command(agreement.Agreement, *arguments, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    (exact,) = row_of(tmp_path / "run")["metrics"]["test_exact_decisions"]["per_seed"]
    assert 0 <= exact <= 1
    read = command(agreement.Agreement, "explain", "--run-dir", tmp_path / "run")
    assert read.status == 0, read.err
    wrong = command(agreement.Agreement, "explain", "--run-dir", tmp_path / "run", "--text", "w1 zebra )a")
    assert_user_error(wrong, "zebra")


def test_a_text_that_it_cannot_read_is_refused():
    settings = resolve(agreement.Agreement.settings_type, agreement.Agreement.presets, "relaxed", {}).settings
    experiment = agreement.Agreement(settings)
    for text, named in (("w1 zebra )a", "zebra"), ("w1 w2 )a", "closes a clause")):
        with pytest.raises(UserError, match=named):
            experiment.encode(None, text)
