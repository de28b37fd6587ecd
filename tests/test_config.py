"""Check how a command line is refused: each kind of mistake is one line that names the flag."""

import dataclasses
from pathlib import Path

import pytest

from dynskip_jax.config import Count, call
from dynskip_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Where:
    """Which run is read."""

    run_dir: Path
    """Its folder."""
    of_seed: Count = 1
    """Its seed."""


def predict(place: str, run: Where, output: Path, epochs: Count = 2, fast: bool = False) -> tuple:
    """Predict."""
    return place, run, output, epochs, fast


COMPLETE = ("x:1:2", "--run-dir", "a", "--output", "b")
LONG = "--" + "no-such-flag-" * 12


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("x:1:2", "--output", "b"), "--run-dir is missing"),
        (("x:1:2", "--run-dir", "a"), "--output is missing"),
        (COMPLETE[1:], "FILE:LINE:COLUMN is missing"),
        (("x:1:2", "--output", "--run-dir", "a"), "--output has no value"),
        ((*COMPLETE, "--of-seed", "--fast"), "--of-seed has no value"),
        ((*COMPLETE, "--of_seed"), "--of-seed has no value"),
        ((*COMPLETE, "--epoch", "3"), "options: --epoch, 3. Perhaps you meant: --epochs ("),
        ((*COMPLETE, "--run_dri=3"), "options: --run_dri=3. Perhaps you meant: --run-dir ("),
        (("x:1:2", "--outputs", "b", "--run-dir", "a"), "--outputs. Perhaps you meant: --output ("),
        ((*COMPLETE, LONG), f"options: {LONG} ("),
        ((*COMPLETE, "stray"), "options: stray ("),
        ((*COMPLETE, "--epochs", "x"), "--epochs takes a whole number, got 'x'"),
    ],
)
@pytest.mark.parametrize("columns", ["20", "200"])
def test_a_command_line_is_refused_by_the_name_of_its_flag(
    monkeypatch, capfd, columns, words, message
):
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(UserError) as caught:
        call(predict, "predict", words)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_command_line_that_is_complete_is_read():
    found = call(predict, "predict", [*COMPLETE, "--of_seed=3", "--fast"])
    assert found == ("x:1:2", Where(Path("a"), 3), Path("b"), 2, True)
