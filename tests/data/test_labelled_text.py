"""Check labelled texts in every format, their splits and counts, and the errors of malformed files."""

import collections
import gzip
import itertools
import json
import os

import numpy as np
import pytest

from dynskip_jax.data.labelled_text import find_labelled_text, read_labelled_file, stratified_split
from dynskip_jax.data.sentences import labelled_corpus, review_words
from dynskip_jax.errors import UserError

ROWS = [('so good, "really"', "joy"), ("so bad; sad", "grief"), ("how dare you", "anger")]


def tsv(rows, header="text\tlabel\n"):
    return header + "".join(f"{text}\t{label}\n" for text, label in rows)


def as_csv(rows, separator=","):
    quoted = (f'"{text}"'.replace('"', '""')[1:-1] + f"{separator}{label}\n" for text, label in rows)
    return f"text{separator}label\n" + "".join(quoted)


def json_lines(rows):
    return "".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    path.write_bytes(gzip.compress(data) if path.name.endswith(".gz") else data)
    return path


def pairs(texts):
    return [(example.text, example.label) for example in texts]


def many(count):
    """Return `count` texts of five classes; class `c0` is twice as frequent as each other class."""
    return [(f"text {i}", f"c{max(0, i % 6 - 1)}") for i in range(count)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.tsv", tsv(ROWS)),
        ("x.txt", tsv(ROWS)),
        ("x.csv", as_csv(ROWS)),
        ("x.csv.gz", as_csv(ROWS)),
        ("x.CSV", as_csv(ROWS, ";")),
        ("x.csv", as_csv(ROWS, "\t")),
        ("x.jsonl", json_lines(ROWS)),
        ("x.ndjson.gz", json_lines(ROWS)),
        ("x.json", "\ufeff" + json_lines(ROWS).replace("\n", "\r\n\r\n")),
        ("x.tsv", "\ufeff" + tsv(ROWS).replace("\n", "\r")),
    ],
)
def test_every_format_reads_alike(tmp_path, name, text):
    assert pairs(read_labelled_file(write(tmp_path / name, text))) == ROWS


def test_columns_by_name_or_number(tmp_path):
    path = write(tmp_path / "x.tsv", "1\tjoy\tso good\n2\tgrief\tso bad\n")
    expected = [("so good", "joy"), ("so bad", "grief")]
    for text, label in ((2, 1), ("2", "1"), (-1, -2)):
        assert pairs(read_labelled_file(path, text=text, label=label)) == expected
    assert pairs(read_labelled_file(path, text=2, label=1, header=True)) == expected[1:]
    path = write(tmp_path / "x.csv", 'id,Mood,Review\n1,joy,"so\ngood"\n')
    (example,) = read_labelled_file(path, text="Review", label="Mood")
    assert example == ("so\ngood", "joy", str(path), 3)
    path = write(tmp_path / "x.jsonl", '{"Review": "x", "stars": 5}\n{"Review": "y", "stars": true}\n')
    assert pairs(read_labelled_file(path, text="Review", label="stars")) == [("x", "5"), ("y", "true")]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize(
    ("header", "how"),
    [
        ("review|stars\n", {"text": "review", "label": 1}),
        ("review|stars\n", {"text": "0", "label": "-1", "header": True}),
        ("", {"text": 0, "label": 1}),
        ("", {"text": 0, "label": -1}),
        (' \n\n"review"|stars\n', {"text": "review", "label": "stars"}),
    ],
)
def test_the_separator_of_csv_is_found(tmp_path, separator, header, how):
    rows = f'{header}good|1\n"so; bad, and\tsad"|0\n'
    path = write(tmp_path / "x.csv", rows.replace("|", separator))
    assert pairs(read_labelled_file(path, **how)) == [("good", "1"), ("so; bad, and\tsad", "0")]


def test_the_separator_of_csv_gives_rows_of_one_length(tmp_path):
    path = write(tmp_path / "x.csv", "Good, I think;1\nbad;0\n")
    assert pairs(read_labelled_file(path, text=0, label=1)) == [("Good, I think", "1"), ("bad", "0")]


def test_labels_that_are_numbers_stay_apart(tmp_path):
    numbers = ["0.1234567", "0.1234568", "5", "5.0", "1234567.0", "12345678", "-0.5", "1e-7"]
    path = write(tmp_path / "x.jsonl", "".join(f'{{"text": "a", "label": {n}}}\n' for n in numbers))
    labels = [example.label for example in read_labelled_file(path)]
    assert labels == ["0.1234567", "0.1234568", "5", "5", "1234567", "12345678", "-0.5", "1e-07"]


def test_long_fields_of_csv(tmp_path):
    path = write(tmp_path / "x.csv", f"text,label\n{'word ' * 100_000},a\n")
    assert len(read_labelled_file(path)[0].text) == 500_000


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x.tsv", "", "holds no labelled text"),
        ("x.tsv", "text\tlabel\n", "holds no labelled text"),
        ("x.tsv", "a\tb\n", "line 1: no column 'text' among a, b: give its name, or its number"),
        ("x.tsv", "text\tlabel\nfine\tjoy\nbad\n", "line 3: 1 columns, but the first line has 2"),
        ("x.tsv", "text\tlabel\nfine\t \n", "line 2: the label is empty"),
        ("x.tsv", "text\tlabel\n\tjoy\n", "line 2: the text has no words"),
        ("x.tsv", "text\tlabel\nfine\tjo\x1b[31my\n", "line 2: the label 'jo\\x1b[31my' has characters"),
        ("x.csv", 'text,label\n"fine,joy\n', "line 2: no CSV (unexpected end of data)"),
        ("x.csv", 'text,label\n"fi"ne,joy\n', "line 2: no CSV"),
        ("x.jsonl", "[1]\n", "line 1: expected a JSON object on each line, got [1]"),
        ("x.jsonl", "{\n", "line 1: expected a JSON object on each line ("),
        ("x.jsonl", "[" * 200_000, "nested too deeply"),
        ("x.jsonl", '{"text": "a"}', "line 1: no key 'label' among text"),
        (
            "x.jsonl",
            '{"text": "a", "label": null}',
            "line 1: expected text or a finite number under 'label', got None",
        ),
        ("x.jsonl", '{"text": ["a"], "label": 1}', "line 1: expected text under 'text', got ['a']"),
        ("x.jsonl", '{"text": "\\udc00", "label": 1}', "half of a character"),
        ("x.jsonl", '{"text": {"a": "' + "x" * 1_000_000 + '"}, "label": 1}', "expected text under 'text'"),
        ("x.jsonl", '{"text": "a", "label": NaN}', "line 1: expected text or a finite number under 'label'"),
        ("x.jsonl", '{"text": "a", "label": 1e999}', "got inf"),
        ("x.tsv", "\t".join("x" * 100_000 for _ in range(5)), "no column 'text'"),
    ],
)
def test_bad_lines_are_named(tmp_path, name, text, problem):
    with pytest.raises(UserError) as caught:
        read_labelled_file(write(tmp_path / name, text))
    message = str(caught.value)
    assert problem in message and len(message) < 300 and message.isprintable()


def test_files_of_splits(tmp_path):
    write(tmp_path / "d" / "train.tsv", tsv(many(30)))
    write(tmp_path / "d" / "dev.tsv", tsv(many(7)))
    write(tmp_path / "d" / "test.tsv", tsv(many(12)))
    write(tmp_path / "d" / "README.txt", "read me")
    corpus = find_labelled_text(tmp_path / "d", split_seed=0)
    assert corpus.classes == ("c0", "c1", "c2", "c3", "c4") and corpus.note == "" and corpus.name == "d"
    assert corpus.class_counts["test"] == {"c0": 4, "c1": 2, "c2": 2, "c3": 2, "c4": 2}
    assert corpus.majority_class == "c0"
    assert corpus.majority_accuracy == {"train": 1 / 3, "dev": 3 / 7, "test": 1 / 3}
    assert "5 classes; always predicting 'c0' is right for 33.3 % of train, 42.9 % of dev" in corpus.about
    found = labelled_corpus("d", corpus.labelled(review_words), "here")
    assert found.splits["train"].targets.tolist() == [max(0, i % 6 - 1) for i in range(30)]


def test_a_dev_file_is_used_and_a_missing_test_is_drawn(tmp_path):
    write(tmp_path / "train.csv", as_csv(many(120)))
    write(tmp_path / "valid.csv", as_csv(many(12)))
    corpus = find_labelled_text(tmp_path, split_seed=3)
    assert pairs(corpus.splits["dev"]) == many(12)
    assert corpus.class_counts["test"] == {"c0": 4, "c1": 2, "c2": 2, "c3": 2, "c4": 2}
    assert corpus.note == "drawn from train with the seed 3, the same share of each class: 12 as test"
    again, other = (find_labelled_text(tmp_path, split_seed=seed) for seed in (3, 4))
    assert corpus.fingerprint == again.fingerprint != other.fingerprint


def test_one_file_and_folders_of_classes(tmp_path):
    rows = many(60)
    path = write(tmp_path / "one" / "reviews.jsonl", json_lines(rows))
    for data in (path, path.parent):
        corpus = find_labelled_text(data, split_seed=0)
        assert {split: len(texts) for split, texts in corpus.splits.items()} == {
            "train": 48,
            "dev": 6,
            "test": 6,
        }
        assert sorted(pairs(itertools.chain(*corpus.splits.values()))) == sorted(rows)
    for number, (text, label) in enumerate(rows):
        write(tmp_path / "classes" / label / f"{number:03}.txt", text)
        write(
            tmp_path / "splits" / ("train" if number // 6 % 3 else "test") / label / f"{number:03}.txt", text
        )
    corpus = find_labelled_text(tmp_path / "classes", split_seed=0)
    assert sorted(pairs(itertools.chain(*corpus.splits.values()))) == sorted(rows)
    corpus = find_labelled_text(tmp_path / "splits", split_seed=0)
    assert {text for text, _ in pairs(corpus.splits["test"])} == {
        f"text {i}" for i in range(60) if i // 6 % 3 == 0
    }


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"train.tsv": tsv([("a b", "x")] * 30)}, "has only the class 'x' in train"),
        (
            {"train.tsv": tsv(many(60)), "test.tsv": tsv([("a", "new")])},
            "line 2: the class 'new' is not",
        ),
        (
            {"train.tsv": tsv([(str(i), str(i)) for i in range(100)])},
            "the column of labels",
        ),
        ({"train.tsv": tsv(ROWS)}, "has too few texts to draw dev"),
        ({"dev.tsv": tsv(ROWS)}, "has no file for the train split"),
        ({"train.tsv": tsv(ROWS), "train.csv": as_csv(ROWS)}, "more than one file for the train split"),
        (
            {"train.tsv": tsv(ROWS), "test/x/1.txt": "a"},
            "for its splits, train.tsv and test",
        ),
        ({"a.tsv": tsv(ROWS), "b.tsv": tsv(ROWS)}, "has 2 files of labelled texts, and none for train"),
        (
            {"all.tsv": tsv(ROWS), "old/x.bin": "a"},
            "has the file all.tsv and the folder old: name the file itself with --data",
        ),
        ({"notes.md": "x"}, "has no files of labelled texts"),
        ({"train/x/1.txt": " \n"}, "1.txt, line 1: the text has no words"),
    ],
)
def test_folders_that_are_not_as_they_should_be(tmp_path, files, problem):
    for name, text in files.items():
        write(tmp_path / name, text)
    with pytest.raises(UserError) as caught:
        find_labelled_text(tmp_path, split_seed=0)
    assert problem in str(caught.value) and len(str(caught.value)) < 300


def test_what_is_not_there(tmp_path):
    with pytest.raises(UserError, match="is not there"):
        find_labelled_text(tmp_path / "nowhere", split_seed=0)
    os.mkfifo(tmp_path / "train.tsv")
    with pytest.raises(UserError, match="is a named pipe"):
        read_labelled_file(tmp_path / "train.tsv")


def test_texts_without_words_are_named_as_they_are_split(tmp_path):
    write(tmp_path / "x.tsv", tsv([*many(60), ("<br/>", "c1")]))
    corpus = find_labelled_text(tmp_path, split_seed=0)
    with pytest.raises(UserError, match=r"x\.tsv, line 62: the text has no words"):
        for texts in corpus.labelled(review_words).values():
            list(texts)


def test_classes_that_are_numbers_are_in_their_order(tmp_path):
    write(tmp_path / "x.tsv", tsv([("a b", str(i % 12)) for i in range(240)]))
    assert find_labelled_text(tmp_path, split_seed=0).classes == tuple(map(str, range(12)))


@pytest.mark.parametrize("seed", [0, 1])
def test_stratified_splits(seed):
    labels = ["a"] * 100 + ["b"] * 30 + ["c"] * 6 + ["d"]
    parts = stratified_split(labels, {"dev": 0.1, "test": 0.2}, seed)
    assert sorted(np.concatenate(list(parts.values()))) == list(range(len(labels)))
    counts = {part: collections.Counter(labels[i] for i in places) for part, places in parts.items()}
    assert counts["dev"] == {"a": 10, "b": 3, "c": 1}
    assert counts["test"] == {"a": 20, "b": 6, "c": 1}
    again = stratified_split(labels, {"dev": 0.1, "test": 0.2}, seed)
    assert all(np.array_equal(parts[part], again[part]) for part in parts)
    assert not np.array_equal(parts["dev"], stratified_split(labels, {"dev": 0.1}, seed + 5)["dev"])
    few = ["a"] * 6 + ["b"]
    assert {few[i] for i in stratified_split(few, {"dev": 0.5, "test": 0.45}, seed)["train"]} == {"a", "b"}
    for shares in ({"dev": -0.1}, {"dev": 0.5, "test": 0.5}):
        with pytest.raises(UserError, match="shares must not be negative"):
            stratified_split(labels, shares, seed)
