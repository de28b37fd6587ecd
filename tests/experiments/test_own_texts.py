"""Check flags for texts of one's own: each refusal names the flag that helps, in one line."""

import itertools

import pytest
from commands import assert_user_error, execute

from dynskip_jax.cli import read_training
from dynskip_jax.experiment import find_experiment
from dynskip_jax.experiments.classify.task import LabelledTexts

CLASSIFY, TAGGER = find_experiment("classify"), find_experiment("conll2003")
ROWS = "well, fine;pos\noh, dull;neg\n"


@pytest.mark.parametrize(
    ("text", "flags", "parts"),
    [
        (ROWS, ("--text-column", 0, "--label-column", 1), ["comma and semicolon", "--delimiter"]),
        (ROWS, ("--text-column", 2019, "--label-column", 1), ["no column '2019'", "--text-column"]),
        (ROWS, ("--delimiter", "colon"), ["--delimiter", "semicolon"]),
        (
            f"text;label\n ;pos\n{ROWS}",
            ("--strict",),
            ["line 2: the text has no words", "--strict"],
        ),
        (f"# by hand\ntext;label\n{ROWS}", ("--strict",), ["line 1: a comment", "--strict"]),
    ],
)
def test_texts_that_are_not_clear_name_a_flag(tmp_path, text, flags, parts):
    (tmp_path / "x.csv").write_text(text)
    outcome = execute(CLASSIFY, "--data", tmp_path / "x.csv", "--run-dir", tmp_path / "run", *flags)
    assert_user_error(outcome, *parts)


def test_tagged_files_have_strict(tmp_path):
    for split, start in itertools.product(
        ("train", "dev", "test"), ("#\tby hand\nso\tX\tB-A\n\n",)
    ):
        (tmp_path / f"{split}.txt").write_text(start)
    flags = ("--dataset", "columns", "--data", tmp_path, "--run-dir", tmp_path / "run", "--strict")
    assert_user_error(execute(TAGGER, *flags), "line 1: a comment, which begins with #", "--strict")


def test_what_was_found_is_told_before_training(tmp_path):
    labels = ["bar", "cafe\u0301"]
    rows = [f"text {i % 5};{labels[i % 2]}" for i in range(100)]
    (tmp_path / "x.csv").write_text("\n".join(["text;label", " ;bar", *rows]), encoding="utf-8")
    resolved, _ = read_training(CLASSIFY, ["--data", str(tmp_path / "x.csv")])
    lines = "\n".join(LabelledTexts.load(resolved.settings).lines)
    assert "left out: texts without words (1; first" in lines
    assert "labels in another Unicode form, now in NFC (50; first" in lines
    assert "train has the same texts, which makes scores too good: 10 of 10 of dev" in lines
