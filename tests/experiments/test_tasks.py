"""Check each task from its files to its table: it trains, is resumed, and reads a text."""

import gzip
import json

import numpy as np
import pytest
from commands import COMMANDS, assert_user_error, execute, load, row_of

from dynskip_jax import load_run
from dynskip_jax.experiment import find_experiment

SMALL = ("--epochs", 1, "--batch-size", 8, "--features", 4, "--devices", 1)
WORDS = ("it was a film with a good end .", "the bad film never quite works", "they saw the end of a film")


def lines(path, texts):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")


def letters(folder):
    rng = np.random.default_rng(0)
    for split, count in (("train", 72), ("valid", 8), ("test", 8)):
        lines(folder / f"{split}.txt", [" ".join(row) for row in rng.choice(list("abcdefgh"), (count, 4))])


def entities(folder):
    block = "Peter NNP I-NP I-PER\nsaw VBD I-VP O\nBonn NNP I-NP I-LOC\n. . O O\n"
    for name, count in (("train", 12), ("testa", 6), ("testb", 6)):
        lines(folder / f"eng.{name}", ["-DOCSTART- -X- O O\n", *[block] * count])


def columns(folder):
    for name in ("train", "dev", "test"):
        rare = "rare X\n" if name == "test" else ""  # a tag that train lacks
        lines(folder / f"{name}.txt", [f"Peter N\nsaw V\nBonn N\n{rare}"] * 12)


def reviews(folder):
    for name in ("train", "test"):
        found = [json.dumps({"text": WORDS[i % 3], "label": i % 2}) for i in range(20)]
        folder.mkdir(parents=True, exist_ok=True)
        with gzip.open(folder / f"{name}.jsonl.gz", "wt") as file:
            file.write("\n".join(found))


def trees(folder):
    for name in ("train", "dev", "test"):
        lines(folder / f"{name}.txt", [f"({i % 5} (2 it) (3 (1 was) (2 good)))" for i in range(10)])


def pairs(folder):
    heading = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment"
    for name in ("train", "trial", "test_annotated"):
        rows = [
            f"{i}\ta dog runs\ta {'cat' if i % 2 else 'dog'} runs\t{1 + i % 5}\tNEUTRAL" for i in range(12)
        ]
        lines(folder / f"SICK_{name}.txt", [heading, *rows])


def table(folder):
    lines(folder / "train.tsv", ["text\tlabel", *[f"{WORDS[i % 3]}\t{'abc'[i % 3]}" for i in range(60)]])


# Name: files, flags, a text to read, and the metric of test.
TASKS = {
    "ptb": (letters, ("--num-layers", 1, "--num-steps", 5), None, "test_perplexity"),
    "conll2003": (entities, ("--embedding-features", 4), "Peter saw Bonn", "test_f1"),
    "pos": (columns, ("--dataset", "columns", "--embedding-features", 4), "Peter saw Bonn", "test_accuracy"),
    "imdb": (reviews, ("--embedding-features", 4), WORDS[0], "test_accuracy"),
    "sst": (trees, ("--embedding-features", 4), WORDS[0], "test_accuracy"),
    "sick": (pairs, ("--embedding-features", 4), "a dog runs\ta cat runs", "test_pearson"),
    "classify": (table, ("--embedding-features", 4), WORDS[1], "test_macro_f1"),
    "agreement": (None, ("--length", 8, "--train-examples", 64), "w1 a3 w0 b2 w5 )b )a", "test_accuracy"),
    "recall": (None, ("--length", 32, "--train-examples", 64), None, "test_accuracy_twice"),
    "number_prediction": (None, ("--train-examples", 64), "3 1 4 1 5 9 2 6 5 3 4", "test_accuracy"),
}


def trained(name, folder, *flags):
    make, own, _, _ = TASKS[name]
    if make is not None:
        make(folder / "data")
    data = () if make is None else ("--data", folder / "data")
    return execute(find_experiment(name), *data, "--model", "lstm", *SMALL, *own, *flags)


QUICK = ("number_prediction",)  # in every run of the tests


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in TASKS if n not in QUICK)]
)
def test_a_task_trains_is_resumed_and_reads_a_text(name, tmp_path):
    outcome = trained(name, tmp_path, "--run-dir", tmp_path / "run")
    assert outcome.status == 0, outcome.err
    assert "lstm" in outcome.out and TASKS[name][3] in row_of(tmp_path / "run")["metrics"]
    again = trained(name, tmp_path, "--run-dir", tmp_path / "run")
    assert again.status == 0 and "finished already" in again.out, again.err
    text = TASKS[name][2]
    if text is not None:
        read = execute(
            find_experiment(name), "predict", "--run-dir", tmp_path / "run", standard_input=f"{text}\n"
        )
        assert read.status == 0 and len(read.out.splitlines()) == 1, read.err
        reading = load_run(tmp_path / "run").read(text)
        assert len(reading.words) == len(text.split()) and reading.prediction
    data = load(tmp_path / "run" / "config.json")["dataset"]
    assert load_run(tmp_path / "run").data().fingerprint == data["fingerprint"]


@pytest.mark.slow
def test_a_batch_has_no_more_rows_than_there_are_examples(tmp_path):
    outcome = trained("classify", tmp_path, "--run-dir", tmp_path / "run", "--batch-size", 1_000_000)
    assert outcome.status == 0 and "in place of 1000000" in outcome.out, outcome.err


@pytest.mark.slow
def test_words_whose_tag_train_lacks_count_as_wrong(tmp_path):
    outcome = trained("pos", tmp_path, "--run-dir", tmp_path / "run")
    assert "12 words of dev and test have 1 tags that train lacks" in outcome.out
    assert row_of(tmp_path / "run")["metrics"]["test_accuracy"]["mean"] <= 0.75


@pytest.mark.parametrize(
    ("name", "flags", "part"),
    [
        ("agreement", ("--data", "x"), "--data"),
        ("agreement", ("--length", 4), "--length must be at least 5"),
        ("recall", ("--data", "x"), "--data"),
        ("recall", ("--length", 40), "--length is 32 or another multiple of 16"),
        ("classify", (), "give --data"),
        ("imdb", ("--data", "nowhere"), "nowhere"),
        ("sst", ("--data", "nowhere"), "nowhere"),
        ("sick", ("--data", "nowhere"), "nowhere"),
        ("conll2003", ("--data", "nowhere"), "nowhere"),
        ("pos", ("--dataset", "columns"), "--data"),
        ("ptb", ("--data", "nowhere"), "nowhere"),
        ("ptb", ("--vocabulary", "bpe:5"), "--vocabulary takes"),
        ("ptb", ("--preset", "charlm", "--vocabulary", "characters"), "--recipe charlm"),
        ("ptb", ("--dropout", "0.1,0.2"), "--dropout takes one rate or three"),
        ("ptb", ("--model", "lstm", "--copy", "expected"), "--copy has no effect"),
        ("sst", ("--no-train-embeddings",), "--train-embeddings"),
        ("pos", ("--dropout", "0.1,0.2"), "--dropout takes"),
        ("imdb", ("--max-jump", 3), "--max-jump has no effect on dynamic:3"),
    ],
)
def test_what_a_task_cannot_do_is_said_in_one_line(name, flags, part, here):
    assert_user_error(execute(find_experiment(name), *flags), part)
    assert not list(here.iterdir())


TEXTS = [("agreement", "a3 nonsense"), ("number_prediction", "1 2 x"), ("recall", "8192")]


@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_texts_that_are_not_of_a_task_are_refused(name, text):
    from dynskip_jax.errors import UserError

    experiment = find_experiment(name)
    with pytest.raises(UserError):
        experiment.hook("encode")(experiment.settings(), None, text)


def test_warnings_name_what_was_probably_not_meant(finished_numbers):
    experiment = COMMANDS["number_prediction"]
    loaded = load_run(finished_numbers.folder)
    spec = loaded.spec
    warn = experiment.hook("warnings")
    assert warn(spec, loaded.settings, loaded.learner) == []
    short = experiment.settings(data=type(loaded.settings.data)(length=15), training=loaded.settings.training)
    assert any("dynamic:14 reaches all" in line for line in warn(spec, short, loaded.learner))
