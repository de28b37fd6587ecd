"""Check labelled texts in all formats, how they are split, and that each bad line is named."""

import collections
import csv
import json
import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written import assert_refused, write

from dynskip_jax.data.labelled import find_labelled_text, read_labelled_file, stratified_split
from dynskip_jax.data.notes import DataNotes
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


def as_csv(rows, path, separator=","):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
    return path


def pairs(path, **options):
    return [(example.text, example.label) for example in read_labelled_file(path, **options)]


@given(st.lists(st.tuples(FIELD, FIELD), min_size=1, max_size=30), st.sampled_from(",;\t"))
@settings(deadline=None, max_examples=40)
def test_csv_of_any_separator_is_read_back(tmp_path_factory, rows, separator):
    path = as_csv([("label", "text"), *rows], tmp_path_factory.mktemp("x") / "x.csv", separator)
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
    write(tmp_path / "c.tsv", "\ufeff" + "\r\n".join("\t".join(row) for row in flat))
    assert pairs(tmp_path / "c.tsv", text=0, label="1") == flat
    assert pairs(tmp_path / "c.tsv", text=0, label=1, header=True) == flat[1:]
    problem = "line 1: no column 2 among so good, pos (separated by tab): set --label-column"
    assert_refused(
        lambda path: read_labelled_file(path, text=0, label=2), tmp_path / "c.tsv", problem
    )


def test_labels_of_json_are_texts(tmp_path):
    values = [1, 0.5, True, False, "1", 10**30]
    lines = "\n".join(json.dumps({"text": "a", "label": value}) for value in values)
    labels = [label for _, label in pairs(write(tmp_path / "x.jsonl", lines))]
    assert labels == ["1", "0.5", "true", "false", "1", str(10**30)]
    path = write(tmp_path / "y.jsonl", '{"text": "half a \\ud83d", "label": "\\ud83d\\ude00"}')
    assert pairs(path) == [("half a ?", "😀")]


BAD = [
    ("x.tsv", "text\tlabel\na\n", "line 2: 1 columns, but the first line has 2"),
    ("x.tsv", "text\tlabel\na\t \n", "line 2: the label is empty"),
    (
        "x.tsv",
        "text\tlabel\na\t\x1b[31m\n",
        "line 2: the label '\\x1b[31m' has characters that do not",
    ),
    (
        "x.tsv",
        "review\tlabel\na\tx\n",
        "line 1: no column 'text' among review, label (separated by tab): set",
    ),
    (
        "x.tsv",
        "text\tlabel\tlabel\na\tx\ty\n",
        "line 1: two columns are called 'label': rename one",
    ),
    ("x.tsv", "text\tlabel\n", "holds no labelled text: is it the right file?"),
    ("x.csv", "text,label,label\na,x,y\n", "line 1: two columns are called 'label'"),
    ("x.csv", 'text,label\na,x\n"b,x\nc,x\n', "line 3: no CSV (unexpected end of data)"),
    (
        "x.csv",
        "text;label\na;b;c\n",
        "line 2: 3 columns, but the first line has 2 (separated by semi",
    ),
    (
        "x.csv",
        "id,the text,note\na,b,c\n",
        "no column 'text' among id, the text, note (separated by",
    ),
    ("x.csv", "well, fine;pos\n", "line 1: no column 'text' among"),
    ("x.tsv", "# by hand\ntext\tlabel\na\tx\n", "line 1: no column 'text' among # by hand"),
    ("x.tsv", "text\tlabel\n# by hand\na\tx\n", "line 2: 1 columns, but the first line has 2"),
    ("x.tsv", "", "holds no labelled text: is it the right file?"),
    ("x.tsv", b"text\tlabel\ncaf\xe9\tx\n", "line 2: no UTF-8 text: convert the file"),
    ("x.csv", 'text,label\n"a"b,x\n', "line 2: no CSV ("),
    ("x.csv", "text,label\n\na,x,y\n", "line 3: 3 columns, but the first line has 2"),
    (
        "x.jsonl",
        '{"text": "a"}',
        "line 1: expected text or a number under 'label' (--label-column) in {",
    ),
    ("x.jsonl", '\n["a"]', "line 2: expected a JSON object on each line (got ['a'])"),
    (
        "x.jsonl",
        '{"text": "a", "label": NaN}',
        "expected text or a number under 'label' (--label-column) in {",
    ),
    (
        "x.jsonl",
        '{"text": 7, "label": 1}',
        "line 1: expected text under 'text' (--text-column) in {",
    ),
    ("x.jsonl", '{"text": "a"', "line 1: expected a JSON object on each line (Expecting"),
]


@pytest.mark.parametrize(("name", "text", "problem"), BAD)
def test_bad_lines_are_named(tmp_path, name, text, problem):
    assert_refused(read_labelled_file, write(tmp_path / name, text), problem)


@pytest.mark.parametrize(("own", "other"), [(",", ";"), (";", ","), ("\t", "|"), ("|", "\t")])
def test_no_delimiter_is_guessed(tmp_path, own, other):
    rows = [(f"well{other}fine", "pos"), (f"oh{other}dull", "neg")]
    named = as_csv([("text", "label"), *rows], tmp_path / "named.csv", own)
    assert pairs(named) == rows
    path = as_csv(rows, tmp_path / "x.csv", own)
    read = lambda path: pairs(path, text=0, label=1)
    assert_refused(read, path, "are found with more than one delimiter")
    name = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}[own]
    assert pairs(path, text=0, label=1, delimiter=name) == rows


def test_excel_names_its_delimiter(tmp_path):
    path = write(tmp_path / "x.csv", "sep=;\ntext;label\nso, good;x\n")
    assert pairs(path) == pairs(path, delimiter="semicolon") == [("so, good", "x")]


def test_columns_like_the_wanted_one_are_listed(tmp_path):
    names = [f"column {i:02}" for i in range(60)]
    path = write(tmp_path / "x.csv", f"{','.join(names)}\n{','.join('a' * 60)}\n")
    assert pairs(path, text=names[7], label="59") == [("a", "a")]
    read = lambda path: pairs(path, text="column 30x")
    assert_refused(read, path, "no column 'column 30x' among column 30,")


@pytest.mark.parametrize("first", ["0,1", "review,stars"])
def test_a_header_that_became_a_text_is_told(tmp_path, first):
    rows = "".join(f"some words {i},{i % 2}\n" for i in range(20))
    path = write(tmp_path / "x.csv", f"{first}\n{rows}")
    found = find_labelled_text(path, text=0, label=1)
    assert "looks like a header" in found.notes[0] and "--header yes" in found.notes[0]
    for options in (
        dict(header=True),
        dict(text=first.split(",")[0] if "r" in first else 0, header=True),
    ):
        named = find_labelled_text(path, **{"text": 0, "label": 1, **options})
        assert named.classes == ("0", "1") and "header" not in " ".join(named.notes)


def test_classes_that_may_be_one_are_told(tmp_path):
    labels = ["Pos", "pos", "neg", "1", "1.0"]
    rows = [(f"text {i}", labels[i % 5]) for i in range(50)]
    found = find_labelled_text(as_csv([("text", "label"), *rows], tmp_path / "x.csv"))
    told = [note for note in found.notes if note.startswith("classes that may be one")]
    assert told == ["classes that may be one: '1', '1.0'", "classes that may be one: 'Pos', 'pos'"]


@pytest.mark.parametrize("kind", ["csv", "jsonl", "folders"])
def test_labels_in_two_unicode_forms_are_one_class(tmp_path, kind):
    for split, form in (("train", "NFC"), ("dev", "NFD"), ("test", "NFC")):
        names = [unicodedata.normalize(form, name) for name in ("café", "한국어")]
        rows = [(f"text {i} of {split}", names[i % 2]) for i in range(4)]
        if kind == "folders":
            for text, label in rows:
                write(tmp_path / split / label / f"{text}.txt", text)
        elif kind == "csv":
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
def test_texts_without_words_are_left_out_and_counted(tmp_path, name, text):
    notes = DataNotes()
    path = write(tmp_path / name, text)
    assert pairs(path, notes=notes) == [("a", "x")]
    (line,) = notes.lines
    number = text[: text.index("\n", 12)].count("\n") + 2
    assert line.startswith("left out: texts without words (2; first ")
    assert line.endswith(f"{name}, line {number})")


def test_texts_of_train_in_other_splits_are_counted(tmp_path):
    rows = {
        "train": [(f"text {i % 5}", "xy"[i % 2]) for i in range(10)],
        "dev": [("TEXT  1", "x"), ("new", "y"), ("other", "y")],
        "test": [("new", "x"), ("other", "y")],
    }
    for split, own in rows.items():
        as_csv([("text", "label"), *own], tmp_path / f"{split}.csv")
    told = "train has the same texts, which makes scores too good: 1 of 3 of dev (1 distinct)"
    assert told in find_labelled_text(tmp_path).notes


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


def test_folders_of_classes_with_all_that_systems_put_there(tmp_path):
    for number in range(12):
        for label in ("good", "bad"):
            write(tmp_path / label / f"{number}.txt", f"{label} words\nno {number}")
    write(tmp_path / "bad" / "2023" / "more" / "x.txt", "deep words")
    junk = "good/Thumbs.db bad/.DS_Store desktop.ini .git/x.txt "
    junk += "runs/x/config.json runs/x/checkpoints/1 bad/.ipynb_checkpoints/x.txt"
    for name in junk.split():
        write(tmp_path / name, b"\xd0\xcf\x11\xe0")
    (tmp_path / "bad" / "circle").symlink_to("..")
    corpus = find_labelled_text(tmp_path)
    assert corpus.classes == ("bad", "good") and sum(map(len, corpus.splits.values())) == 25
    assert "deep words" in {example.text for texts in corpus.splits.values() for example in texts}
    counts = collections.Counter(example.label for example in corpus.splits["train"])
    share = 100 * max(counts.values()) / counts.total()
    assert f"bad {counts['bad']}, good {counts['good']}; always predicting" in corpus.about
    assert f"{share:.1f} % of train" in corpus.about


def test_files_and_folders_of_splits(tmp_path):
    for split in ("train", "dev", "test"):
        rows = [f"{split} {i}\t{i % 2}" for i in range(6)]
        write(tmp_path / "files" / f"{split}.tsv", "\n".join(["text\tlabel", *rows]))
        for i in range(6):
            write(tmp_path / "folders" / split.upper() / str(i % 2) / f"{i}.txt", f"{split} {i}")
    first, second = (find_labelled_text(tmp_path / name) for name in ("files", "folders"))
    assert (
        first.classes == second.classes == ("0", "1")
        and not first.notes
        and first.about == second.about
    )
    words = [sorted(corpus.labelled(review_words)["dev"]) for corpus in (first, second)]
    assert words[0] == words[1] and words[0][2:4] == [(["dev", "2"], 0, ()), (["dev", "3"], 1, ())]


TSV = "text\tlabel\na\tx\nb\ty\n"
SPLITS = {"train.tsv": TSV, "dev.tsv": TSV}


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (
            {"train.tsv": TSV, "train/a/x.txt": "a"},
            "for the train split (train.tsv, train): keep one",
        ),
        ({"dev.tsv": TSV}, "has no file for the train split"),
        ({"a.csv": TSV, "b.csv": TSV}, "has no texts: it needs train.tsv, train.csv or"),
        ({"a/.hidden": ""}, "has no texts"),
        ({f"a/{i}.txt": "a" for i in range(9)}, "has only the class 'a' in train: two are needed"),
        (
            SPLITS | {"test.tsv": f"{TSV}b\tzebra\n"},
            "line 4: the class 'zebra' is not among those of",
        ),
    ],
)
def test_folders_that_are_not_clear(tmp_path, files, problem):
    def read(path):
        return [list(texts) for texts in find_labelled_text(path).labelled(review_words).values()]

    for name, text in files.items():
        write(tmp_path / name, text)
    assert_refused(read, tmp_path, problem)
