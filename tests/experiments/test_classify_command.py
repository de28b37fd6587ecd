"""Check that the text classifier reads small files of every format, trains, predicts and explains."""

import csv
import json
import random

import numpy as np
import pytest
from commands import assert_picture, assert_user_error, row_of
from sklearn.metrics import f1_score

from dynskip_jax.analysis.statistics import confusion_matrix, confusion_text, macro_f1
from dynskip_jax.experiments.classify import Classify
from dynskip_jax.experiments.settings import resolve

WORDS = {
    "sport": "goal match team player ball",
    "food": "soup bread cook salt fry",
    "music": "song drum choir tune band",
    "law": "court judge law trial appeal",
    "$x$": "wave ship sail reef tide",  # a label that looks like a formula
}
SMALL = ("--features", 4, "--embedding-features", 4, "--epochs", 1, "--batch-size", 20, "--buckets", 1)


def rows(count=100):
    draw, found = random.Random(0), []
    for number in range(count):
        label = list(WORDS)[number % len(WORDS)]
        words = (draw.choice([*WORDS[label].split(), "the", "a", "of"]) for _ in range(6))
        found.append({"label": label, "text": " ".join(words)})
    return found


def as_tsv(folder):
    lines = [f"{row['label']}\t{row['text']}\n" for row in rows()]
    (folder / "all.tsv").write_text("label\ttext\n" + "".join(lines))
    return folder / "all.tsv"


def as_csv(folder):
    for split in ("train", "dev", "test"):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["text", "label"])
            writer.writeheader()
            writer.writerows(rows(50))
    return folder


def as_json_lines(folder):
    for split in ("train", "valid", "test"):
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows(50)))
    return folder


def as_folders(folder):
    for number, row in enumerate(rows()):
        place = folder / row["label"]
        place.mkdir(exist_ok=True)
        (place / f"{number}.txt").write_text(row["text"])
    return folder


FORMATS = {"tsv": as_tsv, "csv": as_csv, "json": as_json_lines, "folders": as_folders}


def loaded(data, **given):
    values = {"data": str(data), **given}
    return Classify(resolve(Classify.settings_type, Classify.presets, "small", values).settings).load_data()


@pytest.mark.parametrize("write", FORMATS.values(), ids=FORMATS)
def test_every_format_holds_the_same_classes(write, tmp_path):
    data = loaded(write(tmp_path))
    assert data.vocabulary.classes == tuple(sorted(WORDS))
    assert set(data.sizes) == {"train", "dev", "test", "vocabulary"}
    about = " ".join(data.lines)
    assert "5 classes" in about and "always predicting" in about and "classes of train" in about


def test_missing_splits_are_drawn_with_their_seed(tmp_path):
    path = as_tsv(tmp_path)
    one, same, other = (loaded(path, split_seed=seed) for seed in (0, 0, 1))
    assert one.fingerprint == same.fingerprint != other.fingerprint
    np.testing.assert_array_equal(np.bincount(one.splits["dev"].targets), [2] * 5)  # equal class counts


def test_columns_are_named_by_flags(tmp_path):
    (tmp_path / "all.tsv").write_text(
        "id\tkind\tbody\n" + "".join(f"{i}\t{row['label']}\t{row['text']}\n" for i, row in enumerate(rows()))
    )
    data = loaded(tmp_path / "all.tsv", text_column="body", label_column="kind")
    assert len(data.vocabulary.classes) == 5
    by_number = loaded(tmp_path / "all.tsv", text_column="2", label_column="1", header="yes")
    assert by_number.fingerprint == data.fingerprint


def test_what_is_wrong_is_said_in_one_line(command, here):
    assert_user_error(command(Classify), "give --data")
    (here / "one.tsv").write_text("label\ttext\n" + "a\tone two\n" * 20)
    assert_user_error(command(Classify, "--data", here / "one.tsv"), "two are needed")
    assert_user_error(command(Classify, "--data", here / "one.tsv", "--label-column", "kind"), "kind")


def test_macro_f1_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    truth, predicted = rng.integers(4, size=200), rng.integers(4, size=200)
    matrix = confusion_matrix(truth, predicted, 4)
    assert matrix.sum() == 200 and matrix[1, 2] == ((truth == 1) & (predicted == 2)).sum()
    assert macro_f1(matrix) == pytest.approx(f1_score(truth, predicted, average="macro"))
    never = confusion_matrix(truth % 3, predicted % 3, 4)  # the last class does not occur
    assert macro_f1(never) == pytest.approx(f1_score(truth % 3, predicted % 3, average="macro"))
    lines = confusion_text(matrix, ["a", "b", "c", "d"]).splitlines()
    assert len(lines) == 5 and lines[1].split()[:5] == ["a", *map(str, matrix[0])]


@pytest.mark.slow
def test_it_trains_predicts_and_explains(command, tmp_path):
    folder = tmp_path / "run"
    outcome = command(Classify, "--data", as_tsv(tmp_path), "--model", "lstm", *SMALL, "--run-dir", folder)
    assert outcome.status == 0, outcome.err
    assert "confusion on test" in outcome.out and "paper" not in outcome.out
    lines = outcome.out.splitlines()
    assert {line.split()[0] for line in lines if line.split()[-1:] and line.split()[0] in WORDS} == set(WORDS)
    assert 0 <= row_of(folder)["metrics"]["test_macro_f1"]["mean"] <= 1
    assert_picture(folder / "plots" / "confusion.png")
    outcome = command(Classify, "predict", "--run-dir", folder, standard_input="the goal of the team\n")
    assert outcome.status == 0 and outcome.out.split()[0] in WORDS
    outcome = command(Classify, "explain", "--run-dir", folder, "--text", "a ship")
    assert outcome.status == 0, outcome.err
