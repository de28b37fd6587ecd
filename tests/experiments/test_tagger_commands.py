"""Check the taggers' commands on a few sentences: training, predict, explain, compare and bad
input.
"""

import itertools

import numpy as np
import pytest
import small_runs
from commands import assert_picture, assert_user_error, execute, finished_run, succeed
from pages import code_of, run_code

from dynskip_jax.config.experiment import find_experiment
from dynskip_jax.data.tag_schemes import first_problem

NER = find_experiment("conll2003")
SMALL = (
    "--features",
    4,
    "--embedding-features",
    4,
    "--batch-size",
    10,
    "--epochs",
    2,
    "--devices",
    1,
)
LEARNS = (
    "--model",
    "lstm",
    "--characters",
    "none",
    "--epochs",
    20,
    "--patience",
    0,
    "--learning-rate",
    0.2,
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Write eight sentences, of which dev has the first half and test the second, tagged in
    IOB1.
    """
    folder = tmp_path_factory.mktemp("ner")
    small_runs.write_data("conll2003", folder)
    return folder


@pytest.fixture(scope="module")
def compared(corpus, tmp_path_factory):
    models = ("--compare", "lstm,dynamic:3", "--seeds", 2, "--characters", "none")
    return finished_run(
        NER, tmp_path_factory.mktemp("runs"), "--data", corpus, *models, *SMALL
    ).folder


@pytest.fixture(scope="module")
def tagged(corpus, tmp_path_factory):
    """Train a plain LSTM until it finds some of the entities."""
    return finished_run(
        NER, tmp_path_factory.mktemp("runs") / "tagged", "--data", corpus, *SMALL, *LEARNS
    )


@pytest.fixture
def predict(tagged):
    """Return a function that tags a text with flags, and returns the output."""
    return lambda text, *flags, folder=tagged.folder: execute(
        NER, "predict", "--run-dir", folder, *flags, standard_input=text
    )


# --- predict ---


def test_predict_text(predict):
    first = ["Peter", "lives", "in", "Bönn", ",", "Ω", "☃"]
    outcome = predict(f"{' '.join(first)}\n\nReuters\n")
    assert outcome.err == "predictions by lstm, seed 0\n"
    blocks = [
        [line.split(" ") for line in block.splitlines()] for block in outcome.out.split("\n\n")
    ]
    assert [[word for word, _ in block] for block in blocks[:-1]] == [first, ["Reuters"]]
    for block in blocks:
        assert first_problem([tag for _, tag in block], "BIO2") is None
    assert predict("3.5 (a)\n", "--format", "words").out.split()[::2] == ["3.5", "(a)"]
    assert_user_error(predict("\n \n"), "standard input has no text")


def test_predict_columns_keeps_what_it_reads(predict):
    lines = ["-DOCSTART- -X- -X-", "", "Peter\tNNP", "saw\tVB", "", "", "Bonn\tNNP"]
    out = predict("\n".join(lines) + "\n", "--format", "columns").out
    tags = [line.rpartition("\t")[2] for line in out.splitlines() if "\t" in line]
    assert [
        line.rpartition("\t")[0] if "\t" in line else line for line in out.splitlines()
    ] == lines
    assert tags == [
        line.split(" ")[1] for line in predict("Peter saw\nBonn\n").out.splitlines() if line
    ]


# --- Other commands ---


@pytest.mark.slow
def test_explain_and_the_page_on_ones_own_analysis_read_both_directions(compared):
    text = "Peter saw Bonn and Zürich"
    said = succeed(NER, "explain", "--run-dir", compared, "--text", text).out
    assert "dynamic:3, forward:" in said and "dynamic:3, backward:" in said
    assert "not known, and read as" in said and "perplexity" not in said
    pictures = sorted(
        path.name for path in (compared / "plots").glob("explain-dynamic-3-seed-0-*.png")
    )
    assert len(pictures) == 2 and "backward" in pictures[0] and "forward" in pictures[1]
    page = "docs/own_analysis.md"
    codes = itertools.takewhile(lambda code: "learner_with" not in code, code_of(page))
    names = run_code(page, *codes, run_dir=compared, text=text)
    chosen = [np.asarray(decision.action[0]).tolist() for decision in names["output"].decisions]
    assert [names["reading"].skips, names["reading"].backward] == chosen


def test_gradients_reach_back_as_far_as_the_last_word(tagged, corpus):
    how = ("gradients", "--run-dir", tagged.folder, "--data", corpus, "--steps")
    said = succeed(NER, *how, 3).out
    shares = np.array(
        [line.split("│")[1:-1] for line in said.splitlines() if line.startswith("│")], float
    )
    assert shares[:, 0].tolist() == [1, 2, 3]
    np.testing.assert_allclose(shares[:, 1:].sum(axis=0), 1, atol=0.02)
    assert (shares[2, 1:] > shares[0, 1:]).all()  # networks forget after little training
    assert_picture(tagged.folder / "plots" / "gradients.png")
