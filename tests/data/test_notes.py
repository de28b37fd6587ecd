"""Check that equal labels in two Unicode forms are one, and that notes count what is left out."""

import itertools
import json
import unicodedata

import pytest
from written import CONLLU, write

from dynskip_jax.data import find_labelled_text, find_tagged_corpus, labelled, sentence_corpora
from dynskip_jax.data.messages import shown
from dynskip_jax.data.notes import DataNotes
from dynskip_jax.data.tagged import with_entities
from dynskip_jax.data.tagged_files import lines_to_tag, read_columns
from dynskip_jax.data.word_vectors import read_word_vectors
from dynskip_jax.errors import UserError

NAMES = ["café", "Müller", "한국어", "Å", "क़लम"]
FORMS = ["NFC", "NFD"]


def form(name, text):
    return unicodedata.normalize(name, text)


def write_labelled(folder, kind, split, rows):
    if kind == "jsonl":
        lines = [
            json.dumps({"text": text, "label": label}, ensure_ascii=False) for text, label in rows
        ]
        write(folder / f"{split}.jsonl", "\n".join(lines))
    elif kind == "folders":
        for number, (text, label) in enumerate(rows):
            write(folder / split / label / f"{number}.txt", text)
    else:
        mark = "," if kind == "csv" else "\t"
        lines = [f"text{mark}label", *(f"{text}{mark}{label}" for text, label in rows)]
        write(folder / f"{split}.{kind}", "\n".join(lines))


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "folders"])
@pytest.mark.parametrize(("of_train", "of_test"), [*itertools.product(FORMS, repeat=2)])
def test_labels_in_two_forms_are_one_class(tmp_path, kind, of_train, of_test):
    for split, own in (("train", of_train), ("dev", "NFC"), ("test", of_test)):
        rows = [(f"text {i} of {split}", form(own, name)) for i in range(3) for name in NAMES]
        # Two forms in one split, too.
        if split == "train":
            rows += [(f"more of {split}", form(other, NAMES[0])) for other in FORMS]
        write_labelled(tmp_path, kind, split, rows)
    corpus = find_labelled_text(tmp_path)
    assert corpus.classes == tuple(sorted(form("NFC", name) for name in NAMES))
    for split, count in (("train", 17), ("dev", 15), ("test", 15)):
        assert [one.label for one in corpus.splits[split]].count(form("NFC", "café")) in (3, 5)
        assert len(corpus.splits[split]) == count
    assert (
        sum(
            note.startswith("labels in another Unicode form, now in NFC (") for note in corpus.notes
        )
        == 1
    )


@pytest.mark.parametrize("mark", ["\t", " "])
@pytest.mark.parametrize("of_test", FORMS)
def test_tags_in_two_forms_are_one(tmp_path, mark, of_test):
    for split, own in (("train", "NFC"), ("dev", "NFD"), ("test", of_test)):
        lines = [f"w{mark}{form(own, f'B-{name}')}\n\n" for name in NAMES]
        write(tmp_path / f"{split}.conll", "".join(lines))
    corpus = with_entities(find_tagged_corpus("columns", tmp_path))
    kinds = {tag[2:] for tag in corpus.entity_tags if tag != "O"}
    assert kinds == {form("NFC", name) for name in NAMES}
    assert sum("labels in another Unicode form" in note for note in corpus.notes) == 1
    # `predict --score` compares with these.
    (block,) = lines_to_tag([f"w{mark}{form('NFD', 'café')}"], beside=(-1,))
    assert block.columns == [(form("NFC", "café"),)]


def test_tags_of_conllu_in_two_forms_are_one(tmp_path):
    for split, own in (("train", "NFC"), ("dev", "NFD"), ("test", "NFD")):
        write(tmp_path / f"x-ud-{split}.conllu", CONLLU.replace("\tVB\t", f"\t{form(own, 'é')}\t"))
    corpus = find_tagged_corpus("ud", tmp_path, tag="xpos")
    assert {tag for own in corpus.splits["test"] for tag in own.tags} == {*corpus.train_tags}


# --- What is left out ---

PAIRS = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\tso\tgood\t4\n"
SKIPPED = {  # a file, what is put into it, how often it is told, and the reader
    "csv": ("x.csv", "text,label\ngood,x\n", ",x\n", "texts without words", "labelled"),
    "tsv": ("x.tsv", "text\tlabel\ngood\tx\n", "\tx\n", "texts without words", "labelled"),
    "json": (
        "x.jsonl",
        '{"text": "a", "label": 1}\n',
        '{"text": " ", "label": 1}\n',
        "texts",
        "labelled",
    ),
    "csv comment": ("x.csv", "text,label\ngood,x\n", "# by hand\n", "comments", "labelled"),
    "tsv comment": ("x.tsv", "text\tlabel\ngood\tx\n", "# by hand\n", "comments", "labelled"),
    "json comment": (
        "x.jsonl",
        '{"text": "a", "label": 1}\n',
        "# by hand\n",
        "comments",
        "labelled",
    ),
    "sick": ("x.txt", PAIRS, "2\t\tgood\t3\n", "texts without words", "pairs"),
    "sick comment": ("x.txt", PAIRS, "# by hand\n", "comments", "pairs"),
    "sst comment": ("x.txt", "(2 good)\n", "# by hand\n", "comments", "trees"),
    "germeval": ("x.tsv", "so\tO\tO\n\n", "#\tn-tv.de [2005]\n", "comments", "columns"),
    "columns": ("x.txt", "so NN O\n\n", "# four words of text\n", "comments", "columns"),
    "vectors": ("x.txt", "the 1 2 3\nof 1 2 3\n", "# trained by hand\n", "comments", "vectors"),
}


def read(name, path, notes):
    readers = {
        "labelled": lambda: labelled.read_labelled_file(path, notes=notes),
        "pairs": lambda: sentence_corpora.read_pairs(path, notes),
        "trees": lambda: sentence_corpora.read_trees(path, notes=notes),
        "columns": lambda: read_columns(path, notes=notes),
        "vectors": lambda: list(read_word_vectors(path, {"the", "of"}, 3, notes)),
    }
    return readers[name]()


@pytest.mark.parametrize("kind", SKIPPED)
@pytest.mark.parametrize("count", [1, 3])
def test_what_has_no_content_is_left_out_and_counted(tmp_path, kind, count):
    name, text, added, told, reader = SKIPPED[kind]
    whole = len(read(reader, write(tmp_path / name, text), DataNotes(strict=True)))
    path = write(tmp_path / name, text + added * count)
    notes = DataNotes()
    assert len(read(reader, path, notes)) == whole
    (line,) = notes.lines
    number = text.count("\n") + 1
    assert told in line and line.endswith(f"({count}; first {shown(str(path), 75)}, line {number})")
    with pytest.raises(
        UserError, match=rf"line {number}: (the text has no words|a comment).*--strict"
    ):
        read(reader, path, DataNotes(strict=True))


GERMEVAL = "#\tn-tv.de vom 26.02.2005 [2005-02-26]\nSchartau\tB-PER\tO\nsagte\tO\tO\n\n"


def test_comments_before_the_first_word_are_no_words(tmp_path):
    path = write(tmp_path / "x.tsv", GERMEVAL * 3 + "#\tO\tO\n")
    notes = DataNotes()
    found = read_columns(path, tag=1, notes=notes)
    assert [own.words for own in found] == [["Schartau", "sagte"]] * 3 + [["#"]]
    assert "comments, which begin with # (3; first" in notes.lines[0]
    assert "words that begin a sentence with #, as a comment does (1; first" in notes.lines[1]
    # Comments stay in the output of `predict --format columns`.
    blocks = list(lines_to_tag(GERMEVAL.split("\n")[:3]))
    assert blocks[0].lines == GERMEVAL.split("\n")[:3] and blocks[0].places == [1, 2]


@pytest.mark.parametrize("mark", ["\t", " "])
def test_comments_with_as_many_columns_are_no_words(tmp_path, mark):
    lines = ["so B-X", "good O", "", "# comment", "# here", "#tag O", "long B-X", "", "# #", "of O"]
    path = write(
        tmp_path / "x.txt", "\n".join(line.replace(" ", mark) for line in lines) + "\n\n# by hand\n"
    )
    notes = DataNotes()
    found = [own.words for own in read_columns(path, notes=notes)]
    assert found == [["so", "good"], ["#tag", "long"], ["#", "of"]]
    assert "comments, which begin with # (3; first" in " ".join(notes.lines)
    assert "words that begin a sentence with #, as a comment does (2; first" in " ".join(
        notes.lines
    )


@pytest.mark.parametrize("start", ["", "#\tn-tv.de [2005]\n"])
def test_numbers_of_words_are_no_words(tmp_path, start):
    rows = f"{start}1\tSchartau\tB-PER\tO\n2\tsagte\tO\tO\n\n"
    path = write(tmp_path / "x.tsv", rows * 2)
    with pytest.raises(
        UserError, match=r"line [12]: the first column has the numbers of the words"
    ):
        read_columns(path)
    assert read_columns(write(tmp_path / "y.tsv", f"{rows}1\tO\tX\tO\n1\tO\tX\tO\n"))


def test_a_broken_line_within_a_sentence_is_no_comment(tmp_path):
    path = write(tmp_path / "x.tsv", "so\tO\tO\n#\tO\nlong\tO\tO\n")
    with pytest.raises(UserError, match="line 2: 2 columns, but the first line has 3"):
        read_columns(path)


def test_empty_files_of_classes_are_counted(tmp_path):
    for number in range(8):
        write(tmp_path / "ab"[number % 2] / f"{number}.txt", f"text {number}")
    write(tmp_path / "a" / "empty.txt", " <br />\n\n")
    assert "left out: texts without words (1; first" in find_labelled_text(tmp_path).notes[-1]
    with pytest.raises(UserError, match=r"empty\.txt, line 1: the text has no words: .*--strict"):
        find_labelled_text(tmp_path, strict=True)


def test_empty_reviews_are_counted(tmp_path):
    for split, kind, number in itertools.product(("train", "test"), ("neg", "pos"), range(3)):
        write(tmp_path / split / kind / f"{number}_9.txt", "" if number == 2 else "so bad")
    notes = DataNotes()
    reviews = sentence_corpora.read_imdb(tmp_path, notes)
    assert [len(own) for own in reviews.values()] == [4, 4] and "(4; first" in notes.lines[0]


# --- Texts in more than one split ---


@pytest.mark.parametrize("kind", ["one file", "files"])
def test_texts_of_train_in_other_splits_are_counted(tmp_path, kind):
    rows = [(f"text {i % 5}", "xy"[i % 2]) for i in range(100)]
    if kind == "one file":
        write_labelled(tmp_path, "csv", "all", rows)
        corpus = find_labelled_text(tmp_path / "all.csv")
        told = "10 of 10 of dev (4 distinct), 10 of 10 of test (3 distinct)"
        for split, distinct in (("dev", 4), ("test", 3)):
            assert len({one.text for one in corpus.splits[split]}) == distinct
    else:
        write_labelled(tmp_path, "csv", "train", rows)
        write_labelled(tmp_path, "csv", "dev", [("TEXT  1", "x"), ("new", "y"), ("other", "y")])
        write_labelled(tmp_path, "csv", "test", [("new", "x"), ("other", "y")])
        corpus = find_labelled_text(tmp_path)
        told = "1 of 3 of dev (1 distinct)"
    assert f"train has the same texts, which makes scores too good: {told}" in corpus.notes


def test_sentences_of_train_in_other_splits_are_counted(tmp_path):
    for split, words in (("train", "abcde"), ("dev", "fg"), ("test", "aaxe")):
        write(tmp_path / f"{split}.txt", "".join(f"{word} X\nso Y\n\n" for word in words))
    corpus = find_tagged_corpus("columns", tmp_path)
    (note,) = corpus.notes
    assert note.endswith("same texts, which makes scores too good: 3 of 4 of test (2 distinct)")
