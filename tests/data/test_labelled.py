"""Check labelled texts in all formats, how they are split, and that each bad line is named."""

import csv
import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import assert_refused, write

from dynskip_jax.data.labelled import (
    find_labelled_text,
    labelled_words,
    read_labelled_file,
    stratified_split,
)
from dynskip_jax.data.sentences import review_words

TEXTS = [
    ("so good", "pos"),
    ('he said "no", twice', "neg"),
    ("two\nlines", "pos"),
    ("été; 日本", "neg"),
]
SYMBOLS = st.characters(codec="utf-8", exclude_categories=["C", "Z"])
FIELD = st.text(SYMBOLS, min_size=1, max_size=9).map(
    lambda text: unicodedata.normalize("NFC", text)
)


def as_csv(rows, path):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


def pairs(path, **options):
    return [(example.text, example.label) for example in read_labelled_file(path, **options)]


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=30))
@settings(deadline=None, max_examples=40)
def test_csv_is_read_back(tmp_path_factory, rows):
    path = as_csv([("label", "text"), *rows], tmp_path_factory.mktemp("x") / "x.csv")
    assert pairs(path) == [(text, label) for label, text in rows]


def test_every_format_reads_alike(tmp_path):
    as_csv(
        [("id", "text", "label"), *((i, *row) for i, row in enumerate(TEXTS))], tmp_path / "a.csv"
    )
    lines = [json.dumps({"label": label, "text": text, "x": None}) for text, label in TEXTS]
    write(tmp_path / "b.jsonl.gz", "\n\n".join(lines))
    assert pairs(tmp_path / "a.csv") == pairs(tmp_path / "b.jsonl.gz") == TEXTS
    assert [example.line for example in read_labelled_file(tmp_path / "a.csv")] == [2, 3, 4, 6]
    assert pairs(write(tmp_path / "x.csv", 'text, label\n"good, 1", "pos"\n')) == [
        ("good, 1", "pos")
    ]
    flat = [(text.replace("\n", " "), label) for text, label in TEXTS]
    lines = ("\t".join(row) for row in [("text", "label"), *flat])
    assert pairs(write(tmp_path / "c.tsv", "\ufeff" + "\r\n".join(lines))) == flat


def test_labels_of_json_are_texts(tmp_path):
    values = [1, 0.5, True, False, "1", 10**30]
    lines = "\n".join(json.dumps({"text": "a", "label": value}) for value in values)
    labels = [label for _, label in pairs(write(tmp_path / "x.jsonl", lines))]
    assert labels == ["1", "0.5", "true", "false", "1", str(10**30)]


BAD = [
    ("x.tsv", "text\tlabel\na\n", "line 2: 1 columns, but the first line has 2"),
    ("x.tsv", "text\tlabel\na\t \n", "line 2: the label is empty"),
    ("x.tsv", "text\tlabel\na\t\x1b[31m\n", "line 2: the label '\\x1b[31m' has characters that do"),
    ("x.tsv", "review\tlabel\na\tx\n", "expected text or a number under 'text' among review"),
    ("x.csv", "text;label\na;b\n", "expected text or a number under 'text' among text;label"),
    ("x.tsv", "text\tlabel\n", "holds no labelled text: is it the right file?"),
    ("x.tsv", "", "holds no labelled text: is it the right file?"),
    ("x.csv", 'text,label\na,x\n"b,x\nc,x\n', "line 3: no CSV (unexpected end of data)"),
    ("x.csv", 'text,label\n"a"b,x\n', "line 2: no CSV ("),
    ("x.csv", "text,label\n\na,x,y\n", "line 3: 3 columns, but the first line has 2"),
    ("x.tsv", b"text\tlabel\ncaf\xe9\tx\n", "is no UTF-8 text: convert it"),
    ("x.jsonl", '{"text": "a"}', "line 1: expected text or a number under 'label' among text"),
    ("x.jsonl", '\n["a"]', "line 2: expected a JSON object on each line ("),
    ("x.jsonl", '{"text": "a"', "line 1: expected a JSON object on each line (Expecting"),
]


@pytest.mark.parametrize(("name", "text", "problem"), BAD)
def test_bad_lines_are_named(tmp_path, name, text, problem):
    assert_refused(read_labelled_file, write(tmp_path / name, text), problem)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_labels_in_two_unicode_forms_are_one_class(tmp_path, kind):
    for split, form in (("train", "NFC"), ("dev", "NFD"), ("test", "NFC")):
        names = [unicodedata.normalize(form, name) for name in ("café", "한국어")]
        rows = [(f"text {i} of {split}", names[i % 2]) for i in range(4)]
        if kind == "csv":
            as_csv([("text", "label"), *rows], tmp_path / f"{split}.csv")
        else:
            lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
            write(tmp_path / f"{split}.jsonl", "\n".join(lines))
    corpus = find_labelled_text(tmp_path)
    assert corpus.classes == ("café", "한국어")
    assert {one.label for one in corpus.splits["dev"]} == {*corpus.classes}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.csv", "text,label\na,x\n,x\n <br />,x\n"),
        ("x.tsv", "text\tlabel\na\tx\n\tx\n \tx\n"),
        ("x.jsonl", '{"text": "a", "label": "x"}\n' + '{"text": " ", "label": "x"}\n' * 2),
    ],
)
def test_texts_without_words_are_left_out(tmp_path, name, text):
    assert pairs(write(tmp_path / name, text)) == [("a", "x")]


SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=40)


@given(SIZES, st.sampled_from([0.1, 0.3, 0.05]), st.integers(0, 9))
@settings(deadline=None)
def test_a_split_has_its_share_and_train_every_class(sizes, share, seed):
    labels = [name for name, size in enumerate(sizes) for _ in range(size)]
    parts = stratified_split(labels, ("dev", "test"), share, seed)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(len(labels)))
    assert {labels[i] for i in parts["train"]} == set(labels)
    size = max(1, round(share * len(labels)))
    room = len(labels) - len(sizes)
    assert [len(parts[name]) for name in ("dev", "test")] == [
        min(size, room),
        max(0, min(size, room - size)),
    ]


@pytest.mark.parametrize(("classes", "each"), [(300, 4), (50, 5), (2, 4), (30, 6), (3, 200)])
def test_small_classes_have_their_part_of_dev(classes, each):
    labels = [label for label in range(classes) for _ in range(each)]
    parts = stratified_split(labels, ("dev", "test"), 0.1, 0)
    for name in ("dev", "test"):
        assert len(parts[name]) == round(0.1 * len(labels))
        counts = np.bincount([labels[i] for i in parts[name]], minlength=classes)
        assert counts.max() - counts.min() <= 1


def test_a_folder_has_a_file_for_each_split(tmp_path):
    for split in ("train", "dev", "test"):
        rows = [f"{split} {i}\t{i % 2}" for i in range(6)]
        write(tmp_path / f"{split}.tsv", "\n".join(["text\tlabel", *rows]))
    corpus = find_labelled_text(tmp_path)
    assert corpus.classes == ("0", "1") and "drawn" not in corpus.about
    words = labelled_words(corpus.splits["dev"], review_words, corpus.classes)
    assert [*words][2] == (["dev", "2"], 0, ())


def test_missing_splits_are_drawn_from_train(tmp_path):
    rows = [("text", "label"), *((f"text {i}", "ab"[i % 2]) for i in range(40))]
    corpus = find_labelled_text(as_csv(rows, tmp_path / "x.csv"))
    assert {split: len(own) for split, own in corpus.splits.items()} == dict(
        train=32, dev=4, test=4
    )
    assert corpus.about.endswith("2 classes; drawn from train: dev and test")


TSV = "text\tlabel\na\tx\nb\ty\n"
SPLITS = {"train.tsv": TSV, "dev.tsv": TSV}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"train.tsv": TSV, "train.csv": TSV}, "for the train split (train.csv, train.tsv): keep"),
        ({"dev.tsv": TSV}, "has no file for the train split"),
        ({"train.tsv": "text\tlabel\na\tx\n"}, "has only the class 'x' in train: two are needed"),
        (
            SPLITS | {"test.tsv": f"{TSV}b\tzebra\n"},
            "line 4: the class 'zebra' is not among those of",
        ),
    ],
)
def test_folders_that_are_not_clear(tmp_path, files, problem):
    def read(path):
        corpus = find_labelled_text(path)
        for texts in corpus.splits.values():
            list(labelled_words(texts, review_words, corpus.classes))

    for name, text in files.items():
        write(tmp_path / name, text)
    assert_refused(read, tmp_path, problem)
