"""Check flags for texts of one's own: each refusal names the flag that helps, in one line."""

import pytest
from commands import assert_user_error, execute, finished_run, succeed

from dynskip_jax.cli.main import read_training
from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.experiments.classify.task import LabelledTexts

CLASSIFY = find_experiment("classify")
ROWS = "well, fine;pos\noh, dull;neg\n"


@pytest.mark.parametrize(
    ("text", "flags", "parts"),
    [
        (ROWS, ("--text-column", 0, "--label-column", 1), ["comma and semicolon", "--delimiter"]),
        (ROWS, ("--text-column", 2019, "--label-column", 1), ["no column '2019'", "--text-column"]),
        (ROWS, ("--delimiter", "colon"), ["--delimiter", "semicolon"]),
        (f"# by hand\ntext;label\n{ROWS}", (), ["line 1: no column 'text'", "--text-column"]),
    ],
)
def test_texts_that_are_not_clear_name_a_flag(tmp_path, text, flags, parts):
    (tmp_path / "x.csv").write_text(text)
    outcome = execute(CLASSIFY, "--data", tmp_path / "x.csv", "--run-dir", tmp_path / "run", *flags)
    assert_user_error(outcome, *parts)


def test_what_was_found_is_told_before_training(tmp_path):
    labels = ["bar", "café"]
    rows = [f"text {i % 5};{labels[i % 2]}" for i in range(100)]
    (tmp_path / "x.csv").write_text("\n".join(["text;label", " ;bar", *rows]), encoding="utf-8")
    resolved, _ = read_training(CLASSIFY, ["--data", str(tmp_path / "x.csv")])
    lines = "\n".join(LabelledTexts.load(resolved.settings).lines)
    assert "left out: texts without words (1; first" in lines
    assert "train has the same texts, which makes scores too good: 10 of 10 of dev" in lines


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    here = tmp_path_factory.mktemp("texts")
    rows = [f"a {word} film {i};{word}" for i in range(20) for word in ("good", "bad")]
    (here / "x.csv").write_text("\n".join(["text;label", *rows]))
    sizes = ("--features", 2, "--embedding-features", 2, "--epochs", 1, "--batch-size", 8)
    flags = ("--data", here / "x.csv", "--model", "lstm", *sizes, "--devices", 1)
    return finished_run(CLASSIFY, here / "run", *flags).folder


@pytest.mark.parametrize(
    ("first", "is_table"),
    [
        ("text;label", True),
        ("label,text,more", True),
        ('\ufeff"text","label"', True),
        ("text", True),
        ('{"text": "a film", "label": "good"}', True),
        ("a text, well labelled", False),
        ("text messages, a film", False),
        ("{text}", False),
    ],
)
def test_a_table_is_no_text_to_predict(first, is_table, trained):
    """Regression: header and labels were read as texts, without a word."""
    lines = f"{first}\na good film\n"
    outcome = succeed(CLASSIFY, "predict", "--run-dir", trained, standard_input=lines)
    assert ("write only its column text" in outcome.err) == is_table
    assert len(outcome.out.splitlines()) == 2  # as many as there are lines


@pytest.mark.parametrize("unknown", [0, 1, 3])
def test_texts_of_unknown_words_are_counted(unknown, trained):
    lines = "a good film\n\n" + "qwerty asdf\n" * unknown + "qwerty film\n"
    outcome = succeed(CLASSIFY, "predict", "--run-dir", trained, standard_input=lines)
    counted = [line for line in outcome.err.splitlines() if "no word that train has" in line]
    assert [line.split()[-1] for line in counted] == [str(unknown)][: unknown > 0]
